"""Workloads of a definition: sizes of its variable axes, and where each input comes from. And where the data set is.

A data set is a folder with `definitions/`, `workloads/`, `solutions/`, `traces/` and what workloads point to. Its
workloads are lines of `workloads/<op_type>/<definition>.jsonl`, each a trace without solution and evaluation.
Raises TaskInvalid, one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infra.tasks.reference_reader import TaskInvalid
from nki_optimizer_triton.flashinfer.definition import FLOATING, Definition, Tensor
from nki_optimizer_triton.flashinfer.fields import Fields, read_lines
from nki_optimizer_triton.flashinfer.safetensors_file import read_tensor

MOST_STORED = 16 << 20
"""Bytes of a workload's stored inputs: they travel with the reference, with every job."""

KINDS = ("random", "scalar", "safetensors")


@dataclass(frozen=True)
class Workload:
    uuid: str
    sizes: tuple[tuple[str, int], ...]
    """Of the variable axes."""
    numbers: tuple[tuple[str, int | float | bool], ...]
    """Inputs that are one number each."""
    stored: tuple[tuple[str, np.ndarray], ...]
    """Inputs that are files'."""
    document: Mapping[str, Any]
    """As it was read: a trace names it whole."""

    def nbytes(self, definition: Definition) -> int:
        """Of all tensors in and out."""
        return sum(
            int(np.prod(definition.shape(tensor, dict(self.sizes)))) * _BYTES.get(tensor.dtype, 1)
            for tensor in (*definition.inputs, *definition.outputs)
            if tensor.axes is not None
        )


_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2}


def data_set_of(definition: Path) -> Path:
    """The folder that a definition's file lies in below `definitions/`."""
    for folder in definition.absolute().parents:
        if folder.name == "definitions":
            return folder.parent
    raise TaskInvalid(
        f"{definition}: it does not lie below a folder `definitions`: workloads are found beside that, in `workloads`"
    )


def definition_file(solution: Path, name: str) -> Path:
    """Of the definition that a solution in a data set is for."""
    for folder in solution.absolute().parents:
        if folder.name == "solutions":
            found = sorted(folder.parent.glob(f"definitions/**/{name}.json"))
            if len(found) == 1:
                return found[0]
            raise TaskInvalid(
                f"{solution}: {len(found)} definitions {name}.json below {folder.parent / 'definitions'}: name the one "
                "with --problem DEFINITION.json"
            )
    raise TaskInvalid(f"{solution}: which definition? it lies in no data set: name one with --problem DEFINITION.json")


def read_workloads(definition: Definition, wanted: Sequence[str] = ()) -> tuple[Workload, ...]:
    """Those that a task is made of, the one that is timed last.

    `wanted`: by uuid, or by how it begins, in this order. Without, the least and the largest by bytes.
    """
    folder = data_set_of(definition.where)
    path = folder / "workloads" / definition.op_type / f"{definition.name}.jsonl"
    lines = {line.text("uuid"): line for line in _workload_lines(path, definition.name)}
    if not lines:
        raise TaskInvalid(f"{path}: it has no workload of {definition.name}")
    if wanted:
        chosen = list(dict.fromkeys(_named(path, uuid, lines) for uuid in wanted))
        return tuple(_workload(definition, folder, lines[uuid]) for uuid in chosen)
    sizes = {uuid: _sizes(definition, line) for uuid, line in lines.items()}
    by_bytes = sorted(lines, key=lambda uuid: Workload(uuid, sizes[uuid], (), (), {}).nbytes(definition))
    return tuple(_workload(definition, folder, lines[uuid]) for uuid in dict.fromkeys((by_bytes[0], by_bytes[-1])))


def _workload_lines(path: Path, name: str) -> list[Fields]:
    found = []
    for line in read_lines(path):
        if line.text("definition") != name:
            raise line.wrong("definition", f"is {line.text('definition')!r} in the workloads of {name}")
        found.append(line.inner("workload"))
    return found


def _named(path: Path, uuid: str, lines: Mapping[str, Fields]) -> str:
    found = [uuid] if uuid in lines else [each for each in lines if uuid and each.startswith(uuid)]
    if len(found) == 1:
        return found[0]
    some = ", ".join(list(lines)[:6]) + (", ..." if len(lines) > 6 else "")
    many = f"{len(found)} workloads begin with {uuid!r}" if found else f"there is no workload {uuid!r}"
    raise TaskInvalid(f"{path}: {many}; there are: {some}")


def _sizes(definition: Definition, line: Fields) -> tuple[tuple[str, int], ...]:
    axes = line.inner("axes")
    for name in axes.values:
        if name not in definition.variables:
            known = ", ".join(definition.variables) or "none"
            raise axes.wrong(name, f"is no variable axis of {definition.name}; those are: {known}")
    return tuple((name, axes.number(name)) for name in definition.variables)


def _workload(definition: Definition, folder: Path, line: Fields) -> Workload:
    sizes = _sizes(definition, line)
    inputs = line.inner("inputs")
    known = {tensor.name: tensor for tensor in definition.inputs}
    numbers: list[tuple[str, int | float | bool]] = []
    stored: list[tuple[str, np.ndarray]] = []
    for name, given in inputs.each():
        if name not in known:
            raise inputs.wrong(name, f"is no input of {definition.name}; those are: {', '.join(known)}")
        kind = given.one_of("type", KINDS)
        if kind == "scalar":
            numbers.append((name, _number(given, known[name])))
        elif kind == "safetensors":
            stored.append((name, _stored(given, known[name], definition, dict(sizes), folder)))
    total = sum(array.nbytes for _, array in stored)
    if total > MOST_STORED:
        raise line.wrong(
            "inputs", f"takes {total >> 20:,} MiB from files, and at most {MOST_STORED >> 20} travel with a reference"
        )
    return Workload(line.text("uuid"), sizes, tuple(numbers), tuple(stored), line.values)


def _number(given: Fields, tensor: Tensor) -> int | float | bool:
    value = given.values.get("value")
    if tensor.axes is not None:
        raise given.wrong("type", f"is scalar, and {tensor.name} is a tensor")
    kinds = (bool,) if tensor.dtype == "bool" else (int, float) if tensor.dtype in FLOATING else (int,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise given.wrong("value", f"is {value!r}, and {tensor.name} is of {tensor.dtype}")
    return value


def _stored(given: Fields, tensor: Tensor, definition: Definition, sizes: dict[str, int], folder: Path) -> np.ndarray:
    path = _inside(given, folder)
    if tensor.axes is None:
        raise given.wrong("type", f"is safetensors, and {tensor.name} is a number")
    array = read_tensor(path, given.text("tensor_key"))
    shape = definition.shape(tensor, sizes)
    if array.shape != shape or array.dtype.name != tensor.dtype:
        held = f"holds {list(array.shape)} of {array.dtype.name}"
        raise given.wrong("path", f"{held}, and {tensor.name} is {list(shape)} of {tensor.dtype}")
    return array


def _inside(given: Fields, folder: Path) -> Path:
    """A workload may be anybody's: it names no file outside of its data set, by whatever link."""
    said = given.text("path")
    path, root = (folder / said).resolve(), folder.resolve()
    if Path(said).is_absolute() or ".." in Path(said).parts or root not in path.parents:
        raise given.wrong("path", f"is {said!r}, outside of the data set {folder}: files of a workload lie in it")
    return path
