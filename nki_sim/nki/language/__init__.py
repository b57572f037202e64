"""`nki.language`: tensors, dtypes, loops, op tokens and tile functions."""

from __future__ import annotations

from typing import Any

from nki_sim.dtypes import DType, bool_
from nki_sim.errors import NotSupported
from nki_sim.nki import dtype as _dtype
from nki_sim.nki.language import ops
from nki_sim.nki.language.creation import (
    empty_like,
    full,
    is_hbm,
    is_on_chip,
    is_psum,
    is_sbuf,
    ndarray,
    ones,
    par_dim,
    shared_constant,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from nki_sim.nki.language.grid import device_print, no_reorder, num_programs, program_id, program_ndim
from nki_sim.nki.language.loops import (
    affine_range,
    dynamic_range,
    fori_loop,
    sequential_range,
    static_range,
    while_loop,
)
from nki_sim.nki.language.objects import NKIObject
from nki_sim.nki.language.tile_size import tile_size
from nki_sim.program.memory import MemoryRegion
from nki_sim.tracing.grids import NkiBlockGrid, NkiGrid, NkiTileGrid, alloc_blocks, alloc_tiles, blocks, tiles
from nki_sim.tracing.tensor import DynamicSlice, NkiTensor
from nki_sim.tracing.tensor import DynamicSlice as ds

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
hbm = MemoryRegion.hbm
private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm

globals().update(_dtype.TYPES)
_OWN = ("Any", "NotSupported", "annotations", "creation", "grid", "loops", "objects", "ops")
__all__ = [name for name in sorted(globals()) if not name.startswith("_") and name not in _OWN]
globals().update(ops.OPS)

_TILE_FUNCTIONS = frozenset(
    {
        "load", "store", "load_transpose2d", "softmax", "rms_norm", "where", "dropout", "rand", "random_seed",
        "expand_dims", "broadcast_to", "transpose", "matmul", "gather_flattened",
    }
)  # fmt: skip
"""Functions on tiles that are not op tokens; the instruction set's package lowers them."""

_GONE = {
    "arange": "index with slices, or nl.ds(start, size)",
    "mgrid": "index with slices, or nl.ds(start, size)",
    "nc": "call kernel[lnc](...) and use nl.program_id(0)",
    "spmd_dim": "call kernel[lnc](...)",
    "device_range": "use nl.fori_loop(lower, upper, body)",
    "load_broadcast": "broadcast with a DMA of a stride-0 view, or a matmul with ones",
    "all_reduce": "collectives are in nki.collectives",
}
"""Names of earlier NKI versions, and what replaces them."""


_SAME_AS_PYTHON = {"range": range, "bool": bool_}
"""Names that cannot be bound here without hiding Python's own."""


def __getattr__(name: str) -> Any:
    if name in _SAME_AS_PYTHON:
        return _SAME_AS_PYTHON[name]
    if name in _TILE_FUNCTIONS:
        function = ops.tile_function(name)
        if function is not None:
            return function
        raise NotSupported(f"nl.{name} is not simulated: use the nki.isa instructions it stands for")
    if name in _GONE:
        raise NotSupported(f"nl.{name} is not in NKI from 0.2 on: {_GONE[name]}")
    raise NotSupported(f"module nki.language has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_TILE_FUNCTIONS, *_SAME_AS_PYTHON})
