"""Reading pieces of MLIR's text: brackets, types, attributes, numbers."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from nki_optimizer_triton.ir.types import (
    SCALAR_BYTES,
    Attribute,
    BlockPointer,
    Descriptor,
    Element,
    IrError,
    Pointer,
    Pointers,
    Scalar,
    Tensor,
    Type,
)

MOST_ELEMENTS = 1 << 20
"""Of a tensor: Triton's own limit (TRITON_MAX_TENSOR_NUMEL in triton/_utils.py)."""

MOST_DIMENSIONS = 32

_OPEN, _CLOSE = "([{<", ")]}>"


def split(text: str, *separators: str) -> list[str]:
    """At each of the separators that stands in no brackets and no quotes; pieces are stripped."""
    parts, start = [], 0
    for at, length in _outside(text, separators):
        if at >= start:
            parts.append(text[start:at].strip())
            start = at + length
    parts.append(text[start:].strip())
    return parts


def cut(text: str, separator: str) -> tuple[str, str | None]:
    """Before and after the first `separator` outside brackets; None after where there is none."""
    for at, length in _outside(text, (separator,)):
        return text[:at].strip(), text[at + length :].strip()
    return text.strip(), None


def _outside(text: str, separators: Sequence[str]) -> list[tuple[int, int]]:
    found, depth, at, quoted = [], 0, 0, False
    while at < len(text):
        letter = text[at]
        if quoted:
            if letter == "\\":
                at += 1
            elif letter == '"':
                quoted = False
        else:
            hit = next((s for s in separators if text.startswith(s, at)), None) if depth == 0 else None
            if hit is not None:
                found.append((at, len(hit)))
                at += len(hit)
                continue
            if letter == '"':
                quoted = True
            elif text.startswith("->", at):
                at += 1
            elif letter in _OPEN:
                depth += 1
            elif letter in _CLOSE:
                depth -= 1
        at += 1
    return found


def bracketed(text: str, opening: str) -> tuple[str, str, str] | None:
    """(before, inside, after) of the first top-level group that begins with `opening`, e.g. `<{`."""
    found = _outside(text, (opening,))
    if not found:
        return None
    start = found[0][0]
    depth, at, quoted = 0, start, False
    while at < len(text):
        letter = text[at]
        if quoted:
            if letter == "\\":
                at += 1
            elif letter == '"':
                quoted = False
        elif letter == '"':
            quoted = True
        elif text.startswith("->", at):
            at += 1
        elif letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
            if depth == 0:
                inside = text[start + len(opening) : at + 1 - len(opening)]
                return text[:start], inside, text[at + 1 :]
        at += 1
    raise IrError(f"brackets that do not close: {text[:60]!r}")


# --- types ------------------------------------------------------------------------------------------


def type_of(text: str) -> Type:
    text = text.strip()
    if text.startswith("tensor<") and text.endswith(">"):
        return _tensor(text[len("tensor<") : -1])
    if text.startswith("!tt.tensordesc<") and text.endswith(">"):
        return Descriptor(_block(text[len("!tt.tensordesc<") : -1]))
    if text.startswith("!tt.ptr<tensor<") and text.endswith(">"):
        return BlockPointer(_block(_pointee(text)))
    return Scalar(_element(text))


def _block(text: str) -> Tensor:
    """`16x16xf32`, or the same in `tensor<...>`, of which the sign of an integer type is of no account."""
    text = cut(text, ",")[0]
    if text.startswith("tensor<") and text.endswith(">"):
        text = text[len("tensor<") : -1]
    return _tensor(re.sub(r"\b[su]i(\d+)$", r"i\1", text))


def _tensor(text: str) -> Tensor:
    found = re.match(r"((?:\d+x)*)(.+)", text)
    assert found is not None
    shape = tuple(int(part) for part in found.group(1).split("x")[:-1])
    tensor = Tensor(shape, _element(found.group(2)))
    if len(shape) > MOST_DIMENSIONS or not 0 < tensor.numel <= MOST_ELEMENTS:
        raise IrError(f"tensor<{text[:60]}> has more than {MOST_ELEMENTS:,} elements or {MOST_DIMENSIONS} dimensions")
    return tensor


def _element(text: str) -> Element:
    if text in SCALAR_BYTES:
        return text
    if text.startswith("!tt.ptr<") and text.endswith(">"):
        to = _element(_pointee(text))
        if isinstance(to, str):
            return Pointer(to)
        if isinstance(to, Pointer):
            return Pointers(to)
    raise IrError(f"the type {text[:60]!r}, which no kernel here has")


def _pointee(text: str) -> str:
    to, space = cut(text[len("!tt.ptr<") : -1], ",")
    if space not in (None, "1"):
        raise IrError(f"a pointer to address space {space!r}: only global memory is known")
    return to


def block_pointer_of(text: str) -> Type:
    """Of tt.make_tensor_ptr: `<tensor<16x16xf32>>`, or the whole type."""
    text = text.strip()
    return BlockPointer(_block(text[1:-1])) if text.startswith("<") and text.endswith(">") else type_of(text)


def descriptor_of(text: str) -> Type:
    """Of tt.make_tensor_descriptor: `<16x16xf32>` or `<tensor<16x16xf32>>`, or the whole type."""
    text = text.strip()
    return Descriptor(_block(text[1:-1])) if text.startswith("<") and text.endswith(">") else type_of(text)


# --- attributes -------------------------------------------------------------------------------------


def attributes_of(text: str) -> dict[str, Attribute]:
    """Of what stands between the braces."""
    found: dict[str, Attribute] = {}
    for entry in filter(None, split(text, ",")):
        name, value = cut(entry, "=")
        found[name.strip('"')] = True if value is None else attribute(value)
    return found


def attribute(text: str) -> Attribute:
    """Numbers, booleans, strings, arrays; anything else is its own text."""
    text = text.strip()
    if text.startswith('"') and text.endswith('"'):
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("array<") and text.endswith(">"):
        _, _, listed = text[len("array<") : -1].partition(":")
        return tuple(attribute(part) for part in split(listed, ",") if part)
    value, _ = cut(text, ":")
    if re.fullmatch(r"-?\d+", value):
        return int(value)
    return text


def constant(text: str, element: Element) -> int | float | bool:
    """What `arith.constant` holds, for every element alike; raises IrError for different ones."""
    text = text.strip()
    if text.startswith("dense<") and text.endswith(">"):
        text = text[len("dense<") : -1].strip()
    if text in ("true", "false"):
        return text == "true"
    if element in ("f8E4M3FN", "f8E5M2", "f16", "bf16", "f32", "f64"):
        if re.fullmatch(r"0x[0-9A-Fa-f]+", text):
            return float_of_bits(int(text, 16), str(element))
        if re.fullmatch(r"-?\d+(\.\d*)?([eE][+-]?\d+)?", text):
            return float(text)
    elif re.fullmatch(r"-?\d+", text):
        return int(text)
    elif re.fullmatch(r"0x[0-9A-Fa-f]+", text):
        return int(text, 16)
    raise IrError(f"a constant of several values, or none: {text[:60]!r}")


def float_of_bits(bits: int, element: str) -> float:
    if element == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF) << 16))[0])
    if element == "f16":
        return float(struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0])
    if element == "f32":
        return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0])
    if element == "f64":
        return float(struct.unpack("<d", struct.pack("<Q", bits & (1 << 64) - 1))[0])
    # an 8-bit float is the upper half of no wider one that Python knows: spelled out
    mantissa_bits, bias = (3, 7) if element == "f8E4M3FN" else (2, 15)
    sign = -1.0 if bits & 0x80 else 1.0
    exponent, mantissa = (bits & 0x7F) >> mantissa_bits, bits & (1 << mantissa_bits) - 1
    if element == "f8E5M2" and exponent == 31:
        return sign * (float("nan") if mantissa else float("inf"))
    if element == "f8E4M3FN" and bits & 0x7F == 0x7F:
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
