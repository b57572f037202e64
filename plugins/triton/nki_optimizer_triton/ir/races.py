"""Programs of one launch that touch the same memory, in an order that nobody decides.

Kept for each element: which program wrote it, and which read it. Two programs that write different values, or one that
reads what another writes, are a race: a GPU runs them in any order, and at once. Writing the same value twice is none.
Kernels that use what an atomic operation returns may wait for each other, so nothing is said of them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from nki_optimizer_triton.ir.faults import KernelFault

_NOBODY, _SEVERAL, _ATOMICALLY = -1, -2, -3

MOST_BYTES = 1 << 28
"""Of a launch's buffers together; above, races are not looked for."""


class Place(Protocol):
    """A buffer, as far as it is spoken of."""

    @property
    def name(self) -> str: ...

    @property
    def contents(self) -> np.ndarray: ...


class Races:
    """Of one launch."""

    def __init__(self, granule: int) -> None:
        """`granule`: bytes of the smallest access of the kernel."""
        self._granule = granule
        self._writers: dict[int, np.ndarray] = {}
        self._readers: dict[int, np.ndarray] = {}

    def loaded(self, number: int, buffer: Place, index: np.ndarray, size: int, programs: np.ndarray) -> None:
        writers, readers = self._of(number, buffer)
        for place in self._granules(index, size):
            wrote = writers[place]
            others = (wrote != _NOBODY) & (wrote != programs)
            if others.any():
                first = int(np.flatnonzero(others)[0])
                how = "adds to atomically" if wrote[first] == _ATOMICALLY else "writes"
                raise KernelFault(
                    f"a race: program {int(programs[first]):,} reads element {int(index[first]):,} of {buffer.name}, "
                    f"which {_who(int(wrote[first]))} {how} in the same launch, in no order; use another launch"
                )
            known = readers[place]
            readers[place] = np.where((known == _NOBODY) | (known == programs), programs, _SEVERAL)

    def stored(
        self,
        number: int,
        buffer: Place,
        index: np.ndarray,
        size: int,
        programs: np.ndarray,
        before: np.ndarray,
        values: np.ndarray,
        after: np.ndarray,
    ) -> None:
        """`before` and `after`: what lies there before and after the store; where lanes share a place, one of
        theirs."""
        writers, readers = self._of(number, buffer)
        lost = _bits(after) != _bits(values)
        changed = _bits(before) != _bits(values)
        if lost.any():
            first = int(np.flatnonzero(lost)[0])
            raise KernelFault(
                f"a race: one store writes several values to element {int(index[first]):,} of {buffer.name}, and "
                "nothing says which stays"
            )
        for place in self._granules(index, size):
            wrote, read = writers[place], readers[place]
            others = changed & (wrote != _NOBODY) & (wrote != programs)
            if others.any():
                first = int(np.flatnonzero(others)[0])
                raise KernelFault(
                    f"a race: {_who(int(wrote[first]))} and program {int(programs[first]):,} write different values "
                    f"to element {int(index[first]):,} of {buffer.name}, and nothing says which stays"
                )
            others = changed & (read != _NOBODY) & (read != programs)
            if others.any():
                first = int(np.flatnonzero(others)[0])
                raise KernelFault(
                    f"a race: program {int(programs[first]):,} writes element {int(index[first]):,} of {buffer.name}, "
                    f"which {_who(int(read[first]))} reads in the same launch, in no order; use another launch"
                )
            writers[place] = programs

    def added(self, number: int, buffer: Place, index: np.ndarray, size: int, programs: np.ndarray) -> None:
        """By an atomic operation: with others of its kind that is no race."""
        writers, readers = self._of(number, buffer)
        for place in self._granules(index, size):
            wrote, read = writers[place], readers[place]
            plain = ((wrote != _NOBODY) & (wrote != _ATOMICALLY) & (wrote != programs)) | (
                (read != _NOBODY) & (read != programs)
            )
            if plain.any():
                first = int(np.flatnonzero(plain)[0])
                raise KernelFault(
                    f"a race: program {int(programs[first]):,} changes element {int(index[first]):,} of {buffer.name} "
                    "atomically, which another one reads or writes plainly in the same launch"
                )
            writers[place] = _ATOMICALLY

    def _of(self, number: int, buffer: Place) -> tuple[np.ndarray, np.ndarray]:
        if number not in self._writers:
            count = -(-buffer.contents.size // self._granule)
            self._writers[number] = np.full(count, _NOBODY, np.int32)
            self._readers[number] = np.full(count, _NOBODY, np.int32)
        return self._writers[number], self._readers[number]

    def _granules(self, index: np.ndarray, size: int) -> list[np.ndarray]:
        wide = max(1, size // self._granule)
        return [index * wide + number for number in range(wide)]


def _who(program: int) -> str:
    if program == _SEVERAL:
        return "several programs"
    return "a program" if program == _ATOMICALLY else f"program {program:,}"


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))
