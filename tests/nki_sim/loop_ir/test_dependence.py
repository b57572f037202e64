"""Whether two accesses can meet, and what an access through a copy touches: held against every element, one by one."""

from __future__ import annotations

import itertools
import random

import pytest

from nki_sim.dtypes import float32
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.composing import through
from nki_sim.loop_ir.dependence import lattices_meet
from nki_sim.loop_ir.tree import Access


def sums(pairs: list[tuple[int, int]], start: int = 0) -> set[int]:
    return {start + sum(steps) for steps in itertools.product(*(range(0, s * n, s) for s, n in pairs if s > 0))}


@pytest.mark.parametrize("seed", range(300))
def test_lattices_meet_exactly_where_they_share_an_element(seed: int) -> None:
    draw = random.Random(seed)
    rows, columns = draw.choice([4, 8]), draw.choice([6, 16, 24])
    sides = []
    for _ in range(2):
        pairs = [
            (columns * draw.choice([1, 1, 2]), draw.randint(1, rows // 2)),
            (draw.choice([1, 2, 3]), draw.randint(1, 6)),
        ]
        sides.append(pairs)
    start = draw.randrange(0, rows * columns)
    expected = bool(sums(sides[0]) & sums(sides[1], start))
    assert lattices_meet(sides[0], start, sides[1], [columns]) == expected


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
