"""Instructions that write where they have yet to read.

Engines stream: they read element after element and write each result behind them, and the queues of a transfer move its
rows in any order. What comes of an instruction whose destination overlaps a source in another order is written nowhere
in AWS's documentation (its compiler has an error for an unsafe overlap, IBVF029), and the simulator, which reads all
before it writes, would flatter it. In the same order (a tile added to itself), or behind what is read (a shift to the
left), it is well defined.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from nki_sim.errors import NkiValidationError
from nki_sim.program.program import Engine, Operand, Program, Template

_MOST_BYTES = 1 << 24
"""Of one access per partition; a longer one (in HBM only) is refused where it overlaps in another order at all."""


def check_in_place(program: Program) -> None:
    """Raises NkiValidationError, with the line, for the first such instruction of one core."""
    by_template = np.argsort(program.template_ids, kind="stable")
    ends = np.cumsum(np.bincount(program.template_ids, minlength=len(program.templates)))
    for number, template in enumerate(program.templates):
        pairs = list(_pairs(template))
        if not pairs:
            continue
        first = int(ends[number - 1]) if number else 0
        starts = program.operand_starts[by_template[first : int(ends[number])]]
        for written, read in pairs:
            to, source = program.operand_data[starts + written], program.operand_data[starts + read]
            same = to[:, 0] == source[:, 0]
            if not same.any():
                continue
            w, r = template.operands[written], template.operands[read]
            places = np.stack((to[same, 1] * w.dtype.itemsize, source[same, 1] * r.dtype.itemsize), axis=1)
            per_partition = w.partition_elements * w.dtype.itemsize or np.iinfo(np.int64).max
            rows, apart = np.diff(places // per_partition, axis=1), np.diff(places % per_partition, axis=1)
            for partitions, gap in np.unique(np.concatenate((rows, apart), axis=1), axis=0).tolist():
                beside = abs(partitions) >= max(w.partitions, r.partitions)
                if not beside and _lost(w, r, gap, partitions == 0, *_moves(template)):
                    raise _refused(template, w, r)


def _moves(template: Template) -> tuple[bool, bool]:
    """Does the instruction touch elements in any order; does it write them in another than it reads them?"""
    is_transfer = template.engine is Engine.dma
    return is_transfer, is_transfer and "transpose" in template.opcode


def _pairs(template: Template) -> Iterator[tuple[int, int]]:
    """A destination and a source that the instruction walks through together, by number."""
    for written, w in enumerate(template.operands):
        if w.access == "r" or w.indirection is not None or w.free_size < 2:
            continue
        for read, r in enumerate(template.operands):
            if r.access == "r" and r.indirection is None and r.region is w.region and r.elements == w.elements:
                yield written, read


@lru_cache(maxsize=5000)
def _lost(w: Operand, r: Operand, gap: int, same_rows: bool, any_order: bool, turned: bool) -> bool:
    """Is a byte read after it was written, or, where the order is not known, at another place of the walk?

    `gap`: bytes from the beginning of what is written to that of what is read, within a partition (or in HBM).
    """
    alike = w.pattern == r.pattern and w.dtype.itemsize == r.dtype.itemsize
    if gap == 0 and same_rows and alike and not turned:
        return False
    (low_w, high_w), (low_r, high_r) = w.free_span_bytes, r.free_span_bytes
    low, high = max(low_w, low_r + gap), min(high_w, high_r + gap)
    if low >= high:
        return False
    if turned or high - low > _MOST_BYTES or w.free_size > _MOST_BYTES:
        return True
    first_written, first_read = (np.full(high - low, w.free_size, np.int64) for _ in range(2))
    last_read = np.full(high - low, -1, np.int64)
    for bytes_at, steps in _bytes(w, -low, high - low):
        np.minimum.at(first_written, bytes_at, steps)
    for bytes_at, steps in _bytes(r, gap - low, high - low):
        np.maximum.at(last_read, bytes_at, steps)
        np.minimum.at(first_read, bytes_at, steps)
    if any_order:
        touched = (first_written < w.free_size) & (last_read >= 0)
        elsewhere = (first_written != last_read) | (first_written != first_read) | (not same_rows)
        return bool((touched & elsewhere).any())
    return bool((first_written < last_read).any())


def _bytes(operand: Operand, start: int, length: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Bytes of a partition (of the buffer, in HBM) and the steps at which they are touched: one byte of each element at
    a time."""
    free = operand.pattern[1:] if operand.region.on_chip else operand.pattern
    at = np.zeros(1, np.int64)
    for stride, size in free:
        at = (at[:, None] + stride * np.arange(size, dtype=np.int64)).reshape(-1)
    at = start + at * operand.dtype.itemsize
    for byte in range(operand.dtype.itemsize):
        steps = np.flatnonzero((at + byte >= 0) & (at + byte < length))
        yield at[steps] + byte, steps


def _refused(template: Template, w: Operand, r: Operand) -> NkiValidationError:
    error = NkiValidationError(
        f"{template.opcode}: {w.role} overlaps {r.role} in another order, so that it writes what it has yet to read; "
        "what a device makes of that is not documented (IBVF029): write into another tile"
    )
    error.line = template.line
    return error
