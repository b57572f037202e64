"""GpSimd: generated patterns, affine masks, reductions over partitions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nki_sim.contract import rules
from nki_sim.contract.contracts import INT32, SBUF, listed, one_of, reads, writes
from nki_sim.contract.opcodes import define
from nki_sim.errors import NkiValidationError
from nki_sim.isa.arithmetic import numerics, ops
from nki_sim.isa.arithmetic.shared import Number
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Operand, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor

AffinePattern = tuple[tuple[int, int], ...]
_INT32_MAX = 2**31


class Iota(NamedTuple):
    pattern: AffinePattern
    offset: int
    channel_multiplier: int


def _pattern(pattern: Sequence[Sequence[int]], what: str) -> AffinePattern:
    try:
        return tuple((int(step), int(count)) for step, count in pattern)
    except (TypeError, ValueError):
        raise NkiValidationError(f"{what}: pattern must be a list of [step, count] pairs, not {pattern!r}") from None


def _check_pattern(template: Template, dst: Operand, attrs: Any) -> None:
    pattern = attrs.pattern
    if not 1 <= len(pattern) <= ISA.access_pattern_free_dims or any(count < 1 for _, count in pattern):
        raise NkiValidationError(
            f"{template.opcode}: pattern {pattern} must be 1 to {ISA.access_pattern_free_dims} pairs [step, count >= 1]"
        )
    total = prod(count for _, count in pattern)
    if total != dst.free_size:
        raise NkiValidationError(
            f"{template.opcode}: pattern {pattern} gives {total} elements per partition, dst {list(dst.shape)} has "
            f"{dst.free_size}"
        )
    reach = abs(attrs.offset) + (ISA.partitions - 1) * abs(attrs.channel_multiplier)
    if reach + sum(abs(step) * (count - 1) for step, count in pattern) >= _INT32_MAX:
        raise NkiValidationError(f"{template.opcode}: values of pattern {pattern} and offset leave int32")


def affine_values(rows: int, pattern: AffinePattern, offset: int, channel_multiplier: int) -> np.ndarray:
    """int32 [rows, elements]: offset + row * channel_multiplier + sum of index * step."""
    values = np.full(1, offset, np.int64)
    for step, count in pattern:
        values = (values[:, None] + np.arange(count, dtype=np.int64) * step).reshape(-1)
    grid: np.ndarray = np.arange(rows, dtype=np.int64)[:, None] * channel_multiplier + values
    return grid.astype(np.int32)


def _check_iota(template: Template) -> None:
    dst = rules.get(template, "dst")
    rules.computed_on(template, Engine.gpsimd)
    rules.region(template, dst, MemoryRegion.sbuf)
    _check_pattern(template, dst, template.attrs)


def _compute_iota(arrays: Sequence[np.ndarray], attrs: Iota) -> None:
    dst = arrays[0]
    values = affine_values(dst.shape[0], attrs.pattern, attrs.offset, attrs.channel_multiplier).reshape(dst.shape)
    if dst.dtype.kind in "iu" and dst.dtype.itemsize == 4:
        dst[...] = values.astype(dst.dtype)
    else:
        numerics.write(dst, values.astype(np.float32))


_AFFINE = listed(listed(INT32, 2, least=2), ISA.access_pattern_free_dims, least=1)
_IOTA = define(
    "iota",
    writes("dst", SBUF),
    check=_check_iota,
    compute=_compute_iota,
    attrs_type=Iota,
    values={"pattern": _AFFINE, "offset": INT32, "channel_multiplier": INT32},
)


def iota(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> Instruction:
    """dst[p, i, j, ...] = offset + p * channel_multiplier + i * step_i + j * step_j + ..., on GpSimd.

    `pattern`: up to four [step, count] pairs, the last one fastest, as many elements as dst has per
    partition; int32 arithmetic, cast to dst's dtype. dst in SBUF.
    """
    attrs = Iota(_pattern(pattern, "iota"), int(offset), int(channel_multiplier))
    return current().emit(_IOTA, Engine.gpsimd, ("dst",), "w", (dst,), attrs, name=name)


class AffineSelect(NamedTuple):
    pattern: AffinePattern
    offset: int
    channel_multiplier: int
    cmp_op: str
    on_false_value: float


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def _check_affine_select(template: Template) -> None:
    attrs: AffineSelect = template.attrs
    dst, source = rules.get(template, "dst"), rules.get(template, "on_true_tile")
    if attrs.cmp_op not in _COMPARISONS:
        raise NkiValidationError(f"affine_select: cmp_op nl.{attrs.cmp_op} is not a comparison")
    rules.computed_on(template, Engine.gpsimd)
    rules.same_size(template, dst, source)
    _check_pattern(template, dst, attrs)


def _compute_affine_select(arrays: Sequence[np.ndarray], attrs: AffineSelect) -> None:
    dst = arrays[0]
    source = numerics.shaped(arrays[1], dst.shape)
    values = affine_values(dst.shape[0], attrs.pattern, attrs.offset, attrs.channel_multiplier).reshape(dst.shape)
    chosen = ops.ALU[attrs.cmp_op].function(values, 0)
    if dst.dtype == source.dtype and dst.dtype.kind != "i":
        other = np.empty((), dst.dtype)
        numerics.write(other, np.asarray(attrs.on_false_value, np.float32))
        dst[...] = np.where(chosen, source, other)
    else:
        numerics.write(dst, np.where(chosen, numerics.read32(source), np.float32(attrs.on_false_value)))


_AFFINE_SELECT = define(
    "affine_select",
    writes("dst", SBUF),
    reads("on_true_tile", SBUF),
    check=_check_affine_select,
    compute=_compute_affine_select,
    attrs_type=AffineSelect,
    values={"pattern": _AFFINE, "offset": INT32, "channel_multiplier": INT32, "cmp_op": one_of(_COMPARISONS)},
)


def affine_select(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: Number,
    cmp_op: Any = None,
    offset: int = 0,
    name: str | None = None,
) -> Instruction:
    """dst = on_true_tile where <affine value> <cmp_op> 0, else on_false_value, on GpSimd.

    The affine value of an element is that of nisa.iota: offset + p * channel_multiplier + pattern.
    cmp_op defaults to nl.equal. dst and on_true_tile in SBUF, same size.
    """
    attrs = AffineSelect(
        _pattern(pattern, "affine_select"),
        int(offset),
        int(channel_multiplier),
        "equal" if cmp_op is None else ops.name_of(cmp_op, "affine_select cmp_op"),
        float(ops.scalar(on_false_value, "affine_select: on_false_value")),
    )
    return current().emit(
        _AFFINE_SELECT, Engine.gpsimd, ("dst", "on_true_tile"), "wr", (dst, on_true_tile), attrs, name=name
    )


# --- tensor_partition_reduce ----------------------------------------------------------------------


class PartitionReduce(NamedTuple):
    op: str


_PARTITION_REDUCTIONS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")


def _check_partition_reduce(template: Template) -> None:
    attrs: PartitionReduce = template.attrs
    dst, data = rules.get(template, "dst"), rules.get(template, "data")
    if attrs.op not in _PARTITION_REDUCTIONS:
        raise NkiValidationError(
            f"tensor_partition_reduce: nl.{attrs.op} is not one of {', '.join(_PARTITION_REDUCTIONS)}"
        )
    rules.computed_on(template, Engine.gpsimd)
    if dst.partitions != 1 or dst.free_size != data.free_size:
        raise NkiValidationError(
            f"tensor_partition_reduce: dst {list(dst.shape)} must be [1, {data.free_size}] for data {list(data.shape)}"
        )
    if attrs.op.startswith("bitwise"):
        rules.integers(template, dst, data)


def _compute_partition_reduce(arrays: Sequence[np.ndarray], attrs: PartitionReduce) -> None:
    dst, data = arrays[0], arrays[1]
    if attrs.op.startswith("bitwise"):
        values = ops.ALU[attrs.op].function.reduce(data, axis=0)
        dst[...] = values.reshape(dst.shape).astype(dst.dtype)
    elif attrs.op == "average":
        numerics.write(dst, numerics.read32(data).mean(axis=0, dtype=np.float32).reshape(dst.shape))
    else:
        function = ops.ALU[attrs.op].function
        numerics.write(dst, function.reduce(numerics.read32(data), axis=0).reshape(dst.shape))


_PARTITION_REDUCE = define(
    "tensor_partition_reduce",
    writes("dst", SBUF),
    reads("data", SBUF),
    check=_check_partition_reduce,
    compute=_compute_partition_reduce,
    attrs_type=PartitionReduce,
    values={"op": one_of(_PARTITION_REDUCTIONS)},
)


def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None) -> Instruction:
    """dst[0, ...] = data reduced over its partitions (nl.add, average, maximum, bitwise_or, bitwise_and), on GpSimd."""
    attrs = PartitionReduce(ops.name_of(op, "tensor_partition_reduce"))
    return current().emit(_PARTITION_REDUCE, Engine.gpsimd, ("dst", "data"), "wr", (dst, data), attrs, name=name)
