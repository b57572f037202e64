"""Kernels as loop trees and as text again: the same rows, in each version of NKI that can say them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import nki_sim
from accelopt_core.judging.verification import Reference
from infra.tasks.seed_index import load_seed, seed_index
from nki_sim.canonical import digest
from nki_sim.dtypes import as_dtype, float32, int32
from nki_sim.lint import VERSIONS, check_source
from nki_sim.loop_ir import marks
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.reading import read
from nki_sim.loop_ir.source import KernelText
from nki_sim.loop_ir.spelling import NotWritable
from nki_sim.loop_ir.tree import Instruction, LoopKernel, walk
from nki_sim.loop_ir.writing import written
from nki_sim.program import Program
from nki_sim.session import TensorSpec, Tracer

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
    Example("edges", ((f32(300, 64),),), 9),
    Example("groups", ((f32(8, 128, 64), f32(2, 128, 64)), (f32(16, 128, 64), f32(4, 128, 64))), 4),
    Example("constants", ((f32(128, 64),),), 7),
    Example("views", ((f32(128, 64),), (f32(128, 128),)), 7),
    Example("registers", ((f32(512, 64), i32(128, 1)),), 12),
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
    tracers: list[Tracer] = []
    made = Tracer.__init__

    def init(self: Tracer, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        tracers.append(self)

    with patch.object(Tracer, "__init__", init):
        program = nki_sim.trace(names[function], *arguments)
    return program, read(program, marks.Marks.of(tracers[0]))


def same_again(text: str, function: str, shapes: Sequence[Sequence[Any]], version: str) -> list[LoopKernel]:
    """The trees, of which text has the same rows at each shape."""
    programs, trees = zip(*(traced(text, function, arguments) for arguments in shapes))
    for program, tree in zip(programs, trees):
        assert digest(expand(tree)) == digest(program)
    made = written(trees, KernelText(text, function), version)
    for program, arguments in zip(programs, shapes):
        assert digest(traced(made, function, arguments)[0]) == digest(program), made
    assert [each for each in check_source(made, version) if each.severity == "error"] == [], made
    return list(trees)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.function)
def test_kernels_as_people_write_them(example: Example) -> None:
    text = alone(example.function)
    trees = same_again(text, example.function, example.shapes, VERSIONS[-1])
    found = sum(isinstance(node, Instruction) for node, _ in walk(trees[0].body))
    assert found == example.instructions
    same_again(text, example.function, example.shapes[:1], example.since)
    if example.since != VERSIONS[0]:
        before = VERSIONS[VERSIONS.index(example.since) - 1]
        with pytest.raises(NotWritable, match=example.since):
            written(trees, KernelText(text, example.function), before)


@pytest.mark.parametrize("seed", seed_index(), ids=lambda seed: seed.name)
def test_seeds(seed: Any) -> None:
    task = load_seed(seed.name).task()
    shapes = []
    for preset in task.presets[:2]:
        reference = Reference(task, preset)
        shapes.append([_spec(each) for each in reference.kernel_arguments(reference.inputs(0))])
    text = load_seed(seed.name).kernel_source
    same_again(text, "kernel", shapes, VERSIONS[-1])
    for arguments in shapes:
        same_again(text, "kernel", [arguments], "0.3")


def _spec(argument: Any) -> Any:
    return TensorSpec(argument.shape, as_dtype(argument.dtype)) if isinstance(argument, np.ndarray) else argument
