"""TensorE: matrix multiplication into PSUM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nki_sim.errors import NkiValidationError
from nki_sim.isa import numerics
from nki_sim.isa.constants import matmul_perf_mode as _perf_mode
from nki_sim.memory import MemoryRegion
from nki_sim.opcodes import define
from nki_sim.program import Engine, Template
from nki_sim.session import Instruction, current
from nki_sim.tensor import NkiTensor

MOVING_FMAX = 512
STATIONARY_FMAX = 128
PSUM_BANK_BYTES = 2048


class NcMatmul(NamedTuple):
    is_transpose: bool
    accumulate: bool | None
    tile_position: tuple[int, ...]
    tile_size: tuple[int, ...]
    perf_mode: _perf_mode


def _check_matmul(template: Template) -> None:
    dst, stationary, moving = template.operands[:3]
    for operand in (stationary, moving):
        if operand.region is not MemoryRegion.sbuf:
            raise NkiValidationError(f"nc_matmul reads {operand.role} from SBUF, not {operand.region.value}")
    if dst.region is not MemoryRegion.psum:
        raise NkiValidationError(
            f"nc_matmul writes to PSUM, not {dst.region.value}: dst = nl.ndarray(..., buffer=nl.psum)"
        )
    if stationary.partitions != moving.partitions:
        raise NkiValidationError(
            f"nc_matmul contraction mismatch: stationary {list(stationary.shape)} is [K, M] and moving "
            f"{list(moving.shape)} is [K, N] with the same K on the partitions"
        )
    if stationary.free_size > STATIONARY_FMAX or moving.free_size > MOVING_FMAX:
        raise NkiValidationError(
            f"nc_matmul limits: M {stationary.free_size} <= {STATIONARY_FMAX}, N {moving.free_size} <= {MOVING_FMAX}"
        )
    if (dst.partitions, dst.free_size) != (stationary.free_size, moving.free_size):
        raise NkiValidationError(
            f"nc_matmul dst {list(dst.shape)} must be [M, N] = [{stationary.free_size}, {moving.free_size}]"
        )


def _compute_matmul(arrays: Sequence[np.ndarray], attrs: NcMatmul, flags: Sequence[np.ndarray | None]) -> None:
    dst, stationary, moving = arrays[:3]
    k = stationary.shape[0]
    product = numerics.read32(stationary).reshape(k, -1).T @ numerics.read32(moving).reshape(k, -1)
    product = product.reshape(dst.shape)
    written = flags[0]
    assert written is not None
    if attrs.accumulate is True or (attrs.accumulate is None and written.all()):
        dst += product
    elif attrs.accumulate is False or not written.any():
        dst[...] = product
    else:
        dst[...] = np.where(written, dst + product, product)
    written[...] = True


_NC_MATMUL = define(
    "nc_matmul", check=_check_matmul, compute=_compute_matmul, attrs_type=NcMatmul, uses_psum_flags=True
)


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: _perf_mode = _perf_mode.none,
    name: str | None = None,
) -> Instruction:
    """dst[M, N] (+)= stationary[K, M]ᵀ · moving[K, N] on TensorE."""
    attrs = NcMatmul(is_transpose, accumulate, tuple(tile_position), tuple(tile_size), perf_mode)
    return current().emit(
        _NC_MATMUL, Engine.tensor, ("dst", "stationary", "moving"), "urr", (dst, stationary, moving), attrs
    )
