"""Programs of one launch, or lanes of one program, that touch the same memory in an order that nobody decides.

Kept for each element: which program wrote it, and which read it. Two programs that write different values, or one that
reads what another writes, are a race: a GPU runs them in any order, and at once. Writing the same value twice is none.
A program's lanes are threads: what one stored another may load only behind a barrier (`tl.debug_barrier`). A lane is
known by its place in the tensor that is stored or loaded; tensors of other shapes are spread over threads otherwise.
Kernels that use what an atomic operation returns may wait for each other, so nothing is said of them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from nki_optimizer_triton.ir.faults import KernelFault

_NOBODY, _SEVERAL, _ATOMICALLY = -1, -2, -3
_LANES = 1 << 20
"""Elements of a tensor, at most: Triton allows no more."""

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

    def __init__(self, granule: int, programs: int) -> None:
        """`granule`: bytes of the smallest access of the kernel."""
        self._granule = granule
        self._writers: dict[int, np.ndarray] = {}
        self._readers: dict[int, np.ndarray] = {}
        self._storing: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Of each buffer: the lane of the last store, and how many barriers its program had met by then."""
        self._barriers = np.zeros(programs, np.int32)
        self._shapes: dict[tuple[int, ...], int] = {}

    def met(self, programs: np.ndarray) -> None:
        """A barrier, all lanes of each."""
        self._barriers[programs] += 1

    def lanes(self, shape: tuple[int, ...], active: np.ndarray | None) -> np.ndarray:
        """Of an access of that shape, whose first axis counts programs; those that are active, in one row."""
        kind = self._shapes.setdefault(shape[1:], len(self._shapes))
        count = int(np.prod(shape[1:], dtype=np.int64))
        lanes = np.broadcast_to((kind * _LANES + np.arange(count)).astype(np.int32).reshape(shape[1:]), shape)
        return lanes.reshape(-1) if active is None else lanes[active]

    def loaded(
        self, number: int, buffer: Place, index: np.ndarray, size: int, programs: np.ndarray, lanes: np.ndarray
    ) -> None:
        writers, readers = self._of(number, buffer)
        by, since = self._storing[number]
        for place in self._granules(index, size):
            wrote = writers[place]
            unseen = (wrote == programs) & (by[place] != lanes) & (by[place] != _SEVERAL)
            unseen &= since[place] == self._barriers[programs]
            if unseen.any():
                first = int(np.flatnonzero(unseen)[0])
                raise KernelFault(
                    f"a race: program {int(programs[first]):,} reads element {int(index[first]):,} of {buffer.name}, "
                    "which another of its lanes stored, and no barrier is between: tl.debug_barrier()"
                )
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
        lanes: np.ndarray,
        before: np.ndarray,
        values: np.ndarray,
        after: np.ndarray,
    ) -> None:
        """`before` and `after`: what lies there before and after the store; where lanes share a place, one of
        theirs."""
        writers, readers = self._of(number, buffer)
        by, since = self._storing[number]
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
            by[place] = lanes
            by[place[by[place] != lanes]] = _SEVERAL  # the same value, by all of them
            since[place] = self._barriers[programs]

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
            self._storing[number] = np.full(count, _NOBODY, np.int32), np.zeros(count, np.int32)
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
