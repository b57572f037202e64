"""`nl.tile_size`: the sizes a tile can have, on the machine the running kernel is traced for."""

from __future__ import annotations

from nki_sim.dtypes import float32
from nki_sim.machine import ISA, Machine, machine
from nki_sim.nki.language.objects import NKIObject
from nki_sim.tracing.session import active, target_machine


class TileSize(NKIObject):
    """Sizes in elements unless the name says bytes, of one machine or (None) of the one the kernel is traced for."""

    pmax = ISA.partitions
    """Partitions of a tile."""
    psum_bank_fmax = ISA.psum_bank_bytes // float32.itemsize
    """float32 elements per partition of one PSUM bank."""
    psum_fmax = psum_bank_fmax
    """Old name of psum_bank_fmax."""
    psum_bank_fmax_bytes = ISA.psum_bank_bytes
    psum_num_banks = ISA.psum_banks
    gemm_stationary_fmax = ISA.stationary_fmax
    """Free size of nc_matmul's stationary operand."""
    gemm_moving_fmax = ISA.moving_fmax
    """Free size of nc_matmul's moving operand."""
    bn_stats_fmax = ISA.bn_stats_fmax
    psum_min_align = ISA.psum_align_bytes
    sbuf_min_align = ISA.sbuf_align_bytes

    def __init__(self, of: Machine | None = None) -> None:
        super().__init__()
        self._of = of

    def _machine(self) -> Machine:
        if self._of is not None:
            return self._of
        tracer = active()
        return machine(target_machine() if tracer is None else tracer.machine)

    @property
    def sbuf_size_bytes(self) -> int:
        """All partitions together."""
        return self.pmax * self._machine().sbuf_physical_partition_bytes

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Usable bytes per partition."""
        return self._machine().sbuf_partition_bytes

    @property
    def sbuf_fmax(self) -> int:
        """Usable float32 elements per partition."""
        return self.sbuf_fmax_bytes // float32.itemsize

    @property
    def total_available_sbuf_size(self) -> int:
        """Old name of sbuf_fmax_bytes: usable bytes per partition."""
        return self.sbuf_fmax_bytes


tile_size = TileSize()
