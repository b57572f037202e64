"""`nl.tile_size`: the sizes a tile can have, for the generation the running kernel is traced for."""

from __future__ import annotations

from nki_sim.capacity import usable_bytes
from nki_sim.memory import MemoryRegion
from nki_sim.nki.language.objects import NKIObject
from nki_sim.session import active, target_machine

_SBUF_PARTITION_BYTES = {"trn1": 192 * 1024, "trn2": 224 * 1024, "trn3": 256 * 1024}
"""Physical SBUF per partition (architecture guides)."""


def _machine() -> str:
    tracer = active()
    return target_machine() if tracer is None else tracer.machine


class TileSize(NKIObject):
    """Sizes in elements unless the name says bytes. Sources: NKI API reference, architecture guides."""

    pmax = 128
    """Partitions of a tile."""
    psum_fmax = 512
    """Old name of psum_bank_fmax."""
    psum_bank_fmax = 512
    """float32 elements per partition of one PSUM bank."""
    psum_bank_fmax_bytes = 2048
    psum_num_banks = 8
    gemm_stationary_fmax = 128
    """Free size of nc_matmul's stationary operand."""
    gemm_moving_fmax = 512
    """Free size of nc_matmul's moving operand."""
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def sbuf_size_bytes(self) -> int:
        """All partitions together."""
        return self.pmax * _SBUF_PARTITION_BYTES[_machine()]

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Usable bytes per partition."""
        return usable_bytes(_machine(), MemoryRegion.sbuf)

    @property
    def sbuf_fmax(self) -> int:
        """Usable float32 elements per partition."""
        return self.sbuf_fmax_bytes // 4

    @property
    def total_available_sbuf_size(self) -> int:
        """Old name of sbuf_fmax_bytes: usable bytes per partition."""
        return self.sbuf_fmax_bytes


tile_size = TileSize()
