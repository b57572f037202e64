"""What a NEFF says of itself: the names and sizes of its inputs and outputs. Standard library only: it is shipped.

A NEFF is a header and a tar archive; `sgNN/def.json` declares the variables (aws-neuron-sdk,
neuron-runtime/explore/work-with-neff-files.rst). It was made by a candidate's process: nothing is
extracted to disk, and names that could leave a folder or look like a flag are refused.
"""

from __future__ import annotations

import json
import re
import struct
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEFF_LIMIT = 4 << 30
_DEFINITION_LIMIT = 512 << 20
_HEADER_BYTES = 1024
_HEADER = struct.Struct("<5Q128sI32s16s256s")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:\-]*")


class NeffUnreadable(Exception):
    """Not a NEFF of the documented layout: the message says what was found instead."""


@dataclass(frozen=True)
class NeffTensor:
    name: str
    size_bytes: int
    var_id: int


@dataclass(frozen=True)
class NeffTensors:
    inputs: tuple[NeffTensor, ...]
    """In order of declaration (var_id)."""
    outputs: tuple[NeffTensor, ...]


def read_neff(path: Path) -> NeffTensors:
    """Inputs and outputs of a NEFF for one logical core. Raises NeffUnreadable."""
    definitions = []
    with path.open("rb") as stream:
        header = stream.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES:
            raise NeffUnreadable(f"{len(header)} bytes are too short for a NEFF's header of {_HEADER_BYTES}")
        header_bytes = _HEADER.unpack_from(header)[1]
        if not _HEADER.size <= header_bytes <= 1 << 20:
            raise NeffUnreadable(f"the header says it is {header_bytes} bytes long: not a NEFF")
        stream.seek(header_bytes)
        try:
            with tarfile.open(fileobj=stream, mode="r:*") as archive:
                for member in archive:
                    if member.isfile() and re.fullmatch(r"(\./)?([^/]+/)*sg\d+/def\.json", member.name):
                        if member.size > _DEFINITION_LIMIT:
                            raise NeffUnreadable(f"{member.name} has {member.size} bytes; at most {_DEFINITION_LIMIT}")
                        content = archive.extractfile(member)
                        assert content is not None  # it is a regular file
                        definitions.append((member.name, content.read()))
        except (tarfile.TarError, OSError, EOFError) as error:
            raise NeffUnreadable(f"what follows the header is not a tar archive: {error}") from None
    if not definitions:
        raise NeffUnreadable("it contains no sgNN/def.json")
    if len(definitions) > 1:
        raise NeffUnreadable(f"it has {len(definitions)} subgraphs; compile for one physical core (LNC 1)")
    return _tensors(*definitions[0])


def _tensors(name: str, content: bytes) -> NeffTensors:
    try:
        variables = json.loads(content)["var"]
        if not isinstance(variables, dict):
            raise TypeError("var is not an object")
        return NeffTensors(_of_type(variables, "input"), _of_type(variables, "output"))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NeffUnreadable(f"{name} is not as documented: {error!r}") from None


def _of_type(variables: dict[str, Any], kind: str) -> tuple[NeffTensor, ...]:
    found = []
    for name, variable in variables.items():
        if variable["type"] != kind:
            continue
        if not _NAME.fullmatch(name) or len(name) > 200:
            raise NeffUnreadable(f"{kind} name {name[:80]!r} could be mistaken for a flag or a path")
        found.append(NeffTensor(name, int(variable["size"]), int(variable["var_id"])))
    return tuple(sorted(found, key=lambda tensor: tensor.var_id))


def match_inputs(declared: Sequence[NeffTensor], wanted: Sequence[tuple[str, int]]) -> tuple[str | None, ...]:
    """The NEFF's name of each kernel argument; None where the compiler dropped an argument that nothing reads.

    `wanted` are pairs of the parameter's name (may be empty) and its size in bytes. Raises NeffUnreadable.
    """
    names = [name for name, _ in wanted]
    declared_names = {tensor.name for tensor in declared}
    if declared_names <= set(names) and len(set(names)) == len(names):
        return tuple(name if name in declared_names else None for name in names)
    return _match_by_position(declared, [size for _, size in wanted], "input")


def match_outputs(declared: Sequence[NeffTensor], sizes: Sequence[int]) -> tuple[str, ...]:
    """NEFF names in the order in which the kernel returns its outputs, of `sizes` bytes. Raises NeffUnreadable."""
    return _match_by_position(declared, sizes, "output")


def _match_by_position(declared: Sequence[NeffTensor], sizes: Sequence[int], kind: str) -> tuple[str, ...]:
    """By the number that ends each name (`output_0`), else by size where every size is different."""
    numbers = [re.fullmatch(r"(.*?)(\d+)", tensor.name) for tensor in declared]
    order: list[NeffTensor] = []
    if len(declared) != len(sizes):
        pass
    elif len(declared) == 1:
        return (declared[0].name,)
    elif all(numbers) and len({found.group(1) for found in numbers if found}) == 1:
        order = sorted(declared, key=lambda tensor: int(re.findall(r"\d+", tensor.name)[-1]))
        if all(tensor.size_bytes >= size for tensor, size in zip(order, sizes)):  # a variable may be padded
            return tuple(tensor.name for tensor in order)
    elif len(set(sizes)) == len(sizes):
        by_size = {tensor.size_bytes: tensor for tensor in declared}
        order = [by_size[size] for size in sizes if size in by_size]
    if [tensor.size_bytes for tensor in order] != list(sizes):
        has = ", ".join(f"{tensor.name} of {tensor.size_bytes} bytes" for tensor in declared) or "none"
        needs = ", ".join(f"{size} bytes" for size in sizes) or "none"
        raise NeffUnreadable(f"cannot tell which {kind} is which: the NEFF has {has}; the kernel has {needs}")
    return tuple(tensor.name for tensor in order)
