"""The module that Triton is given: the needed functions of a file in the lines that they have there, and nothing else.

The first line imports Triton; a kernel cannot stand there, since its own file imports Triton before it. Annotations of
parameters that Triton does not read are left out; those that it reads are written anew, by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nki_optimizer_triton.program.elements import BY_LANGUAGE
from nki_optimizer_triton.source.functions import JitFunction, SourceFile, SourceRefused

HEADER = "import triton, triton.language"
_PLAIN_TYPES = {"int", "float", "bool"}
_TEXT_TYPES = {
    "i1", "u1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "fp16", "bf16", "fp32", "fp64", "int8", "int16",
    "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64", "int1",
}  # fmt: skip


def module_text(file: SourceFile, functions: Iterable[JitFunction]) -> str:
    """As many lines as the file has. Raises SourceRefused."""
    lines = file.text.split("\n")
    written = [""] * len(lines)
    for function in functions:
        node = function.node
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        if first < 2:
            raise SourceRefused(f"the kernel {function.name} begins in the first line of the file", 1)
        text = _without_annotations(file, function)
        written[node.lineno - 2] = function.decorator
        written[node.lineno - 1 : node.end_lineno] = text
    written[0] = HEADER
    return "\n".join(written)


def _without_annotations(file: SourceFile, function: JitFunction) -> list[str]:
    """The lines of a function, with annotations of its parameters as Triton reads them."""
    node = function.node
    whole = [line.encode() for line in file.text.split("\n")]
    assert node.end_lineno is not None
    given = node.args
    arguments = [*given.posonlyargs, *given.args, *([given.vararg] if given.vararg else []), *given.kwonlyargs]
    annotated = [(a.annotation, _annotation(file, a.annotation)) for a in arguments if a.annotation is not None]
    if node.returns is not None:
        annotated.append((node.returns, "None"))
    for annotation, new in sorted(annotated, key=lambda pair: -(pair[0].lineno * 100_000 + pair[0].col_offset)):
        start, end = annotation.lineno - 1, (annotation.end_lineno or annotation.lineno) - 1
        before, after = whole[start][: annotation.col_offset], whole[end][annotation.end_col_offset :]
        whole[start] = before + new.encode() + (after if start == end else b"")
        for number in range(start + 1, end + 1):
            whole[number] = after if number == end else b""
    return [line.decode() for line in whole[node.lineno - 1 : node.end_lineno]]


def _annotation(file: SourceFile, node: ast.expr) -> str:
    """What Triton makes of it, written so that it means the same; None for one that it does not read."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        said = node.value.strip()
        if "constexpr" in said:
            return "triton.language.constexpr"
        name = said.removeprefix("tl.").removeprefix("triton.language.")
        if name in BY_LANGUAGE:
            return f"triton.language.{name}"
        return repr(said) if name in _TEXT_TYPES else "None"
    dotted = file.dotted(node)
    place, _, name = dotted.rpartition(".")
    if place in ("triton.language", "triton.language.core", "tl"):
        if name in ("constexpr", "const") or name in BY_LANGUAGE:
            return f"triton.language.{name}"
    if "constexpr" in ast.unparse(node):
        return "triton.language.constexpr"
    return dotted if dotted in _PLAIN_TYPES else "None"
