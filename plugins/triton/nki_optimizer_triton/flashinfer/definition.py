"""A definition of the suite: axes, tensors in and out, and a reference `run(...)` in torch, read as text.

Raises TaskInvalid, one line: which file, which field, what is read.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.tasks.reference_reader import DECLARATIONS, KNOWN_FUNCTIONS, TaskInvalid
from nki_optimizer_triton.flashinfer.fields import Fields, read_fields

FLOATING = ("float32", "float16", "bfloat16")
DTYPES = (*FLOATING, "int64", "int32", "int16", "int8", "bool")
"""Of tensors. The suite has 8- and 4-bit floating types too, whose kernels it judges by rules of their own."""

WORKLOAD = "WORKLOAD"
"""A shape constant of the reference module: which of the workloads, counted from 1."""

_TAKEN = {*KNOWN_FUNCTIONS, *DECLARATIONS, WORKLOAD}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Tensor:
    name: str
    axes: tuple[str, ...] | None
    """None for a number."""
    dtype: str


@dataclass(frozen=True)
class Definition:
    name: str
    op_type: str
    constants: tuple[tuple[str, int], ...]
    """Axes of one size, with it."""
    variables: tuple[str, ...]
    """Axes whose sizes a workload gives."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    reference: str
    """Text of a module with the function `run`."""
    where: Path

    @property
    def is_narrow(self) -> bool:
        """Are some of its tensors narrower than float32?"""
        return any(tensor.dtype in FLOATING[1:] for tensor in (*self.inputs, *self.outputs))

    def shape(self, tensor: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Of one that is no number. `sizes`: of the variable axes."""
        known = {**dict(self.constants), **sizes}
        return tuple(known[axis] for axis in tensor.axes or ())


def read_definition(path: Path) -> Definition:
    """Raises TaskInvalid."""
    document = read_fields(path)
    name, op_type = _file_name(document, "name"), _file_name(document, "op_type")
    if op_type == "sampling":
        raise document.wrong("op_type", "is 'sampling', whose outputs are drawn: such kernels are not judged here")
    constants, variables = _axes(document.inner("axes"))
    known = (*dict(constants), *variables)
    inputs = tuple(_tensor(name, fields, known) for name, fields in document.inner("inputs").each())
    outputs = tuple(_tensor(name, fields, known) for name, fields in document.inner("outputs").each())
    for kind, tensors in (("inputs", inputs), ("outputs", outputs)):
        if not any(tensor.axes is not None for tensor in tensors):
            raise document.wrong(kind, "has no tensor: a kernel reads some and writes some")
    for tensor in outputs:
        if tensor.axes is None:
            raise document.wrong(f"outputs.{tensor.name}.shape", "is null: kernels write tensors, and no numbers")
        if tensor.name in {each.name for each in inputs}:
            raise document.wrong(f"outputs.{tensor.name}", "has the name of an input")
    reference = document.text("reference")
    _check_reference(document, reference, len(inputs))
    return Definition(name, op_type, constants, variables, inputs, outputs, reference, path)


def _file_name(document: Fields, field: str) -> str:
    """It is part of paths that are written."""
    text = document.text(field)
    if not _NAME.fullmatch(text):
        raise document.wrong(field, f"is {text!r}: use letters, digits, dot, dash and underscore only")
    return text


def _axes(axes: Fields) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
    constants: list[tuple[str, int]] = []
    variables: list[str] = []
    for name, axis in axes.each():
        if not _is_plain(name) or name in _TAKEN:
            raise axes.wrong(name, "cannot be the name of an axis here: it becomes a constant of a Python module")
        if axis.one_of("type", ("const", "var")) == "const":
            constants.append((name, axis.number("value")))
        else:
            variables.append(name)
    return tuple(constants), tuple(variables)


def _is_plain(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def _tensor(name: str, fields: Fields, known: tuple[str, ...]) -> Tensor:
    if not _is_plain(name):
        raise TaskInvalid(f"{fields.where.removesuffix('.')}: {name!r} cannot be the name of a Python argument")
    dtype = fields.one_of("dtype", DTYPES)
    if "shape" not in fields.values:
        raise fields.wrong("shape", "is missing; null is for a number")
    if fields.values["shape"] is None:
        return Tensor(name, None, dtype)
    axes = fields.items("shape")
    for axis in axes:
        if axis not in known:
            raise fields.wrong("shape", f"has the axis {axis!r}, and axes are {', '.join(known) or 'none'}")
    if not axes:
        raise fields.wrong("shape", "is empty: kernels take tensors of one axis or more, and numbers as null")
    return Tensor(name, tuple(axes), dtype)


def _check_reference(document: Fields, text: str, inputs: int) -> None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise document.wrong("reference", f"is not Python{f' (its line {line})' if line else ''}: {error}") from None
    run = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run"), None)
    if run is None:
        raise document.wrong("reference", "defines no function run at its top level")
    takes = len(run.args.posonlyargs) + len(run.args.args)
    if run.args.vararg is None and not takes - len(run.args.defaults) <= inputs <= takes:
        raise document.wrong("reference", f"has a run of {takes} arguments, and there are {inputs} inputs")
