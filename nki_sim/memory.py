"""Buffers: where a tensor's bytes live.

Every buffer is one run of bytes. On-chip memory (SBUF, PSUM) is two-dimensional; its first tensor
dimension is the partition, so byte `p * partition_bytes + b` is byte `b` of partition `p`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

import numpy as np

from nki_sim.dtypes import DType
from nki_sim.errors import NkiValidationError

MAX_PARTITIONS = 128


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


for _region in MemoryRegion:
    _region.on_chip = _region.value in ("sbuf", "psum")


@dataclass(frozen=True)
class Allocation:
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
        return prod(self.shape[1:]) if self.region.on_chip else prod(self.shape)

    @property
    def partition_bytes(self) -> int:
        return self.partition_elements * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.partitions * self.partition_bytes

    def describe(self) -> str:
        return f"{self.name or 'tensor'}{list(self.shape)} {self.dtype} in {self.region.value} (line {self.line})"


class Storage:
    """A buffer's contents. Nothing is allocated before the first access; what was never written is NaN."""

    __slots__ = ("allocation", "on_chip", "partition_elements", "_bytes", "written")

    def __init__(self, allocation: Allocation, contents: np.ndarray | None = None) -> None:
        self.allocation = allocation
        self.on_chip = allocation.region.on_chip
        self.partition_elements = allocation.partition_elements
        self._bytes: np.ndarray | None = contents
        self.written: np.ndarray | None = None
        """PSUM only: which elements an accumulation group has written (see isa.tensor_engine)."""

    def bytes(self, about_to_overwrite: bool = False) -> np.ndarray:
        """The contents as uint8; `about_to_overwrite` skips the poison a full overwrite would erase."""
        if self._bytes is None:
            raw = np.empty(self.allocation.nbytes, np.uint8)
            if not about_to_overwrite:
                poison(raw, self.allocation.dtype)
            self._bytes = raw
        return self._bytes


INTEGER_POISON = 4
"""What AWS's simulator puts in never-written integers (SDK nki_simulator guide)."""


def poison(raw: np.ndarray, dtype: DType) -> None:
    """Fill with NaN (floats) or 4 (integers), so that reading what was never written shows."""
    view = raw.view(dtype.numpy)
    view[...] = np.nan if dtype.is_float else INTEGER_POISON % 2 if dtype == "bool" else INTEGER_POISON


def check_allocation(region: MemoryRegion, shape: tuple[int, ...], dtype: DType) -> None:
    if not shape or any(type(n) is not int or n <= 0 for n in shape):
        raise NkiValidationError(f"tensor shape {shape} must be a non-empty tuple of positive integers")
    if region.on_chip:
        if len(shape) < 2:
            raise NkiValidationError(
                f"a {region.value} tensor needs a partition and a free dimension, not shape {shape}: "
                f"use ({shape[0]}, 1) for a column or (1, {shape[0]}) for a row"
            )
        if shape[0] > MAX_PARTITIONS:
            raise NkiValidationError(
                f"a {region.value} tensor of shape {shape} has {shape[0]} partitions, more than {MAX_PARTITIONS}: "
                f"tile the first dimension"
            )
