"""New tensors."""

from __future__ import annotations

import os
from math import prod
from typing import Any

import numpy as np

from nki_sim.dtypes import as_dtype, uint8
from nki_sim.errors import NkiValidationError
from nki_sim.isa import dma
from nki_sim.isa.arithmetic import shared
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.tracing.session import current
from nki_sim.tracing.tensor import NkiTensor

_FILL_COLUMNS = 2048
"""Elements per partition of the SBUF tile that fills an HBM tensor."""


def ndarray(
    shape: tuple[int, ...],
    dtype: Any,
    buffer: Any = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, ...] | None = None,
) -> NkiTensor:
    """A new tensor, not initialised. `shape[0]` is the partition dimension on chip (at most 128).

    A tensor allocated inside a loop is a fresh buffer in every iteration. Reading what was never
    written gives NaN (integers: 4). `address` is (partition, byte in the partition).
    """
    if not isinstance(buffer, MemoryRegion) or buffer is MemoryRegion.register:
        raise NkiValidationError(f"buffer={buffer!r}: one of nl.sbuf, nl.psum, nl.hbm, nl.private_hbm, nl.shared_hbm")
    placed = None if address is None else tuple(int(n) for n in address)
    return current().allocate(shape, as_dtype(dtype), buffer, name or "", address=placed)


def par_dim(size: int) -> int:
    """The same number; NKI 0.2's mark for a tensor's partition dimension, which is always the first."""
    return size


def full(
    shape: tuple[int, ...], fill_value: Any, dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """A new tensor filled with `fill_value`: a memset on chip; through an SBUF tile and DMA in HBM."""
    tensor = ndarray(shape, dtype, buffer, name)
    if tensor.storage.on_chip:
        shared.memset(dst=tensor, value=fill_value)
        return tensor
    total = prod(tensor.shape)
    columns = next(n for n in range(min(total, _FILL_COLUMNS), 0, -1) if total % n == 0)
    rows = total // columns
    tile = ndarray((min(rows, ISA.partitions), columns), dtype)
    shared.memset(dst=tile, value=fill_value)
    flat = tensor.reshape((rows, columns))
    for start in range(0, rows, ISA.partitions):
        count = min(ISA.partitions, rows - start)
        dma.dma_copy(dst=flat[start : start + count, :], src=tile[0:count, :])
    return tensor


def zeros(shape: tuple[int, ...], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: tuple[int, ...], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Zeros in x's shape; dtype and buffer are x's unless given."""
    return full(x.shape, 0, dtype or x.dtype, buffer or x.buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Not initialised, in x's shape; dtype and buffer are x's unless given."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def shared_constant(constant: Any) -> NkiTensor:
    """A shared_hbm tensor with contents known when the kernel is traced: an array, whose element type it has, or the
    path of a .npy file."""
    if isinstance(constant, (str, os.PathLike)):
        constant = np.load(constant, allow_pickle=False)
    values = np.asarray(constant)
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    elif values.dtype == np.int64:
        values = values.astype(np.int32)
    values = values.reshape(values.shape or (1,))
    tracer = current()
    key = ("constant", values.dtype.str, values.dtype.name, values.shape, values.tobytes())
    if key not in tracer.cache:
        tensor = tracer.allocate(values.shape, as_dtype(values.dtype), MemoryRegion.shared_hbm, "constant", values)
        tracer.constants[tensor.storage.allocation.id] = np.array(values)
        tracer.cache[key] = tensor
    return tracer.cache[key]


def shared_identity_matrix(n: int, dtype: Any = uint8, dst: NkiTensor | None = None) -> NkiTensor:
    """An n by n identity matrix in SBUF (n at most 128), loaded from a constant in HBM."""
    constant = shared_constant(np.eye(n).astype(as_dtype(dtype).numpy))
    tile = ndarray((n, n), dtype) if dst is None else dst
    dma.dma_copy(dst=tile, src=constant)
    return tile


def is_hbm(buffer: Any) -> bool:
    return buffer in (MemoryRegion.hbm, MemoryRegion.private_hbm, MemoryRegion.shared_hbm)


def is_sbuf(buffer: Any) -> bool:
    return buffer is MemoryRegion.sbuf


def is_psum(buffer: Any) -> bool:
    return buffer is MemoryRegion.psum


def is_on_chip(buffer: Any) -> bool:
    return is_sbuf(buffer) or is_psum(buffer)
