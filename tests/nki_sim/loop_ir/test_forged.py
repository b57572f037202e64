"""What a kernel could gain by marks or strides of its own: no other rows, and no other price for one digest."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from accelopt_core.judging.reference.verification import Reference
from infra.tasks.seed_index import load_seed
from nki_sim.encoding import program_file
from nki_sim.encoding.canonical import digest
from nki_sim.errors import ProgramFormatError
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.reading import NotReadable, read
from nki_sim.machine import TRN2
from nki_sim.program.program import Program, Template
from nki_sim.timing.cost import cost
from tests.catalogue.test_search import BY_HELPERS, BY_INSTRUCTIONS, SHAPES, traced
from tests.rules.trees import traced as seed_traced


def forged(program: Program, draw: random.Random) -> np.ndarray:
    """Marks in order, of which any may be another kind, of another line, or at another place."""
    marks = program.marks.copy()
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(marks))
        change = draw.randrange(4)
        if change == 0:
            marks[at, 0] = draw.randrange(3)
        elif change == 1:
            marks[at, 1] = draw.randrange(40)
        elif change == 2:
            marks = np.delete(marks, at, 0)
        else:
            marks = np.insert(marks, at, marks[draw.randrange(len(marks))], 0)
            marks[:, 2:] = np.sort(marks[:, 2:], axis=0)
    return marks


@pytest.mark.parametrize("source", [BY_INSTRUCTIONS, BY_HELPERS], ids=["instructions", "helpers"])
def test_forged_marks_make_the_same_rows_or_no_tree(source: str) -> None:
    program = traced(source, SHAPES)
    for seed in range(150):
        other = replace(program, marks=forged(program, random.Random(seed)))
        try:
            tree = read(program_file.loads(program_file.dumps(other)))
        except NotReadable:
            continue
        assert digest(expand(tree)) == digest(program), seed


@pytest.mark.parametrize(
    "marks",
    [
        np.array([[3, 1, 0, 0]]),
        np.array([[0, 1, 0, 0], [2, 1, 10**6, 0]]),
        np.array([[0, 1, 2, 2], [2, 1, 1, 2]]),
        np.array([[0, -(2**63), 0, 0]]),
        np.zeros((2, 3), np.int64),
    ],
    ids=["no kind", "beyond the rows", "backwards", "no line", "of another width"],
)
def test_marks_that_cannot_be_are_refused(marks: np.ndarray) -> None:
    program = replace(traced(BY_INSTRUCTIONS, SHAPES), marks=marks.astype(np.int64))
    with pytest.raises(ProgramFormatError, match="marks"):
        program_file.loads(program_file.dumps(program))


def strided(template: Template, stride: int) -> Template:
    """With that stride in each dimension of one element."""
    operands = tuple(
        replace(operand, pattern=tuple((s if n > 1 else stride, n) for s, n in operand.pattern))
        for operand in template.operands
    )
    return replace(template, operands=operands)


def seed_templates(name: str) -> tuple[Template, ...]:
    """Of a seed at its small shape."""
    seed = load_seed(name)
    reference = Reference(seed.task(), seed.task().presets[0])
    return seed_traced(seed.kernel_source, reference.kernel_arguments(reference.inputs(0))).templates


@pytest.mark.parametrize("name", ["mamba", "gqa_full", "rmsnorm_matmul"])
def test_a_stride_that_no_digest_sees_has_no_price(name: str) -> None:
    templates = seed_templates(name)
    assert any(n == 1 for template in templates for operand in template.operands for _, n in operand.pattern)
    for template in templates:
        prices = [repr(cost(strided(template, stride), TRN2)) for stride in (1, 2, 128, 4096)]
        assert prices == prices[:1] * len(prices), template.describe()
