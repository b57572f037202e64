"""`nki.isa`: one function per instruction. What is imported here is what a kernel finds here."""

from __future__ import annotations

import difflib
from typing import Any

from nki_sim.errors import NkiValidationError, NotSupported
from nki_sim.isa.arithmetic.shared import memset, tensor_copy, tensor_scalar, tensor_tensor
from nki_sim.isa.constants import dge_mode, dma_engine, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from nki_sim.isa.dma import dma_compute, dma_copy, dma_transpose
from nki_sim.isa.gather import local_gather, nc_n_gather, nc_stream_shuffle
from nki_sim.isa.generations import (
    activate2,
    exponential,
    get_nc_sub_version,
    get_nc_version,
    nc_matmul_mx,
    quantize_mx,
    rand2,
)
from nki_sim.isa.gpsimd import affine_select, iota, tensor_partition_reduce
from nki_sim.isa.prng import dropout, rand_get_state, rand_set_state, rng, set_rng_seed
from nki_sim.isa.registers.cores import core_barrier, sendrecv
from nki_sim.isa.registers.registers import register_alloc, register_load, register_move, register_store
from nki_sim.isa.registers.scalars import NkiScalar, scalar_load, scalar_store
from nki_sim.isa.scalar_engine import activation, activation_reduce
from nki_sim.isa.scan import tensor_scalar_cumulative, tensor_tensor_scan
from nki_sim.isa.search import max8, nc_find_index8, nc_match_replace8, nonzero_with_count, sequence_bounds, topk
from nki_sim.isa.select import range_select, select_reduce, tensor_copy_predicated
from nki_sim.isa.tensor_engine import nc_matmul, nc_transpose
from nki_sim.isa.vector_engine import (
    bn_aggr,
    bn_stats,
    reciprocal,
    scalar_tensor_tensor,
    tensor_reduce,
    tensor_scalar_reduce,
)
from nki_sim.nki.isa import constants
from nki_sim.tracing.session import Instruction as NkiInstruction
from nki_sim.tracing.session import VirtualRegister

tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
sync_engine = engine.sync
unknown_engine = engine.unknown

_GONE = {
    "tensor_copy_dynamic_src": "tensor_copy(dst, src.ap(..., scalar_offset=...))",
    "tensor_copy_dynamic_dst": "tensor_copy(dst.ap(..., scalar_offset=...), src)",
    "tensor_scan": "tensor_tensor_scan(dst, data0, data1, initial, op0, op1)",
    "memset_sbuf": "memset(dst, value)",
}


def __getattr__(name: str) -> Any:
    """What is not there says why, and what to use instead."""
    if name in _GONE:
        raise NotSupported(f"nki.isa.{name} was removed from NKI: use {_GONE[name]}")
    close = difflib.get_close_matches(name, __all__, 3)
    raise NotSupported(
        f"module nki.isa has no attribute {name!r}" + (f"; is it one of {', '.join(close)}?" if close else "")
    )


_OWN = ("Any", "NotSupported", "annotations", "difflib")
__all__ = [name for name in sorted(globals()) if not name.startswith("_") and name not in _OWN]
