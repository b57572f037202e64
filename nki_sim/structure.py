"""Whether stretches of a program wait for each other alike: what a loop must repeat besides its templates.

Every row gets a number. Where the numbers repeat with a period, so do the templates, the buffers (the same one, or a
fresh one of the same kind), the distances back to what touched them last, and where in them that was. A loop that
goes over from fresh tiles to one tile, or from one tile's end to another's start, repeats its templates only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_sim import compiled
from nki_sim.program import Operand, Program


def dependence_structure(program: Program) -> np.ndarray:
    """uint64 [instructions]. Equal numbers: the same template, waiting for the same rows before it.

    The numbers are sums of random multiples, drawn anew each time: no kernel can aim at two that only look alike.
    """
    mix = _Mix()
    rows_sum = mix(program.template_ids.astype(np.int64))
    counts = np.diff(program.operand_starts)
    if not len(program.operand_data):
        return rows_sum
    rows = np.repeat(np.arange(len(program)), counts)
    slots = np.arange(len(rows)) - program.operand_starts[rows]
    touches = _Touches(program, rows, slots)
    values = (touches.since_buffer, touches.since_place, touches.kind)
    rows, slots = rows[touches.tracked], slots[touches.tracked]
    width = int(counts.max())
    for value in values:
        np.add.at(rows_sum, rows, mix(value[touches.tracked] * width + slots))
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
    """What every operand of every row touches, one entry for each; zeros where nothing can depend on it."""

    def __init__(self, program: Program, rows: np.ndarray, slots: np.ndarray) -> None:
        operands = [operand for template in program.templates for operand in template.operands]
        bases = np.cumsum([0, *[len(template.operands) for template in program.templates]])[:-1]
        which = bases[program.template_ids[rows]] + slots
        buffers, offsets = program.operand_data[:, 0], program.operand_data[:, 1]
        written = np.zeros(len(program.allocations), np.bool_)
        written[buffers[np.array([o.access != "r" for o in operands], np.bool_)[which]]] = True
        on_chip = program.sites.each(lambda a: a.region.on_chip) == 1
        self.tracked = (written | on_chip)[buffers]
        """Whoever only reads what nobody writes waits for nobody."""
        core = compiled.functions()
        self.since_buffer = _since_last(buffers, core)
        """Operands since the same buffer was touched, 0 for the first time."""
        shapes: dict[object, int] = {}
        shape = np.array([shapes.setdefault((o.pattern, o.dtype.itemsize), len(shapes)) for o in operands], np.int64)
        item = np.array([o.dtype.itemsize for o in operands], np.int64)
        since_same = _since_last(_numbered(core, buffers, shape[which], offsets), core)
        at = offsets * item[which]
        moved = np.where(self.since_buffer > 0, at - at[np.arange(len(at)) - self.since_buffer], 0)
        self.since_place = np.where(
            _in_tiles(operands, which, shape, buffers, offsets, len(program.allocations))[buffers], since_same, moved
        )
        """In a buffer that is cut into equal tiles: operands since the same tile was touched. In another: how many
        bytes further on than the last time, which says of all its touches how they lie to each other."""
        kinds: dict[object, int] = {}
        kind = program.sites.each(lambda a: kinds.setdefault((a.region, a.shape, str(a.dtype), a.address), len(kinds)))
        self.kind = kind[buffers]


def _since_last(keys: np.ndarray, core: Any) -> np.ndarray:
    """By entry: how far back the same key was last, 0 for the first time. `core`: the compiled functions, or None."""
    if core is not None:
        numbers, first = core.numbers_of(np.array(keys, np.int64))
        since: np.ndarray = core.since_last(numbers, len(first))
        return since
    order = np.argsort(keys, kind="stable")
    since = np.zeros(len(keys), np.int64)
    again = keys[order][1:] == keys[order][:-1]
    since[order[1:][again]] = (order[1:] - order[:-1])[again]
    return since


def _numbered(core: Any, *columns: np.ndarray) -> np.ndarray:
    """A number for each distinct combination. `core` as for _since_last."""
    key = columns[0].astype(np.int64)
    for column in columns[1:]:
        if core is None:
            _, key = np.unique(key, return_inverse=True)
        else:
            key, _ = core.numbers_of(key)
        key = key.reshape(-1) * (int(column.max()) + 1) + column
    return key


def _in_tiles(
    operands: list[Operand],
    which: np.ndarray,
    shape: np.ndarray,
    buffers: np.ndarray,
    offsets: np.ndarray,
    count: int,
) -> np.ndarray:
    """By buffer: do all touches have one shape and lie on its grid, so that two are equal or have no byte in common?"""
    least, most = np.full(count, len(operands), np.int64), np.full(count, -1, np.int64)
    np.minimum.at(least, buffers, shape[which])
    np.maximum.at(most, buffers, shape[which])
    tiled = least == most
    example = {int(number): operand for number, operand in zip(shape.tolist(), operands)}
    for number, operand in example.items():
        here = (shape[which] == number) & tiled[buffers]
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
