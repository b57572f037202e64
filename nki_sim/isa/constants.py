"""Enumerations of `nki.isa`."""

from __future__ import annotations

from enum import Enum
from functools import total_ordering

from nki_sim.program.program import Engine as engine


class _Constant(Enum):
    """Members are singletons and keys of hot tables; Enum's own hash is Python code."""

    __hash__ = object.__hash__


class reduce_cmd(_Constant):
    """What an instruction does with its engine's accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(_Constant):
    """Who generates DMA descriptors."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(_Constant):
    """What an out-of-bounds index read on the device does."""

    error = 0
    skip = 1


class matmul_perf_mode(_Constant):
    none = "none"
    double_row = "double_row"


@total_ordering
class nc_version(_Constant):
    """NeuronCore generations, in order: trn1 is gen2, trn2 gen3, trn3 gen4."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: nc_version) -> bool:
        return self.value < other.value


class dma_engine(_Constant):
    dma = 1
    gpsimd_dma = 2


__all__ = ["dge_mode", "dma_engine", "engine", "matmul_perf_mode", "nc_version", "oob_mode", "reduce_cmd"]
