"""Finding values: the eight largest, where they are, what is not zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nki_sim import dtypes
from nki_sim.contract import rules
from nki_sim.contract.contracts import INT32, ON_CHIP, SBUF, integer, perhaps, reads, updates, writes
from nki_sim.contract.opcodes import define
from nki_sim.errors import NkiValidationError
from nki_sim.isa.arithmetic import numerics, ops
from nki_sim.isa.arithmetic.shared import Number
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Operand, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor

_CORE_PARTITIONS = ISA.gpsimd_core_partitions


def _eight(template: Template, operand: Operand, data: Operand) -> None:
    if operand.partitions != data.partitions or operand.free_size != 8:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} must be [{data.partitions}, 8] for "
            f"{data.role} {list(data.shape)}"
        )


# --- max8 -----------------------------------------------------------------------------------------


def _check_max8(template: Template) -> None:
    dst, src = rules.get(template, "dst"), rules.get(template, "src")
    rules.computed_on(template, Engine.vector)
    rules.free_range(template, src, ISA.search_fmin, ISA.search_fmax)
    _eight(template, dst, src)


def _compute_max8(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, src = arrays[0], numerics.read32(arrays[1])
    rows = src.reshape(src.shape[0], -1)
    largest = np.partition(rows, rows.shape[1] - 8, axis=1)[:, -8:]
    numerics.write(dst, np.sort(largest, axis=1)[:, ::-1].reshape(dst.shape))


_MAX8 = define("max8", writes("dst", ON_CHIP), reads("src", ON_CHIP), check=_check_max8, compute=_compute_max8)


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> Instruction:
    """dst[P, 8] = the eight largest values of each partition of src (8 to 16384 elements), descending. Vector."""
    return current().emit(_MAX8, Engine.vector, ("dst", "src"), "wr", (dst, src), name=name)


# --- nc_find_index8, nc_match_replace8 ------------------------------------------------------------


def _match(data: np.ndarray, vals: np.ndarray, order: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(positions int64 [P, 8] with -1 for none, taken bool [P, N]): equal values take successive matches."""
    rows = np.arange(data.shape[0])
    taken = np.zeros(data.shape, np.bool_)
    positions = np.full((data.shape[0], 8), -1, np.int64)
    for i in order:
        free = (data == vals[:, i : i + 1]) & ~taken
        first = free.argmax(axis=1)
        found = free[rows, first]
        taken[rows[found], first[found]] = True
        positions[found, i] = first[found]
    return positions, taken


def _write_positions(dst: np.ndarray, positions: np.ndarray) -> None:
    # -1 wraps to all ones in either width, the hardware's mark for no match
    dst[...] = positions.astype(dst.dtype).reshape(dst.shape)


def _check_find_index8(template: Template) -> None:
    dst, data, vals = (rules.get(template, role) for role in ("dst", "data", "vals"))
    rules.computed_on(template, Engine.vector)
    rules.free_range(template, data, ISA.search_fmin, ISA.search_fmax)
    _eight(template, vals, data)
    _eight(template, dst, data)
    rules.dtype_in(template, dst, (dtypes.uint32, dtypes.uint16))


def _compute_find_index8(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, data, vals = arrays[0], numerics.read32(arrays[1]), numerics.read32(arrays[2])
    rows = data.shape[0]
    positions, _ = _match(data.reshape(rows, -1), vals.reshape(rows, 8), range(8))
    _write_positions(dst, positions)


_POSITIONS = (dtypes.uint32, dtypes.uint16)
_FIND_INDEX8 = define(
    "nc_find_index8",
    writes("dst", ON_CHIP, _POSITIONS),
    reads("data", ON_CHIP),
    reads("vals", ON_CHIP),
    check=_check_find_index8,
    compute=_compute_find_index8,
)


def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> Instruction:
    """dst[P, 8] = position in data of each of vals[P, 8], per partition; all ones where there is none. Vector.

    Repeated values take successive occurrences, in ascending order. dst is uint16 or uint32; data has 8 to
    16384 elements per partition.
    """
    return current().emit(_FIND_INDEX8, Engine.vector, ("dst", "data", "vals"), "wrr", (dst, data, vals), name=name)


class MatchReplace(NamedTuple):
    value: float


def _check_match_replace8(template: Template) -> None:
    dst, data, vals = (rules.get(template, role) for role in ("dst", "data", "vals"))
    rules.computed_on(template, Engine.vector)
    rules.free_range(template, data, ISA.search_fmin, ISA.search_fmax)
    rules.same_size(template, dst, data)
    _eight(template, vals, data)
    positions = template.operand("dst_idx")
    if positions is not None:
        _eight(template, positions, data)
        rules.dtype_in(template, positions, (dtypes.uint32, dtypes.uint16))


def _compute_match_replace8(arrays: Sequence[np.ndarray], attrs: MatchReplace) -> None:
    dst, data, vals = arrays[0], numerics.read32(arrays[1]), numerics.read32(arrays[2])
    rows = data.shape[0]
    positions, taken = _match(data.reshape(rows, -1), vals.reshape(rows, 8), range(7, -1, -1))
    values = np.where(taken, np.float32(attrs.value), data.reshape(rows, -1))
    numerics.write(dst, values.reshape(dst.shape))
    if len(arrays) > 3:
        _write_positions(arrays[3], positions)


_MATCH_REPLACE8 = define(
    "nc_match_replace8",
    writes("dst", ON_CHIP),
    reads("data", ON_CHIP),
    reads("vals", ON_CHIP),
    perhaps(writes("dst_idx", ON_CHIP, _POSITIONS)),
    check=_check_match_replace8,
    compute=_compute_match_replace8,
    attrs_type=MatchReplace,
)


def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: Number,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> Instruction:
    """dst = data with the first occurrence of each of vals[P, 8] replaced by imm; on Vector.

    dst_idx[P, 8] (uint16 or uint32) receives where each was. Values are processed from the last to the
    first, so of repeated values the last one has the first position.
    """
    attrs = MatchReplace(float(ops.scalar(imm, "nc_match_replace8: imm")))
    roles: tuple[str, ...] = ("dst", "data", "vals")
    operands: tuple[NkiTensor, ...] = (dst, data, vals)
    if dst_idx is not None:
        roles, operands = (*roles, "dst_idx"), (*operands, dst_idx)
    return current().emit(_MATCH_REPLACE8, Engine.vector, roles, "wrrw"[: len(roles)], operands, attrs, name=name)


# --- nonzero_with_count ---------------------------------------------------------------------------


class NonzeroWithCount(NamedTuple):
    index_offset: int
    padding_val: int


def _check_nonzero(template: Template) -> None:
    dst, src = rules.get(template, "dst"), rules.get(template, "src")
    rules.computed_on(template, Engine.gpsimd)
    rules.dtype_in(template, src, (dtypes.float32, dtypes.int32))
    rules.dtype_in(template, dst, (dtypes.int32,))
    if dst.partitions != src.partitions or dst.free_size != src.free_size + 1:
        raise NkiValidationError(
            f"nonzero_with_count: dst {list(dst.shape)} must be [{src.partitions}, {src.free_size + 1}], one element "
            f"more than src {list(src.shape)} for the count"
        )


def _compute_nonzero(arrays: Sequence[np.ndarray], attrs: NonzeroWithCount) -> None:
    dst, src = arrays[0], arrays[1]
    rows = src.reshape(src.shape[0], -1)
    for p in range(0, rows.shape[0], _CORE_PARTITIONS):
        found = np.flatnonzero(rows[p])
        line = np.full(rows.shape[1] + 1, attrs.padding_val, np.int32)
        line[: found.size] = found + attrs.index_offset
        line[-1] = found.size
        dst[p] = line.reshape(dst.shape[1:])


_NONZERO = define(
    "nonzero_with_count",
    updates("dst", SBUF, (dtypes.int32,)),
    reads("src", SBUF, (dtypes.float32, dtypes.int32)),
    check=_check_nonzero,
    compute=_compute_nonzero,
    attrs_type=NonzeroWithCount,
    values={"index_offset": integer(-(1 << 30), 1 << 30), "padding_val": INT32},
)


def nonzero_with_count(
    dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> Instruction:
    """Positions of the non-zero elements of src (+ index_offset), padding, then their count; on GpSimd.

    Only partitions 0, 16, 32, ... are read and written. src [P, T]: float32 or int32; dst [P, T + 1]: int32.
    """
    attrs = NonzeroWithCount(int(index_offset), int(padding_val))
    return current().emit(_NONZERO, Engine.gpsimd, ("dst", "src"), "ur", (dst, src), attrs, name=name)


# --- topk -----------------------------------------------------------------------------------------


class TopK(NamedTuple):
    n: int


def _check_topk(template: Template) -> None:
    n = template.attrs.n
    values, indices, src = (rules.get(template, role) for role in ("val_dst", "idx_dst", "src"))
    rules.computed_on(template, Engine.gpsimd)
    rules.dtype_in(template, src, (dtypes.bfloat16,))
    rules.dtype_in(template, values, (dtypes.bfloat16,))
    rules.dtype_in(template, indices, (dtypes.uint32,))
    rules.same_size(template, values, indices)
    k = values.free_size
    if not ISA.topk_fmin <= n <= ISA.topk_fmax or not 1 <= k <= min(n, ISA.topk_results):
        raise NkiValidationError(
            f"topk: needs {ISA.topk_fmin} <= n <= {ISA.topk_fmax} and 1 <= k <= n, got n {n}, k {k}"
        )
    if src.partitions % _CORE_PARTITIONS or values.partitions != src.partitions:
        raise NkiValidationError(
            f"topk: src {list(src.shape)} must have a multiple of {_CORE_PARTITIONS} partitions, as many as val_dst "
            f"{list(values.shape)}"
        )
    if src.free_size * _CORE_PARTITIONS < n:
        raise NkiValidationError(
            f"topk: src {list(src.shape)} holds {src.free_size * _CORE_PARTITIONS} elements per {_CORE_PARTITIONS} "
            f"partitions, fewer than n {n}"
        )


def _compute_topk(arrays: Sequence[np.ndarray], attrs: TopK) -> None:
    values, indices, src = arrays[0], arrays[1], arrays[2]
    k = values.size // values.shape[0]
    flat = src.reshape(src.shape[0], -1)
    for p in range(0, flat.shape[0], _CORE_PARTITIONS):
        snake = flat[p : p + _CORE_PARTITIONS].T.reshape(-1)[: attrs.n]
        order = np.argsort(-numerics.read32(snake), kind="stable")[:k][::-1]
        core = slice(p, p + _CORE_PARTITIONS)
        values[core] = snake[order].reshape(values.shape[1:])
        indices[core] = order.astype(np.uint32).reshape(indices.shape[1:])


_TOPK = define(
    "topk",
    writes("val_dst", SBUF, (dtypes.bfloat16,)),
    writes("idx_dst", SBUF, (dtypes.uint32,)),
    reads("src", SBUF, (dtypes.bfloat16,)),
    check=_check_topk,
    compute=_compute_topk,
    attrs_type=TopK,
    values={"n": integer(ISA.topk_fmin, ISA.topk_fmax)},
)


def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None) -> Instruction:
    """The k largest of the first n elements of each group of 16 partitions, ascending, with their positions.

    Elements run down the 16 partitions of a group, then to the next column. val_dst [P, k] bfloat16 and
    idx_dst [P, k] uint32 hold a group's result in each of its partitions; src [P, x] bfloat16. GpSimd, SBUF.
    """
    return current().emit(
        _TOPK, Engine.gpsimd, ("val_dst", "idx_dst", "src"), "wwr", (val_dst, idx_dst, src), TopK(int(n)), name=name
    )


# --- sequence_bounds ------------------------------------------------------------------------------


def _check_sequence_bounds(template: Template) -> None:
    dst, ids = rules.get(template, "dst"), rules.get(template, "segment_ids")
    rules.computed_on(template, Engine.gpsimd)
    for operand in (dst, ids):
        rules.region(template, operand, MemoryRegion.sbuf)
        rules.dtype_in(template, operand, (dtypes.float32, dtypes.int32))
    if ids.partitions != 1 or dst.partitions != 1 or dst.free_size != 2 * ids.free_size:
        raise NkiValidationError(
            f"sequence_bounds: segment_ids {list(ids.shape)} must be [1, n] and dst {list(dst.shape)} [1, 2, n]"
        )


def _compute_sequence_bounds(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, ids = arrays[0], arrays[1].reshape(-1)
    n = ids.size
    starts_here = np.ones(n, np.bool_)
    starts_here[1:] = ids[1:] != ids[:-1]
    ends_here = np.ones(n, np.bool_)
    ends_here[:-1] = starts_here[1:]
    positions = np.arange(n)
    first = np.maximum.accumulate(np.where(starts_here, positions, 0))
    last = np.minimum.accumulate(np.where(ends_here, positions + 1, n)[::-1])[::-1]
    bounds = np.stack([np.where(ids == 0, n, first), np.where(ids == 0, -1, last)])
    numerics.write(dst, bounds.astype(np.float32).reshape(dst.shape))


_SEQUENCE_BOUNDS = define(
    "sequence_bounds",
    writes("dst", SBUF, (dtypes.float32, dtypes.int32)),
    reads("segment_ids", SBUF, (dtypes.float32, dtypes.int32)),
    check=_check_sequence_bounds,
    compute=_compute_sequence_bounds,
)


def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> Instruction:
    """dst[1, 2, n]: for each element of segment_ids [1, n], the start and end (exclusive) of its run; on GpSimd.

    Elements with id 0 are padding: start n, end -1. float32 or int32.
    """
    return current().emit(_SEQUENCE_BOUNDS, Engine.gpsimd, ("dst", "segment_ids"), "wr", (dst, segment_ids), name=name)
