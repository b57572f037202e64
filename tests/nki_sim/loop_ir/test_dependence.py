"""Accesses, sizes and forged marks of loop trees, each held against every element, value or row."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from accelopt_core.judging.reference.verification import Reference
from infra.tasks.seed_index import load_seed
from nki_sim.dtypes import float32
from nki_sim.encoding import program_file
from nki_sim.encoding.canonical import digest
from nki_sim.errors import ProgramFormatError
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.composing import through
from nki_sim.loop_ir.dependence import Pairs, lattices_meet
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.reading import NotReadable, read
from nki_sim.loop_ir.sizes import Dimension, NoForm, Sizes
from nki_sim.loop_ir.tree import Access
from nki_sim.machine import TRN2
from nki_sim.program.program import Program, Template
from nki_sim.timing.cost import cost
from tests.catalogue.test_search import BY_HELPERS, BY_INSTRUCTIONS, SHAPES, traced
from tests.rules.trees import traced as seed_traced


def sums(pairs: Pairs, start: int = 0) -> set[int]:
    return {start + sum(steps) for steps in itertools.product(*(range(0, s * n, s) for s, n in pairs if s > 0))}


@pytest.mark.parametrize("seed", range(300))
def test_lattices_meet_exactly_where_they_share_an_element(seed: int) -> None:
    draw = random.Random(seed)
    rows, columns = draw.choice([4, 8]), draw.choice([6, 16, 24])
    sides = []
    for _ in range(2):
        pairs = (
            (columns * draw.choice([1, 1, 2]), draw.randint(1, rows // 2)),
            (draw.choice([1, 2, 3]), draw.randint(1, 6)),
        )
        sides.append(pairs)
    start = draw.randrange(0, rows * columns)
    expected = bool(sums(sides[0]) & sums(sides[1], start))
    assert lattices_meet(sides[0], start, sides[1], (columns,)) == expected


@pytest.mark.parametrize("seed", range(200))
def test_an_access_through_a_copy_is_of_the_same_elements(seed: int) -> None:
    draw = random.Random(seed)
    partitions, sizes = 4, [draw.choice([2, 3, 4]) for _ in range(2)]
    row = sizes[0] * sizes[1]
    here = ((row, partitions), (sizes[1], sizes[0]), (1, sizes[1]))
    order = draw.choice([(0, 1), (1, 0)])
    there_strides = {order[0]: sizes[order[1]] * 3, order[1]: 3}
    wide = 3 * row
    there = ((wide, partitions), (there_strides[0], sizes[0]), (there_strides[1], sizes[1]))
    copy = [Access("dst", "w", 0, (), Affine(), here, float32), Access("src", "r", 1, (), Affine(7), there, float32)]
    moved = {a: b for a, b in zip(walk(copy[0]), walk(copy[1]))}
    first, second = draw.randint(1, sizes[0]), draw.randint(1, sizes[1])
    begin = draw.randint(0, sizes[0] - first) * sizes[1] + draw.randint(0, sizes[1] - second)
    shape = draw.choice([((row, partitions), (sizes[1], first), (1, second)), ((row, partitions), (1, second))])
    access = Access("data", "r", 0, (), Affine(begin), shape, float32)
    found = through(access, copy[0], copy[1], {})
    assert found is not None and found.buffer == 1
    assert walk(found) == [moved[element] for element in walk(access)]


def walk(access: Access) -> list[int]:
    return [
        access.offset.constant + sum(s * i for (s, _), i in zip(access.pattern, index))
        for index in itertools.product(*(range(n) for _, n in access.pattern))
    ]


NUMBERS = (0, 1, 2, 3, 4, 7, 8, 16, 100, 104, 128, 200, 256, 384, 512, 896, 1000, 1024, 2048, 4096)


def test_what_is_said_of_a_number_comes_to_it_at_every_shape() -> None:
    draws = random.Random(0)
    said = 0
    for _ in range(3000):
        shapes = draws.randint(1, 3)
        names = "MNK"[: draws.randint(1, 3)]
        sizes = {name: [draws.choice(NUMBERS[1:]) for _ in range(shapes)] for name in names}
        made = Sizes([Dimension("x", at, name, tuple(sizes[name])) for at, name in enumerate(names)], [("TILE", 128)])
        tile, of = draws.choice(NUMBERS[1:]), sizes[draws.choice(names)]
        wanted = draws.choice([
            [draws.choice(NUMBERS) for _ in range(shapes)], [size // tile for size in of], [size % tile for size in of],
            [min(tile, size) for size in of], [max(1, size // tile) for size in of], [size * tile for size in of],
        ])  # fmt: skip
        try:
            text = made.text(tuple(wanted), draws.choice([(), ("TILE",), tuple(names)]))
        except NoForm:
            continue
        said += 1
        for shape, value in enumerate(wanted):
            here = {"TILE": 128, **{name: values[shape] for name, values in sizes.items()}}
            assert eval(text, here) == value, (text, here)
            assert all(eval(condition, here) for condition in made.conditions), (made.conditions, here)
    assert said > 1000


def test_a_condition_that_another_one_says_too_is_left_out() -> None:
    made = Sizes([], conditions={"N % 128 == 0", "N % 256 == 0", "M % 128 == 0", "(N % 3 == 0 or N < 3)"})
    assert made.needed() == ["(N % 3 == 0 or N < 3)", "M % 128 == 0", "N % 256 == 0"]


def test_sizes_that_cannot_be_told_apart_are_held_to_their_proportion_once() -> None:
    made = Sizes([Dimension("x", 0, "N", (256, 1024)), Dimension("y", 0, "D", (512, 2048))])
    made.text((2, 8))
    made.text((1, 4))
    assert {each for each in made.conditions if "%" not in each} == {"D == N * 2"}


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
    for seed in range(60):
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
