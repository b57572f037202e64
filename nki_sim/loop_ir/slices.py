"""Accesses as views: which plain slice of a buffer an offset and a pattern are, where they are one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.tree import dense
from nki_sim.program.patterns import Pattern

Ranges = Mapping[str, tuple[int, int]]
"""By counter: its least and its greatest value."""


@dataclass(frozen=True)
class Index:
    """One dimension of a slice."""

    start: Affine
    count: int | None
    """Elements; None where the dimension is selected, and disappears."""
    step: int
    size: int
    """Of the whole dimension."""

    @property
    def is_whole(self) -> bool:
        return self.count == self.size and self.step == 1 and self.start == Affine()


def sliced(
    shape: Sequence[int], on_chip: bool, offset: Affine, pattern: Pattern, ranges: Ranges
) -> tuple[Index, ...] | None:
    """The slice of a whole buffer that is this access; None where none is."""
    strides = [stride for stride, _ in dense(shape)]
    starts = starts_of(offset, shape)
    if on_chip and len(pattern) == 2 and pattern[1] == (1, 1) and len(shape) > 1:
        for dropped in (pattern, pattern[:1]):  # `tile[:, 3]` keeps a second dimension of its own
            found = _matched(tuple(shape), strides, starts, dropped, on_chip, ranges)
            if found is not None:
                return found
        return None
    return _matched(tuple(shape), strides, starts, pattern, on_chip, ranges)


def starts_of(offset: Affine, shape: Sequence[int]) -> list[Affine]:
    """The offset as an index of each dimension; each number goes to the outermost that it has a whole stride of."""
    strides = [stride for stride, _ in dense(shape)]
    starts = [Affine() for _ in strides]
    for name, factor in ((None, offset.constant), *offset.terms):
        for at, stride in enumerate(strides):
            count = factor // stride if factor >= 0 else -(-factor // stride)
            if count:
                factor -= count * stride
                starts[at] += count if name is None else Affine(0, ((name, count),))
    return starts


def _matched(
    shape: tuple[int, ...],
    strides: Sequence[int],
    starts: Sequence[Affine],
    pattern: Pattern,
    on_chip: bool,
    ranges: Ranges,
) -> tuple[Index, ...] | None:
    """Each pair of the pattern to one dimension, in order; the others are selected."""

    def choose(at: int, pair: int) -> tuple[Index, ...] | None:
        if at == len(shape):
            return () if pair == len(pattern) else None
        low, high = starts[at].bounds(ranges)
        if low < 0 or high >= shape[at]:
            return None
        rest = len(shape) - at
        if pair < len(pattern):
            stride, count = pattern[pair]
            step = stride // strides[at] if count > 1 else 1
            fits = count == 1 or (stride % strides[at] == 0 and step >= 1)
            if fits and high + (count - 1) * step < shape[at]:
                found = choose(at + 1, pair + 1)
                if found is not None:
                    return (Index(starts[at], count, step, shape[at]), *found)
        if rest > len(pattern) - pair and not (on_chip and at == 0):
            found = choose(at + 1, pair)
            if found is not None:
                return (Index(starts[at], None, 1, shape[at]), *found)
        return None

    return choose(0, 0)
