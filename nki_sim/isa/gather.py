"""Moving elements between partitions of a quadrant, or by index within partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nki_sim import dtypes
from nki_sim.contract import rules
from nki_sim.contract.contracts import ON_CHIP, SBUF, integer, listed, reads, writes
from nki_sim.contract.opcodes import define
from nki_sim.errors import NkiValidationError, OutOfBounds
from nki_sim.isa.arithmetic import ops
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor

QUADRANT = ISA.quadrant_partitions
"""What one shuffle works within."""
KEEP = 255
"""Mask value that leaves a partition of dst as it is."""

# --- nc_stream_shuffle ----------------------------------------------------------------------------


class StreamShuffle(NamedTuple):
    mask: tuple[int, ...]


def _sources(mask: Sequence[int], partitions: int) -> list[int]:
    """Source partition of each destination partition, KEEP where there is none."""
    return [KEEP if mask[p % QUADRANT] == KEEP else p - p % QUADRANT + mask[p % QUADRANT] for p in range(partitions)]


def _check_shuffle(template: Template) -> None:
    mask = template.attrs.mask
    dst, src = rules.get(template, "dst"), rules.get(template, "src")
    if len(mask) != QUADRANT or any(not (0 <= m < QUADRANT or m == KEEP) for m in mask):
        raise NkiValidationError(
            f"nc_stream_shuffle: shuffle_mask must hold {QUADRANT} numbers from 0 to {QUADRANT - 1}, or {KEEP} to "
            f"keep, got {len(mask)}: {list(mask)}"
        )
    for operand in (dst, src):
        if not operand.region.on_chip:
            raise NkiValidationError(f"nc_stream_shuffle: {operand.role} must be in SBUF or PSUM")
    rules.engine(template, (Engine.vector,))
    rules.same_dtype(template, src, dst)
    if src.free_size != dst.free_size:
        raise NkiValidationError(
            f"nc_stream_shuffle: src {list(src.shape)} and dst {list(dst.shape)} differ in elements per partition"
        )
    active = -(-max(src.partitions, dst.partitions) // QUADRANT) * QUADRANT
    allowed = rules.start_partitions(active)
    for operand in (dst, src):
        if operand.partition_start not in allowed:
            raise NkiValidationError(
                f"nc_stream_shuffle: {operand.role} {list(operand.shape)} starts at partition "
                f"{operand.partition_start}; {active} active partitions must start at {' or '.join(map(str, allowed))}"
            )
    if dst.partitions > ISA.partitions:
        rules.partitions(template, dst)
    for p, source in enumerate(_sources(mask, dst.partitions)):
        if source != KEEP and source >= src.partitions:
            raise NkiValidationError(
                f"nc_stream_shuffle: shuffle_mask sends partition {source} to partition {p} of dst {list(dst.shape)}, "
                f"but src {list(src.shape)} has {src.partitions}"
            )


def _compute_shuffle(arrays: Sequence[np.ndarray], attrs: StreamShuffle) -> None:
    dst, src = arrays[0], arrays[1]
    sources = np.array(_sources(attrs.mask, dst.shape[0]))
    moved = np.flatnonzero(sources != KEEP)
    dst[moved] = src[sources[moved]].reshape((moved.size, *dst.shape[1:]))


_SHUFFLE = define(
    "nc_stream_shuffle",
    writes("dst", ON_CHIP, keeps=lambda attrs: KEEP in attrs.mask),
    reads("src", ON_CHIP),
    check=_check_shuffle,
    compute=_compute_shuffle,
    attrs_type=StreamShuffle,
    values={"mask": listed(integer(0, KEEP), QUADRANT, least=QUADRANT)},
)


def nc_stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[int], name: str | None = None
) -> Instruction:
    """Within each quadrant of 32 partitions: dst[i] = src[shuffle_mask[i]], on Vector; 255 leaves dst[i] as it is.

    shuffle_mask: 32 integers, the same for each quadrant. Equal dtypes and elements per partition. dst may
    be src. A mask of zeros copies partition 0 to 32 partitions.
    """
    try:
        mask = tuple(int(m) for m in shuffle_mask)
    except (TypeError, ValueError):
        raise NkiValidationError(
            f"nc_stream_shuffle: shuffle_mask must be a list of integers, not {shuffle_mask!r}"
        ) from None
    access = "ur" if KEEP in mask else "wr"
    return current().emit(_SHUFFLE, Engine.vector, ("dst", "src"), access, (dst, src), StreamShuffle(mask), name=name)


# --- nc_n_gather ----------------------------------------------------------------------------------


def _check_n_gather(template: Template) -> None:
    dst, data, indices = (rules.get(template, role) for role in ("dst", "data", "indices"))
    rules.computed_on(template, Engine.gpsimd)
    rules.same_dtype(template, data, dst)
    rules.dtype_in(template, indices, (dtypes.uint32,))
    rules.same_size(template, dst, indices)
    if data.partitions != indices.partitions:
        raise NkiValidationError(
            f"nc_n_gather: data {list(data.shape)} and indices {list(indices.shape)} must have the same partitions"
        )


def _compute_n_gather(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, data, indices = arrays[0], arrays[1], arrays[2]
    rows = data.shape[0]
    flat = data.reshape(rows, -1)
    where = indices.reshape(rows, -1).astype(np.int64)
    if where.max() >= flat.shape[1]:
        raise OutOfBounds(
            f"nc_n_gather: index {int(where.max())} is outside the {flat.shape[1]} elements of a partition"
        )
    dst[...] = np.take_along_axis(flat, where, axis=1).reshape(dst.shape)


_N_GATHER = define(
    "nc_n_gather",
    writes("dst", SBUF),
    reads("data", SBUF),
    reads("indices", SBUF, (dtypes.uint32,)),
    check=_check_n_gather,
    compute=_compute_n_gather,
)


def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> Instruction:
    """dst[p, j] = data[p, indices[p, j]] with data's free dimensions flattened; on GpSimd, all in SBUF.

    indices: uint32, dst's size; dst has data's dtype.
    """
    return current().emit(_N_GATHER, Engine.gpsimd, ("dst", "data", "indices"), "wrr", (dst, data, indices), name=name)


# --- local_gather ---------------------------------------------------------------------------------

_CORE_PARTITIONS = ISA.gpsimd_core_partitions


class LocalGather(NamedTuple):
    num_elem_per_idx: int
    num_valid_indices: int


def _check_local_gather(template: Template) -> None:
    attrs: LocalGather = template.attrs
    dst, src, index = (rules.get(template, role) for role in ("dst", "src_buffer", "index"))
    rules.computed_on(template, Engine.gpsimd)
    for operand in (dst, src, index):
        rules.region(template, operand, MemoryRegion.sbuf)
    rules.same_dtype(template, src, dst)
    rules.dtype_in(template, index, (dtypes.uint16,))
    if src.partitions != index.partitions or src.partitions % _CORE_PARTITIONS or dst.partitions != src.partitions:
        raise NkiValidationError(
            f"local_gather: src_buffer {list(src.shape)}, index {list(index.shape)} and dst {list(dst.shape)} must "
            f"have the same number of partitions, a multiple of {_CORE_PARTITIONS}"
        )
    *smaller, largest = ISA.local_gather_run_sizes
    if attrs.num_elem_per_idx not in ISA.local_gather_run_sizes:
        raise NkiValidationError(
            f"local_gather: num_elem_per_idx {attrs.num_elem_per_idx} must be "
            f"{', '.join(map(str, smaller))} or {largest}"
        )
    limit = min(ISA.local_gather_indices, index.free_size * _CORE_PARTITIONS)
    if not 1 <= attrs.num_valid_indices <= limit:
        raise NkiValidationError(
            f"local_gather: num_valid_indices {attrs.num_valid_indices} must be 1 to {limit} for index "
            f"{list(index.shape)}"
        )
    if dst.free_size != attrs.num_valid_indices * attrs.num_elem_per_idx:
        raise NkiValidationError(
            f"local_gather: dst {list(dst.shape)} must have num_valid_indices * num_elem_per_idx = "
            f"{attrs.num_valid_indices * attrs.num_elem_per_idx} elements per partition"
        )


def _compute_local_gather(arrays: Sequence[np.ndarray], attrs: LocalGather) -> None:
    dst, src, index = arrays[0], arrays[1], arrays[2]
    rows = src.shape[0]
    flat = src.reshape(rows, -1)
    columns = index.reshape(rows, -1).astype(np.int64)
    for p in range(0, rows, _CORE_PARTITIONS):
        core = slice(p, p + _CORE_PARTITIONS)
        starts = columns[core].T.reshape(-1)[: attrs.num_valid_indices]
        where = (starts[:, None] + np.arange(attrs.num_elem_per_idx)).reshape(-1)
        if where.max() >= flat.shape[1]:
            raise OutOfBounds(
                f"local_gather: index {int(starts.max())} (+ {attrs.num_elem_per_idx} elements) is outside the "
                f"{flat.shape[1]} elements of a partition"
            )
        dst[core] = flat[core][:, where].reshape((_CORE_PARTITIONS, *dst.shape[1:]))


_LOCAL_GATHER = define(
    "local_gather",
    writes("dst", SBUF),
    reads("src_buffer", SBUF),
    reads("index", SBUF, (dtypes.uint16,)),
    check=_check_local_gather,
    compute=_compute_local_gather,
    attrs_type=LocalGather,
    values={
        "num_elem_per_idx": integer(1, ISA.local_gather_run_sizes[-1]),
        "num_valid_indices": integer(1, ISA.local_gather_indices),
    },
)


def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> Instruction:
    """Each group of 16 partitions gathers from itself by the indices it holds, on GpSimd, all in SBUF.

    A group's indices (uint16, element offsets within a partition) are read down the 16 partitions, then
    column by column; each fetches `num_elem_per_idx` consecutive elements in all 16 partitions.
    """
    valid = index.size // index.shape[0] * _CORE_PARTITIONS if num_valid_indices is None else int(num_valid_indices)
    attrs = LocalGather(int(ops.scalar(num_elem_per_idx, "local_gather: num_elem_per_idx")), valid)
    return current().emit(
        _LOCAL_GATHER, Engine.gpsimd, ("dst", "src_buffer", "index"), "wrr", (dst, src_buffer, index), attrs, name=name
    )
