"""A program's buffers by number, kept as columns: loops make them by the hundred thousand, alike but for when.

What buffers have in common is a kind, of which there are as many as there are lines that make some.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import overload

import numpy as np

from nki_sim.program.memory import Allocation, MemoryRegion

_AT = Allocation._fields.index("allocated_at")
_IN_COMMON = itemgetter(*(at for at, name in enumerate(Allocation._fields) if name not in ("id", "allocated_at")))


@dataclass(frozen=True, eq=False)
class Allocations(Sequence[Allocation]):
    """Buffer k is kinds[kind_of[k]], made before instruction allocated_at[k]."""

    kinds: tuple[Allocation, ...]
    """All different, in the order of the first buffer of each; `id` and `allocated_at` mean nothing."""
    kind_of: np.ndarray
    """int32 [buffers]"""
    allocated_at: np.ndarray
    """int64 [buffers]"""

    @classmethod
    def of(cls, allocations: Iterable[Allocation]) -> Allocations:
        """With the place of each for its number."""
        recorded = Recorded()
        for allocation in allocations:
            recorded.append(allocation)
        return recorded.so_far()

    def __len__(self) -> int:
        return len(self.kind_of)

    @overload
    def __getitem__(self, number: int) -> Allocation: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Allocation, ...]: ...
    def __getitem__(self, number: int | slice) -> Allocation | tuple[Allocation, ...]:
        if isinstance(number, slice):
            return tuple(self[each] for each in range(*number.indices(len(self))))
        kind = self.kinds[self.kind_of[number]]
        return _numbered(kind, number % len(self), int(self.allocated_at[number]))

    def __iter__(self) -> Iterator[Allocation]:
        kinds = map(self.kinds.__getitem__, self.kind_of.tolist())
        return map(_numbered, kinds, range(len(self)), self.allocated_at.tolist())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Allocations)
            and self.kinds == other.kinds
            and np.array_equal(self.kind_of, other.kind_of)
            and np.array_equal(self.allocated_at, other.allocated_at)
        )

    __hash__ = None  # type: ignore[assignment]  # there is no use for it, and it would go over all of them

    def followed_by(self, kinds: Sequence[Allocation], kind_of: np.ndarray, allocated_at: np.ndarray) -> Allocations:
        """With more of them after the last one. `kinds` may be those of others, and alike; in the order of the first
        buffer of each."""
        every = list(self.kinds)
        numbers = {_IN_COMMON(kind): number for number, kind in enumerate(every)}
        for kind in kinds:
            if numbers.setdefault(_IN_COMMON(kind), len(every)) == len(every):
                every.append(_numbered(kind, 0, 0))
        of_kind = np.array([numbers[_IN_COMMON(kind)] for kind in kinds], np.int32)
        return Allocations(
            tuple(every),
            np.concatenate((self.kind_of, of_kind[kind_of])),
            np.concatenate((self.allocated_at, allocated_at)),
        )

    def in_region(self, region: MemoryRegion) -> list[Allocation]:
        here = np.array([kind.region is region for kind in self.kinds], np.bool_)
        return [self[number] for number in np.flatnonzero(here[self.kind_of]).tolist()] if len(here) else []


class Recorded:
    """Buffers that become more while a kernel is traced."""

    def __init__(self) -> None:
        self._kinds: list[Allocation] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        """Of the kinds, by what their buffers have in common."""
        self._kind_of, self._allocated_at = array("i"), array("q")

    def __len__(self) -> int:
        return len(self._kind_of)

    def __getitem__(self, number: int) -> Allocation:
        kind = self._kinds[self._kind_of[number]]
        return _numbered(kind, number % len(self), self._allocated_at[number])

    def append(self, allocation: Allocation) -> None:
        """One more, which knows its own number."""
        number = self._numbers.setdefault(_IN_COMMON(allocation), len(self._kinds))
        if number == len(self._kinds):
            self._kinds.append(_numbered(allocation, 0, 0))
        self._kind_of.append(number)
        self._allocated_at.append(allocation.allocated_at)

    def since(self, begin: int, end: int) -> Stretch:
        """Those from number `begin` up to `end`."""
        return Stretch(
            begin, np.array(self._kind_of[begin:end], np.intc), np.array(self._allocated_at[begin:end], np.int64)
        )

    def repeat(self, last: Stretch, rows: int, times: int) -> None:
        """So many more such stretches after the last one, each so many instructions later."""
        self._kind_of.frombytes(np.tile(last.kind_of, times).tobytes())
        later = np.arange(1, times + 1, dtype=np.int64)[:, None] * rows
        self._allocated_at.frombytes((last.allocated_at + later).tobytes())

    def forget(self, left: int) -> None:
        """All but the first so many."""
        del self._kind_of[left:], self._allocated_at[left:]
        del self._kinds[max(self._kind_of, default=-1) + 1 :]
        while len(self._numbers) > len(self._kinds):
            self._numbers.popitem()  # the last that was added

    def so_far(self) -> Allocations:
        kind_of, allocated_at = np.array(self._kind_of, np.int32), np.array(self._allocated_at, np.int64)
        return Allocations(tuple(self._kinds), kind_of, allocated_at)


@dataclass(frozen=True)
class Stretch:
    """Some buffers, one made after the other."""

    first: int
    """Number of the first."""
    kind_of: np.ndarray
    """int32 [buffers]"""
    allocated_at: np.ndarray
    """int64 [buffers]"""

    def __len__(self) -> int:
        return len(self.kind_of)

    def comes_again(self, later: Stretch, rows: int, times: int) -> bool:
        """Is `later` what is there when it was repeated so often, each time so many instructions later?"""
        return (
            self.first + times * len(self) == later.first
            and np.array_equal(self.kind_of, later.kind_of)
            and np.array_equal(self.allocated_at + times * rows, later.allocated_at)
        )


def _numbered(kind: Allocation, number: int, allocated_at: int) -> Allocation:
    return tuple.__new__(Allocation, (number, *kind[1:_AT], allocated_at, *kind[_AT + 1 :]))
