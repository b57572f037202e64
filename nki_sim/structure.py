"""Whether stretches of a program wait for each other alike: what a loop must repeat besides its templates.

Every row gets a number. Where the numbers repeat with a period, so do the templates, the buffers (the same one, or a
fresh one of the same kind), the distances back to what touched them last, and where in them that was. A loop that
goes over from fresh tiles to one tile, or from one tile's end to another's start, repeats its templates only.
"""

from __future__ import annotations

import numpy as np

from nki_sim.program import Operand, Program
from nki_sim.region_lists import numbers_of, since_last
from nki_sim.regions import numbered


def dependence_structure(program: Program) -> np.ndarray:
    """uint64 [instructions]. Equal numbers: the same template, waiting for the same rows before it.

    The numbers are sums of random multiples, drawn anew each time: no kernel can aim at two that only look alike.
    """
    mix = _Mix()
    rows_sum = mix(program.kinds)
    if not len(program.operand_data):
        return rows_sum
    touches = _Touches(program)
    width = max(len(template.operands) for template in program.templates)
    total = np.zeros(len(touches.rows), np.uint64)
    for value in (touches.since_buffer, touches.since_place, touches.kind):
        total += mix(value * width + touches.slots)
    np.add.at(rows_sum, touches.rows, total)
    return rows_sum


class _Mix:
    """Numbers to unpredictable numbers, equal ones to equal ones."""

    def __init__(self) -> None:
        self._random = np.random.default_rng()

    def __call__(self, values: np.ndarray) -> np.ndarray:
        factor, shift, again = self._random.integers(0, 1 << 63, 3, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        mixed: np.ndarray = values.astype(np.uint64) * factor + shift
        mixed ^= mixed >> np.uint64(29)
        mixed *= again
        return mixed ^ (mixed >> np.uint64(31))


class _Touches:
    """What operands touch, one entry for each that something can depend on."""

    def __init__(self, program: Program) -> None:
        operands = [operand for template in program.templates for operand in template.operands]
        which, counts = program.operand_numbers, np.diff(program.operand_starts)
        buffers = program.operand_data[:, 0]
        on_chip = program.sites.each(lambda a: a.region.on_chip) == 1
        at = np.flatnonzero((program.written | on_chip)[buffers])
        """Whoever only reads what nobody writes waits for nobody."""
        self.rows = np.repeat(np.arange(len(program)), counts)[at]
        self.slots = at - program.operand_starts[self.rows]
        which, (buffers, offsets) = which[at], program.operand_data[at].T
        before, self.since_buffer = _since_last(buffers, len(program.allocations), at)
        """Operands since the same buffer was touched, 0 for the first time."""
        shapes: dict[object, int] = {}
        shape = np.array([shapes.setdefault((o.pattern, o.dtype.itemsize), len(shapes)) for o in operands], np.int64)
        item = np.array([o.dtype.itemsize for o in operands], np.int64)
        tiles, firsts = numbers_of(numbered(numbered(buffers, shape[which]), offsets))
        _, since_same = _since_last(tiles, len(firsts), at)
        begins = offsets * item[which]
        tiled = _in_tiles(operands, which[firsts], shape, buffers[firsts], offsets[firsts], len(program.allocations))
        self.since_place = np.where(tiled[buffers], since_same, begins - begins[before])
        """In a buffer that is cut into equal tiles: operands since the same tile was touched. In another: how many
        bytes further on than the last time, which says of all its touches how they lie to each other."""
        kinds: dict[object, int] = {}
        kind = program.sites.each(lambda a: kinds.setdefault((a.region, a.shape, str(a.dtype), a.address), len(kinds)))
        self.kind = kind[buffers]


def _since_last(numbers: np.ndarray, count: int, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By entry: which had the same number last, itself for the first time; and how far back that is, 0 for the first
    time. `numbers` lie below `count`; `at`: where each entry stands among all."""
    before = np.arange(len(numbers)) - since_last(numbers, count)
    return before, at - at[before]


def _in_tiles(
    operands: list[Operand],
    which: np.ndarray,
    shape: np.ndarray,
    buffers: np.ndarray,
    offsets: np.ndarray,
    count: int,
) -> np.ndarray:
    """By buffer: do all touches have one shape and lie on its grid, so that two are equal or have no byte in common?"""
    shapes = shape[which]
    some = np.full(count, -1, np.int64)
    some[buffers] = shapes
    tiled = some >= 0
    tiled[buffers[some[buffers] != shapes]] = False
    example = {int(number): operand for number, operand in zip(shape.tolist(), operands)}
    for number, operand in example.items():
        here = np.flatnonzero((shapes == number) & tiled[buffers])
        tiled[buffers[here][~_on_grid(operand, offsets[here])]] = False
    return tiled


def _on_grid(operand: Operand, offsets: np.ndarray) -> np.ndarray:
    """Does an access start at a multiple of its own extent in every dimension that its strides span?"""
    walk = [(stride, size) for stride, size in operand.pattern if size > 1]
    strides = [stride for stride, _ in walk]
    if operand.indirection is not None or any(stride <= 0 for stride in strides):
        return np.zeros(len(offsets), np.bool_)
    if not all(big % small == 0 and big >= small * size for big, (small, size) in zip(strides, walk[1:])):
        return np.zeros(len(offsets), np.bool_)
    fits = np.ones(len(offsets), np.bool_)
    rest, extent = offsets, None
    for stride, size in walk:
        at = rest // stride
        fits &= at % size == 0
        if extent is not None:
            fits &= at + size <= extent // stride
        rest, extent = rest % stride, stride
    return fits & (rest == 0) if walk else fits
