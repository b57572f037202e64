"""`nki.isa`: one function per instruction."""

from nki_sim.isa.constants import dge_mode, dma_engine, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from nki_sim.isa.dma import dma_compute, dma_copy, dma_transpose
from nki_sim.isa.gpsimd import affine_select, iota, tensor_partition_reduce
from nki_sim.isa.scalar_engine import activation, activation_reduce
from nki_sim.isa.shared import memset, tensor_copy, tensor_scalar, tensor_tensor
from nki_sim.isa.tensor_engine import nc_matmul, nc_transpose
from nki_sim.isa.vector_engine import reciprocal, scalar_tensor_tensor, tensor_reduce, tensor_scalar_reduce

__all__ = [
    "activation",
    "activation_reduce",
    "affine_select",
    "dge_mode",
    "dma_compute",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "engine",
    "iota",
    "matmul_perf_mode",
    "memset",
    "nc_matmul",
    "nc_transpose",
    "nc_version",
    "oob_mode",
    "reciprocal",
    "reduce_cmd",
    "scalar_tensor_tensor",
    "tensor_copy",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_reduce",
    "tensor_tensor",
]
