"""Buffers: where a tensor's bytes live.

Every buffer is one run of bytes. On-chip memory (SBUF, PSUM) is two-dimensional; its first tensor
dimension is the partition, so byte `p * partition_bytes + b` is byte `b` of partition `p`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from enum import Enum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nki_sim.dtypes import DType
from nki_sim.errors import NkiValidationError, NotSupported
from nki_sim.machine import ISA, SIMULATED_VERSION, first_with


class MemoryRegion(Enum):
    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    register = "register"

    on_chip: bool

    def __repr__(self) -> str:
        return f"nl.{self.value}"

    __hash__ = object.__hash__  # Enum's own hash is Python code; members are singletons and keys of hot tables


for _region in MemoryRegion:
    _region.on_chip = _region.value in ("sbuf", "psum")


class Layout(NamedTuple):
    """What a (region, shape, dtype) implies; one object per combination."""

    pattern: tuple[tuple[int, int], ...]
    """The whole buffer, row-major."""
    partitions: int
    partition_elements: int
    nbytes: int
    shape: tuple[int, ...]


_LAYOUTS: dict[tuple[MemoryRegion, tuple[int, ...], DType], Layout] = {}


def layout(region: MemoryRegion, shape: tuple[int, ...], dtype: DType) -> Layout:
    """The layout of a buffer. Raises NkiValidationError when there cannot be such a buffer."""
    key = (region, shape, dtype)
    found = _LAYOUTS.get(key)
    if found is None:
        shape = _static_sizes(shape)
        check_allocation(region, shape, dtype)
        stride = prod(shape)
        pattern = []
        for n in shape:
            stride //= n
            pattern.append((stride, n))
        partitions = shape[0] if region.on_chip else 1
        found = Layout(tuple(pattern), partitions, prod(shape) // partitions, prod(shape) * dtype.itemsize, shape)
        _LAYOUTS[key] = found
    return found


def _static_sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    try:
        return tuple([operator.index(n) for n in shape])
    except TypeError:
        raise NkiValidationError(f"tensor shape {shape} must be a tuple of integers known when tracing") from None


class Allocation(NamedTuple):
    """What is known of a buffer without its contents; the program keeps these."""

    id: int
    region: MemoryRegion
    shape: tuple[int, ...]
    dtype: DType
    name: str
    line: int
    """Kernel source line of the allocation; 0 for kernel arguments."""
    allocated_at: int
    """Number of instructions issued before it."""
    address: tuple[int, ...] | None = None
    """Manual placement, when the kernel asked for one."""

    @property
    def partitions(self) -> int:
        return self.shape[0] if self.region.on_chip else 1

    @property
    def partition_elements(self) -> int:
        """Elements per partition; for HBM, all of them."""
        return layout(self.region, self.shape, self.dtype).partition_elements

    @property
    def partition_bytes(self) -> int:
        return self.partition_elements * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return layout(self.region, self.shape, self.dtype).nbytes

    def describe(self) -> str:
        return f"{self.name or 'tensor'}{list(self.shape)} {self.dtype} in {self.region.value} (line {self.line})"


class Storage:
    """A buffer's contents. Nothing is allocated before the first access; what was never written is NaN.

    `contents` given by a caller are not copied until the first write (`owned` tells).
    """

    __slots__ = (
        "allocation",
        "number",
        "region",
        "on_chip",
        "partition_elements",
        "_bytes",
        "_read_only",
        "owned",
        "written",
    )

    def __init__(
        self,
        allocation: Allocation,
        contents: np.ndarray | None = None,
        owned: bool = True,
        known: Layout | None = None,
    ) -> None:
        self.allocation = allocation
        self.number = allocation[0]
        region = self.region = allocation[1]
        self.on_chip = region is MemoryRegion.sbuf or region is MemoryRegion.psum
        if known is None:
            known = layout(allocation.region, allocation.shape, allocation.dtype)
        self.partition_elements = known.partition_elements
        self._bytes = contents
        self._read_only: np.ndarray | None = None
        self.owned = owned
        self.written: np.ndarray | None = None
        """PSUM only: what an accumulation group has written (see isa.tensor_engine), one flag for each element,
        or for each byte once views of several element sizes have been written."""

    def readable(self) -> np.ndarray:
        """The contents as uint8, which NumPy will not let anybody write through."""
        view = self._read_only
        if view is None:
            if self._bytes is None:
                self.writable()
            assert self._bytes is not None
            view = self._bytes.view()
            view.flags.writeable = False
            self._read_only = view
        return view

    def writable(self, about_to_overwrite: bool = False) -> np.ndarray:
        """The contents as uint8; `about_to_overwrite` skips the poison a full overwrite would erase."""
        if self._bytes is None:
            raw = np.empty(layout(*self.allocation[1:4]).nbytes, np.uint8)
            if not about_to_overwrite:
                poison(raw, self.allocation.dtype)
            self._bytes = raw
        elif not self.owned:
            self._bytes = self._bytes.copy()
            self._read_only = None
            self.owned = True
        return self._bytes


INTEGER_POISON = 4
"""What AWS's simulator puts in never-written integers (SDK nki_simulator guide)."""


def poison(raw: np.ndarray, dtype: DType) -> None:
    """Fill with NaN (floats) or 4 (integers), so that reading what was never written shows."""
    view = raw.view(dtype.numpy)
    view[...] = np.nan if dtype.is_float else INTEGER_POISON % 2 if dtype == "bool" else INTEGER_POISON


def check_allocation(region: MemoryRegion, shape: tuple[int, ...], dtype: DType) -> None:
    if dtype.since > SIMULATED_VERSION:
        raise NotSupported(f"dtype {dtype} needs {first_with(dtype.since)}, which this simulator does not model")
    if not shape or any(type(n) is not int or n <= 0 for n in shape):
        raise NkiValidationError(f"tensor shape {shape} must be a non-empty tuple of positive integers")
    if region.on_chip:
        if len(shape) < 2:
            raise NkiValidationError(
                f"a {region.value} tensor needs a partition and a free dimension, not shape {shape}: "
                f"use ({shape[0]}, 1) for a column or (1, {shape[0]}) for a row"
            )
        if shape[0] > ISA.partitions:
            raise NkiValidationError(
                f"a {region.value} tensor of shape {shape} has {shape[0]} partitions, more than {ISA.partitions}: "
                f"tile the first dimension"
            )
