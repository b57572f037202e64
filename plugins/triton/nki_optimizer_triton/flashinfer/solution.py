"""A solution of the suite's as a kernel: its entry file, the function that is called, and its other files.

The suite calls most solutions with the outputs as last arguments; kernels are judged here by what they return. For such
a one a function is added to its entry file that allocates the outputs, as the definition has them, and returns them.
Raises TaskInvalid, one line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from accelopt_core.task import Surroundings
from infra.assembly.language_parts import GivenKernel
from infra.tasks.reference_reader import TaskInvalid
from nki_optimizer_triton.flashinfer.definition import Definition, Tensor
from nki_optimizer_triton.flashinfer.fields import Fields, read_fields

LANGUAGE = "triton"
PACKAGE = "solution"
"""By which its files are imported where it has several; the suite imports them in a package too."""


@dataclass(frozen=True)
class Solution:
    name: str
    definition: str
    entry: str
    """Path of the file."""
    function: str
    takes_outputs: bool
    """As last arguments, and returns nothing."""
    sources: tuple[tuple[str, str], ...]
    """Path and text of each file."""

    @property
    def text(self) -> str:
        """Of the entry file."""
        return dict(self.sources)[self.entry]


def read_solution(path: Path) -> Solution:
    """Raises TaskInvalid."""
    document = read_fields(path)
    spec = document.inner("spec")
    language = spec.text("language")
    if language != LANGUAGE:
        raise spec.wrong("language", f"is {language!r}, and solutions in {LANGUAGE} are read")
    entry, _, function = spec.text("entry_point").partition("::")
    if not entry.endswith(".py") or not function.isidentifier():
        raise spec.wrong("entry_point", f"is {spec.text('entry_point')!r}, and has the form FILE.py::FUNCTION")
    sources = tuple(_sources(document))
    paths = [path for path, _ in sources]
    if len(set(paths)) != len(paths):
        raise document.wrong("sources", "has two files of one path")
    if entry not in paths:
        raise spec.wrong("entry_point", f"names {entry}, and sources are {', '.join(paths) or 'none'}")
    return Solution(
        document.text("name"), document.text("definition"), entry, function,
        spec.flag("destination_passing_style", True), sources,
    )  # fmt: skip


def _sources(document: Fields) -> Iterator[tuple[str, str]]:
    for number, source in enumerate(document.items("sources")):
        fields = Fields(source if isinstance(source, dict) else {}, f"{document.where}sources[{number}].")
        path = PurePosixPath(fields.text("path"))
        if path.is_absolute() or ".." in path.parts or path.suffix != ".py":
            raise fields.wrong("path", f"is {str(path)!r}: a Python file below the solution's folder is read")
        if not all(part.isidentifier() for part in path.with_suffix("").parts):
            raise fields.wrong("path", f"is {str(path)!r}, which Python cannot import")
        yield str(path), fields.text("content")


def kernel_of(solution: Solution, definition: Definition, where: Path) -> GivenKernel:
    """`where`: its file, for messages."""
    if solution.definition != definition.name:
        raise TaskInvalid(f"{where}: it solves {solution.definition}, and {definition.where} is {definition.name}")
    text, function = solution.text, solution.function
    if solution.takes_outputs:
        text, function = _returning(solution, definition, where)
    others = tuple((f"{PACKAGE}/{path}", text) for path, text in solution.sources if path != solution.entry)
    module = ".".join((PACKAGE, *PurePosixPath(solution.entry).with_suffix("").parts)) if others else ""
    return GivenKernel(text, Surroundings(function, module, others))


def _returning(solution: Solution, definition: Definition, where: Path) -> tuple[str, str]:
    try:
        names = {node.id for node in ast.walk(ast.parse(solution.text)) if isinstance(node, ast.Name)}
        names |= {node.name for node in ast.walk(ast.parse(solution.text)) if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError, RecursionError) as error:
        raise TaskInvalid(f"{where}: {solution.entry} is not Python: {error}") from None
    function = f"{solution.function}_returning"
    tensors = {tensor.name for tensor in (*definition.inputs, *definition.outputs)}
    if clash := sorted(tensors & {"torch", solution.function}):
        raise TaskInvalid(f"{where}: {definition.name} has a tensor {clash[0]}, and the solution means another by it")
    if function in names:
        raise TaskInvalid(f"{where}: {solution.entry} uses the name {function}, which is added to it: rename it")
    given = ", ".join(tensor.name for tensor in definition.inputs)
    made = [tensor.name for tensor in definition.outputs]
    device = next(tensor.name for tensor in definition.inputs if tensor.axes is not None)
    lines = [
        f"{tensor.name} = torch.empty({_extents(tensor, definition)}, dtype=torch.{tensor.dtype}, "
        f"device={device}.device)"
        for tensor in definition.outputs
    ]
    body = "\n    ".join((*lines, f"{solution.function}({given}, {', '.join(made)})", f"return {', '.join(made)}"))
    added = f"import torch\n\n\ndef {function}({given}):\n    {body}\n"
    return f"{solution.text.rstrip()}\n\n\n{added}", function


def _extents(tensor: Tensor, definition: Definition) -> str:
    """As an expression of the inputs: what a variable axis of an output is, an input tells."""
    constants = dict(definition.constants)
    told = {
        axis: f"{given.name}.shape[{place}]"
        for given in reversed(definition.inputs)
        for place, axis in reversed(list(enumerate(given.axes or ())))
    }
    for axis in tensor.axes or ():
        if axis not in constants and axis not in told:
            raise TaskInvalid(f"{definition.where}: {tensor.name} has the axis {axis}, which no input has")
    extents = [str(constants[axis]) if axis in constants else told[axis] for axis in tensor.axes or ()]
    return f"({', '.join(extents)},)"
