"""Global memory of an executed kernel: buffers far apart from each other, every access checked against them.

Each buffer has a terabyte of addresses to itself, so that no arithmetic on a pointer into one of them reaches another
by accident: what is out of bounds is always seen, and says of which buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nki_optimizer_triton.ir.faults import KernelFault
from nki_optimizer_triton.ir.numbers import decoded, encoded, stored
from nki_optimizer_triton.ir.races import Races
from nki_optimizer_triton.ir.types import Element, element_bytes

_SPACE_BITS = 40
_PADDING = 16
"""Bytes behind a buffer, so that its last element can be viewed as any type; no access may touch them."""


@dataclass
class Buffer:
    name: str
    """As people know it, e.g. `input 0` or `the tensor allocated in line 12`."""
    nbytes: int
    contents: np.ndarray
    """uint8, with padding."""
    views: dict[np.dtype[np.generic], np.ndarray] = field(default_factory=dict)

    def as_type(self, dtype: np.dtype[np.generic]) -> np.ndarray:
        if dtype not in self.views:
            whole = self.contents.size // dtype.itemsize * dtype.itemsize
            self.views[dtype] = self.contents[:whole].view(dtype)
        return self.views[dtype]


class Memory:
    """What a launch can reach."""

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self.names: dict[int, str] = {}
        """Of buffers, by number: what this launch's kernel calls them."""
        self.races: Races | None = None
        """Set while somebody looks for them."""

    def add(self, name: str, nbytes: int) -> np.ndarray:
        """A new buffer's bytes, which whoever runs kernels may fill and read."""
        padded = -(-nbytes // _PADDING) * _PADDING + _PADDING
        self._buffers.append(Buffer(name, nbytes, np.zeros(padded, np.uint8)))
        return self._buffers[-1].contents[:nbytes]

    def address(self, number: int) -> int:
        """In the middle of its space, so that what lies before it is seen as well."""
        return (number + 1 << _SPACE_BITS) + (1 << _SPACE_BITS - 1)

    def number(self, address: int) -> int:
        """Of the buffer in whose space an address lies."""
        return (address >> _SPACE_BITS) - 1

    # --- plain accesses -----------------------------------------------------------------------------

    def load(
        self, addresses: np.ndarray, mask: np.ndarray | None, element: Element, programs: np.ndarray
    ) -> np.ndarray:
        """One element from each address, held; anything where the mask is false. `programs`: int64, broadcastable."""
        found = np.zeros(addresses.shape, stored(element))
        for buffer, number, index, active in self._places(addresses, mask, element, "load"):
            view = buffer.as_type(stored(element))
            if self.races is not None:
                self._race_of_load(number, index, active, programs, element)
            if active is None:
                found = view[index]
            else:
                found = np.where(active, view[np.where(active, index, 0)], found)
        return decoded(found, element)

    def store(
        self, addresses: np.ndarray, values: np.ndarray, mask: np.ndarray | None, element: Element, programs: np.ndarray
    ) -> None:
        values = np.broadcast_to(encoded(values, element), addresses.shape)
        for buffer, number, index, active in self._places(addresses, mask, element, "store"):
            view = buffer.as_type(stored(element))
            where, what = (index.reshape(-1), values.reshape(-1)) if active is None else (index[active], values[active])
            if self.races is None:
                view[where] = what
                continue
            who = np.broadcast_to(programs, addresses.shape)
            who = who.reshape(-1) if active is None else who[active]
            before = view[where]
            view[where] = what
            lanes = self.races.lanes(addresses.shape, active)
            self.races.stored(number, buffer, where, what.dtype.itemsize, who, lanes, before, what, view[where])

    # --- atomics ------------------------------------------------------------------------------------

    def places(
        self, addresses: np.ndarray, mask: np.ndarray | None, element: Element, programs: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(view of the buffer, index into it, which of the flattened lanes) for an atomic operation on all of them."""
        found = []
        for buffer, number, index, active in self._places(addresses, mask, element, "atomic operation"):
            lanes = np.arange(addresses.size) if active is None else np.flatnonzero(active)
            index = index.reshape(-1)[lanes]
            if self.races is not None:
                who = np.broadcast_to(programs, addresses.shape).reshape(-1)[lanes]
                self.races.added(number, buffer, index, element_bytes(element), who)
            found.append((buffer.as_type(stored(element)), index, lanes))
        return found

    # --- checks -------------------------------------------------------------------------------------

    def _places(
        self, addresses: np.ndarray, mask: np.ndarray | None, element: Element, what: str
    ) -> list[tuple[Buffer, int, np.ndarray, np.ndarray | None]]:
        """For each buffer that is touched: it, its number, index of every lane, and which lanes those are (None: all).

        Raises KernelFault for a lane that touches none.
        """
        if mask is not None:
            mask = np.broadcast_to(mask, addresses.shape)
            if not mask.any():
                return []
            if mask.all():
                mask = None
        size = element_bytes(element)
        where = True if mask is None else mask
        low = int(np.min(addresses, initial=np.iinfo(np.int64).max, where=where))
        high = int(np.max(addresses, initial=np.iinfo(np.int64).min, where=where))
        if low >> _SPACE_BITS == high >> _SPACE_BITS:
            return [self._one_buffer(addresses, mask, low, high, size, what)]
        spaces = addresses >> _SPACE_BITS
        found = []
        for space in np.unique(spaces if mask is None else spaces[mask]):
            lanes = spaces == space if mask is None else mask & (spaces == space)
            inside = addresses[lanes]
            found.append(self._one_buffer(addresses, lanes, int(inside.min()), int(inside.max()), size, what))
        return found

    def _one_buffer(
        self, addresses: np.ndarray, mask: np.ndarray | None, low: int, high: int, size: int, what: str
    ) -> tuple[Buffer, int, np.ndarray, np.ndarray | None]:
        number = self.number(low)
        if not 0 <= number < len(self._buffers):
            raise KernelFault(f"a {what} at address {low:#x}, which belongs to no tensor")
        buffer, base = self._buffers[number], self.address(number)
        if low < base or high + size > base + buffer.nbytes:
            raise KernelFault(self._outside(number, low - base, high - base, size, what))
        offset = addresses - base
        if size > 1 and (offset & (size - 1) if mask is None else (offset & (size - 1))[mask]).any():
            raise KernelFault(f"a {what} of {size} bytes at an address that is no multiple of {size}")
        return buffer, number, offset >> (size.bit_length() - 1), mask

    def _outside(self, number: int, low: int, high: int, size: int, what: str) -> str:
        buffer = self._buffers[number]
        name = self.names.get(number, buffer.name)
        count = buffer.nbytes // size
        where = (
            f"element {low // size:,}, before its first"
            if low < 0
            else f"element {high // size:,}, and it has {count:,} of {size} bytes"
        )
        return f"out of bounds: a {what} reaches {where}, of {name}"

    def _race_of_load(
        self, number: int, index: np.ndarray, active: np.ndarray | None, programs: np.ndarray, element: Element
    ) -> None:
        assert self.races is not None
        who = np.broadcast_to(programs, index.shape)
        where, who = (index.reshape(-1), who.reshape(-1)) if active is None else (index[active], who[active])
        lanes = self.races.lanes(index.shape, active)
        self.races.loaded(number, self._buffers[number], where, element_bytes(element), who, lanes)
