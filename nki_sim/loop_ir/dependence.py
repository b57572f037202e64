"""Which accesses touch the same elements: the one question by which every rule's legality is decided.

The answer errs on one side: where it is not shown that two accesses keep apart, they meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

import numpy as np

from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.reading import IMPLICIT
from nki_sim.loop_ir.tree import Access, Allocate, Buffer, DeviceLoop, Instruction, Loop, LoopKernel, Node, dense, walk
from nki_sim.program.patterns import Pattern

_MOST_ENUMERATED = 1 << 20
"""Elements of two accesses that are compared one by one, where nothing shorter tells them apart."""


@dataclass(frozen=True)
class Use:
    """An access in its place."""

    access: Access
    node: Instruction
    around: tuple[Loop, ...]
    """Outermost first, from the kernel's top."""

    @property
    def writes(self) -> bool:
        return self.access.access != "r"


def uses(body: Sequence[Node], around: tuple[Loop, ...] = ()) -> Iterator[Use]:
    """Every access in program order."""
    for node, loops in walk(tuple(body), around):
        if isinstance(node, Instruction):
            for access in node.operands:
                yield Use(access, node, loops)


Apart = Sequence[tuple[Loop, int]]
"""Loops around both of two uses, outermost first, of which the second is in a later pass (1) or an earlier one (-1)."""


def meet(one: Use, other: Use, kernel: LoopKernel, fixed: Sequence[Loop], apart: Apart = ()) -> bool:
    """Can both touch one element, in one pass of the loops `fixed`, which are around both?"""
    a, b = one.access, other.access
    if a.buffer != b.buffer:
        return False
    if a.role in IMPLICIT and a.access == b.access == "w":
        return False  # what an engine's registers hold matters to whoever reads them
    ranges = ranges_of((*one.around, *other.around))
    same = {loop.variable for loop in fixed}
    moved: dict[str, Affine] = {}
    for number, (loop, sign) in enumerate(apart):
        if not loop.extent.is_constant:
            return True
        if loop.extent.constant < 2:
            return False
        same.add(loop.variable)
        by = f"{_LATER}{number}"
        same.add(by)
        moved[loop.variable] = Affine.of(0, {loop.variable: 1, by: sign})
        ranges[by] = (1, loop.extent.constant - 1)
    b = b.substitute(moved)
    everywhere = {**ranges, **{name + _OTHERS: value for name, value in ranges.items()}}
    for mine, theirs in zip(a.tile, b.tile):
        if _never_zero(mine - _other(theirs, same), everywhere):
            return False
    if a.indirection is not None or b.indirection is not None:
        return True
    return _overlap(a, b, kernel.buffers[a.buffer], same, everywhere)


_LATER = "later"
"""Begins the name of by how many passes the second access is later."""
_OTHERS = "'"


def _other(form: Affine, same: Set[str]) -> Affine:
    """With counters of its own for loops that need not be in one pass."""
    return Affine.of(form.constant, {n if n in same else n + _OTHERS: f for n, f in form.terms})


def ranges_of(loops: Sequence[Loop]) -> dict[str, tuple[int, int]]:
    """By counter: its least and its greatest value. Of loops within each other, outermost first."""
    ranges: dict[str, tuple[int, int]] = {}
    for loop in loops:
        if loop.variable not in ranges:
            low, high = loop.start.bounds(ranges)
            _, most = (loop.start + loop.extent).bounds(ranges)
            ranges[loop.variable] = (low, max(high, most - 1))
    return ranges


def _never_zero(form: Affine, ranges: Mapping[str, tuple[int, int]]) -> bool:
    low, high = form.bounds(ranges)
    if low > 0 or high < 0:
        return True
    step = gcd(*(factor for _, factor in form.terms)) if form.terms else 0
    return step > 1 and form.constant % step != 0


def _overlap(a: Access, b: Access, buffer: Buffer, same: Set[str], ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Of direct accesses to one buffer."""
    scale = gcd(a.dtype.itemsize, b.dtype.itemsize)
    wide_a, wide_b = a.dtype.itemsize // scale, b.dtype.itemsize // scale
    difference = _other(b.offset, same) * wide_b - a.offset * wide_a
    mine = [(stride * wide_a, count) for stride, count in a.pattern] + ([(1, wide_a)] if wide_a > 1 else [])
    theirs = [(stride * wide_b, count) for stride, count in b.pattern] + ([(1, wide_b)] if wide_b > 1 else [])
    start = difference.constant
    for name, factor in difference.terms:
        low, high = ranges[name]
        start += factor * low
        theirs.append((factor, high - low + 1))
    item = buffer.dtype.itemsize
    units = [prod(buffer.shape[at + 1 :]) * item // scale for at in range(len(buffer.shape))]
    return lattices_meet(tuple(mine), start, tuple(theirs), tuple(unit for unit in units if unit > 1))


Pairs = tuple[tuple[int, int], ...]


@lru_cache(1 << 14)
def lattices_meet(one: Pairs, start: int, other: Pairs, units: tuple[int, ...]) -> bool:
    """Is a sum of `one` equal to `start` plus a sum of `other`? Each is of pairs (stride, count): stride times 0 up
    to below count. `units`: sizes of a memory's dimensions, largest first, by which the sums may come apart.
    """
    one, other = (tuple(p for p in pairs if p[1] > 1 and p[0]) for pairs in (one, other))
    low = sum(min(0, s * (n - 1)) for s, n in one), start + sum(min(0, s * (n - 1)) for s, n in other)
    high = sum(max(0, s * (n - 1)) for s, n in one), start + sum(max(0, s * (n - 1)) for s, n in other)
    if high[0] < low[1] or high[1] < low[0]:
        return False
    step = gcd(*(s for s, _ in (*one, *other)), 0)
    if step == 0:
        return start == 0
    if start % step:
        return False
    for at, unit in enumerate(units):
        parts = _parts(one, start, other, unit)
        if parts is not None:
            outer, inner = parts
            return lattices_meet(*outer, ()) and lattices_meet(*inner, units[at + 1 :])
    if prod(n for _, n in one) + prod(n for _, n in other) > _MOST_ENUMERATED:
        return True
    return bool(np.intersect1d(_sums(one, 0), _sums(other, start)).size)


_Question = tuple[Pairs, int, Pairs]


def _parts(one: Pairs, start: int, other: Pairs, unit: int) -> tuple[_Question, _Question] | None:
    """The question of whole units, and of what lies within one; None where a sum can go over from one to the next."""
    split = [[tuple(p for p in pairs if bool(p[0] % unit) is part) for part in (False, True)] for pairs in (one, other)]
    base = start - start % unit
    for (_, small), first in zip(split, (0, start - base)):
        low = first + sum(min(0, s * (n - 1)) for s, n in small)
        high = first + sum(max(0, s * (n - 1)) for s, n in small)
        if low < 0 or high >= unit:
            return None
    outer = [tuple((s // unit, n) for s, n in big) for big, _ in split]
    return (outer[0], base // unit, outer[1]), (split[0][1], start - base, split[1][1])


def _sums(pairs: Pairs, start: int) -> np.ndarray:
    values = np.array([start], np.int64)
    for stride, count in pairs:
        values = (values[:, None] + stride * np.arange(count)).ravel()
    return np.unique(values)


# --- what rules ask ------------------------------------------------------------------------------------------


def conflict(
    first: Sequence[Node], second: Sequence[Node], kernel: LoopKernel, around: tuple[Loop, ...], apart: Apart = ()
) -> Use | None:
    """A use in `second` that has to come after one in `first`: they touch an element, and one writes it.

    `around`: the loops around both, in whose one pass both are, but for those in `apart`. A device loop or a barrier
    conflicts with everything.
    """
    mine = list(uses(first, around))
    theirs = list(uses(second, around))
    for nodes in (first, second):
        if any(isinstance(node, DeviceLoop) or _is_barrier(node) for node, _ in walk(tuple(nodes))):
            return next(iter(theirs or mine), None)
    moving = {loop.variable for loop, _ in apart}
    fixed = tuple(loop for loop in around if loop.variable not in moving)
    by_buffer: dict[int, list[Use]] = {}
    for use in mine:
        by_buffer.setdefault(use.access.buffer, []).append(use)
    for use in theirs:
        for before in by_buffer.get(use.access.buffer, ()):
            if (use.writes or before.writes) and meet(before, use, kernel, fixed, apart):
                return use
    return None


def _is_barrier(node: Node) -> bool:
    return isinstance(node, Instruction) and (
        node.opcode in ("core_barrier", "sendrecv") or node.opcode.startswith(("rand_", "set_rng", "rng", "dropout"))
    )


def allocated_in(body: Sequence[Node]) -> frozenset[int]:
    return frozenset(node.buffer for node, _ in walk(tuple(body)) if isinstance(node, Allocate))


def covers(writer: Access, buffer: Buffer) -> bool:
    """Does it write every element of the buffer?"""
    if writer.indirection is not None or writer.offset != Affine() or writer.dtype != buffer.dtype:
        return False
    steps = [sorted(pair for pair in pattern if pair[1] > 1) for pattern in (writer.pattern, dense(buffer.shape))]
    return steps[0] == steps[1] or _is_dense(writer.pattern, prod(buffer.shape))


def _is_dense(pattern: Pattern, elements: int) -> bool:
    run = 1
    for stride, count in sorted(pair for pair in pattern if pair[1] > 1):
        if stride != run:
            return False
        run *= count
    return run == elements
