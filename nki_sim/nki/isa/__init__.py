"""`nki.isa`: one function per instruction."""

from nki_sim.isa.constants import dge_mode, dma_engine, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from nki_sim.isa.dma import dma_copy
from nki_sim.isa.tensor_engine import nc_matmul
from nki_sim.isa.vector_engine import tensor_copy

__all__ = [
    "dge_mode",
    "dma_copy",
    "dma_engine",
    "engine",
    "matmul_perf_mode",
    "nc_matmul",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    "tensor_copy",
]
