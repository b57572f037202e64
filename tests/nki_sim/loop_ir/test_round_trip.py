"""Kernels as loop trees and as text again: the same rows, in each version of NKI that can say them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import nki_sim
from accelopt_core.judging.reference.verification import Reference
from infra.tasks.seed_index import load_seed, seed_index
from nki_sim.dtypes import as_dtype, float32, int32
from nki_sim.encoding.canonical import digest
from nki_sim.lint import VERSIONS, check_source
from nki_sim.loop_ir import expansion
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.reading import read
from nki_sim.loop_ir.source import KernelText
from nki_sim.loop_ir.spelling import NotWritable
from nki_sim.loop_ir.tree import Instruction, LoopKernel, walk
from nki_sim.loop_ir.writing import written
from nki_sim.program.program import Program
from nki_sim.tracing import marks
from nki_sim.tracing.session import TensorSpec, count_lines_of

KERNELS = Path(__file__).with_name("kernels.py")


@dataclass(frozen=True)
class Example:
    function: str
    shapes: tuple[tuple[Any, ...], ...]
    """Arguments: one call, or one for each of two shapes."""
    instructions: int
    """In the tree: what is written once."""
    since: str = "0.2"
    """The first version of NKI that can say it."""


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, float32)


def i32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, int32)


EXAMPLES = (
    Example("lazy_class", ((f32(256, 64),), (f32(512, 64),)), 5),
    Example("comprehension", ((f32(384, 64),), (f32(768, 64),)), 2),
    Example("calls", ((f32(384, 64),),), 12),
    Example("edges", ((f32(300, 64),),), 9),
    Example("groups", ((f32(8, 128, 64), f32(2, 128, 64)), (f32(16, 128, 64), f32(4, 128, 64))), 4),
    Example("constants", ((f32(128, 64),),), 7),
    Example("views", ((f32(128, 64),), (f32(128, 128),)), 7),
    Example("registers", ((f32(512, 64), i32(128, 1)),), 14),
    Example("device_loop", ((f32(512, 256),), (f32(1024, 512),)), 3),
    Example("while_loop", ((f32(128, 64), i32(1, 1)),), 7, since="0.6"),
    Example("scalars", ((f32(512, 64), i32(1, 4)),), 12, since="0.7"),
    Example("nested_arguments", (((f32(256, 64), {"bias": f32(256, 64)}),),), 4),
)


@pytest.fixture(autouse=True, scope="module")
def _nki() -> None:
    nki_sim.install()


def alone(function: str) -> str:
    """The examples' file with one of its kernels."""
    text = KERNELS.read_text()
    lines = text.splitlines()
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.decorator_list and node.name != function:
            del lines[node.decorator_list[0].lineno - 1 : node.end_lineno]
    return "\n".join(lines) + "\n"


def traced(text: str, function: str, arguments: Sequence[Any]) -> tuple[Program, LoopKernel]:
    names: dict[str, Any] = {"__name__": "kernel"}
    exec(marks.compiled(text, "kernel.py", names), names)
    program = nki_sim.trace(names[function], *arguments)
    return program, read(program)


@dataclass(frozen=True)
class Shape:
    """A kernel at one shape."""

    arguments: Sequence[Any]
    program: Program
    tree: LoopKernel


def read_at(text: str, function: str, shapes: Sequence[Sequence[Any]]) -> list[Shape]:
    """Each tree's rows are the kernel's, where what comes of an instruction is kept and where loops are too long."""
    found = [Shape(arguments, *traced(text, function, arguments)) for arguments in shapes]
    for shape in found:
        assert digest(expand(shape.tree)) == digest(shape.program)
        with patch.object(expansion, "_KEPT_PASSES", 0):
            assert digest(expand(shape.tree)) == digest(shape.program)
    return found


def check_text(text: str, function: str, shapes: Sequence[Shape], version: str) -> None:
    """What is written of the trees has the same rows at each shape, and is valid NKI of that version."""
    made = written([shape.tree for shape in shapes], KernelText(text, function), version)
    for shape in shapes:
        assert digest(traced(made, function, shape.arguments)[0]) == digest(shape.program), made
    assert [each for each in check_source(made, version) if each.severity == "error"] == [], made


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.function)
def test_kernels_as_people_write_them(example: Example) -> None:
    text = alone(example.function)
    shapes = read_at(text, example.function, example.shapes)
    found = sum(isinstance(node, Instruction) for node, _ in walk(shapes[0].tree.body))
    assert found == example.instructions
    check_text(text, example.function, shapes, VERSIONS[-1])
    check_text(text, example.function, shapes[:1], example.since)
    if example.since != VERSIONS[0]:
        before = VERSIONS[VERSIONS.index(example.since) - 1]
        with pytest.raises(NotWritable, match=example.since):
            written([shapes[0].tree], KernelText(text, example.function), before)


@pytest.mark.parametrize("seed", seed_index(), ids=lambda seed: seed.name)
def test_seeds(seed: Any) -> None:
    task = load_seed(seed.name).task()
    text = load_seed(seed.name).kernel_source
    references = [Reference(task, preset) for preset in task.presets[:2]]
    arguments = [list(map(_spec, each.kernel_arguments(each.inputs(0)))) for each in references]
    shapes = read_at(text, "kernel", arguments)
    check_text(text, "kernel", shapes, VERSIONS[-1])
    for shape in shapes:
        check_text(text, "kernel", [shape], VERSIONS[1])


def test_marks_in_neighbours(tmp_path: Path) -> None:
    """Loops of a helper in another file are loops of the tree, and nothing is named after that file's lines."""
    (tmp_path / "helpers_of_a_kernel.py").write_text(
        "import nki.isa as nisa\nimport nki.language as nl\n\n\ndef copied(x, out, size):\n"
        "    for theirs in range(x.shape[0] // size):\n"
        "        unlike = nl.ndarray((size, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)\n"
        "        nisa.dma_copy(dst=unlike, src=x[theirs * size : (theirs + 1) * size, :])\n"
        "        nisa.dma_copy(dst=out[theirs * size : (theirs + 1) * size, :], src=unlike)\n"
    )
    text = (
        "import nki\nimport nki.language as nl\nfrom helpers_of_a_kernel import copied\n\n\ndef unused(x):\n"
        "    return nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n\n\n@nki.jit\ndef kernel(x):\n"
        "    out = unused(x)\n    copied(x, out, 128)\n    return out\n"
    )
    with patch.object(sys, "path", [str(tmp_path), *sys.path]), marks.imported([tmp_path], {}), patch.dict(sys.modules):
        count_lines_of("kernel.py")
        try:
            (shape,) = read_at(text, "kernel", [[f32(1024, 64)]])
            assert [type(node).__name__ for node in shape.tree.body] == ["Allocate", "Loop"]
            check_text(text, "kernel", [shape], VERSIONS[-1])
        finally:
            count_lines_of("")
        made = written([shape.tree], KernelText(text, "kernel"))
    assert "theirs" not in made
    assert "unlike" not in made
    assert "def unused" not in made


def _spec(argument: Any) -> Any:
    return TensorSpec(argument.shape, as_dtype(argument.dtype)) if isinstance(argument, np.ndarray) else argument
