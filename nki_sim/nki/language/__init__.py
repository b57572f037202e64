"""`nki.language`: tensors, dtypes, loops and op tokens."""

from __future__ import annotations

from typing import Any

from nki_sim.dtypes import (
    as_dtype,
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int16,
    int32,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from nki_sim.memory import MemoryRegion
from nki_sim.session import current
from nki_sim.tensor import DynamicSlice, NkiTensor

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
hbm = MemoryRegion.hbm
private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm
ds = DynamicSlice


def ndarray(
    shape: tuple[int, ...],
    dtype: Any,
    buffer: MemoryRegion = sbuf,
    name: str = "",
    address: tuple[int, ...] | None = None,
) -> NkiTensor:
    """A new tensor, not initialised. `shape[0]` is the partition dimension on chip."""
    return current().allocate(shape, as_dtype(dtype), buffer, name, address=address)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    return range(start) if stop is None else range(start, stop, step)


sequential_range = static_range = affine_range
