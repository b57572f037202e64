"""VectorE: element-wise with two tensors, reductions along the free axes, reciprocal."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from nki_sim import dtypes
from nki_sim.contract import rules
from nki_sim.contract.contracts import MOST_DIMENSIONS, ON_CHIP, integer, listed, one_of, perhaps, reads, state, writes
from nki_sim.contract.opcodes import define
from nki_sim.errors import NkiValidationError
from nki_sim.isa.arithmetic import accumulators, numerics, ops
from nki_sim.isa.arithmetic.shared import Number, check_scalar_operand, one_op, scalar_or_tensor, takes_tensor
from nki_sim.isa.constants import reduce_cmd as _reduce_cmd
from nki_sim.machine import ISA
from nki_sim.program.program import Engine, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor

# --- scalar_tensor_tensor -------------------------------------------------------------------------


class ScalarTensorTensor(NamedTuple):
    op0: str
    operand0: Union[int, float] | None
    reverse0: bool
    op1: str
    reverse1: bool


def _check_scalar_tensor_tensor(template: Template) -> None:
    attrs: ScalarTensorTensor = template.attrs
    dst, data, other = (rules.get(template, role) for role in ("dst", "data", "operand1"))
    op0, op1 = ops.alu(attrs.op0, "scalar_tensor_tensor"), ops.alu(attrs.op1, "scalar_tensor_tensor")
    for op in (op0, op1):
        if op.bitvec:
            raise NkiValidationError(f"scalar_tensor_tensor: bit operator nl.{op.name} is not supported")
    if op1.unary:
        raise NkiValidationError(f"scalar_tensor_tensor: op1 combines two tensors, nl.{op1.name} takes one")
    rules.computed_on(template, Engine.vector)
    rules.same_size(template, dst, data, other)
    rules.not_both_psum(template, data, other)
    # of any dtype, unlike the operands of tensor_scalar: the engine converts all three tiles
    check_scalar_operand(template, data, op0, attrs.operand0, "operand0", False, converted=True)


def _compute_scalar_tensor_tensor(arrays: Sequence[np.ndarray], attrs: ScalarTensorTensor) -> None:
    dst = arrays[0]
    op0, op1 = ops.ALU[attrs.op0], ops.ALU[attrs.op1]
    data = numerics.read32(numerics.shaped(arrays[1], dst.shape))
    other = numerics.read32(numerics.shaped(arrays[2], dst.shape))
    first: Any = None
    if not op0.unary:
        first = numerics.column(arrays[3], dst.ndim) if attrs.operand0 is None else np.float32(attrs.operand0)
    # never straight into dst: the second tensor may be dst itself
    value = np.empty(dst.shape, np.float32)
    one_op(op0, data, first, attrs.reverse0, value)
    if attrs.reverse1:
        numerics.apply(op1.function, dst, other, value)
    else:
        numerics.apply(op1.function, dst, value, other)


_SCALAR_TENSOR_TENSOR = define(
    "scalar_tensor_tensor",
    writes("dst", ON_CHIP),
    reads("data", ON_CHIP),
    reads("operand1", ON_CHIP),
    reads("operand0", ON_CHIP, when=lambda attrs: takes_tensor(attrs.op0, attrs.operand0)),
    check=_check_scalar_tensor_tensor,
    compute=_compute_scalar_tensor_tensor,
    attrs_type=ScalarTensorTensor,
    values={"op0": one_of(ops.ALU), "op1": one_of(ops.ALU)},
)


def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Number | NkiTensor | None,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Instruction:
    """dst = (data <op0> operand0) <op1> operand1 in float32 on Vector, in one pass.

    operand0: a number or a float32 tile [P, 1]; operand1: a tile of data's size. data and operand1 not
    both in PSUM. Arithmetic operators only.
    """
    name0, name1 = ops.name_of(op0, "scalar_tensor_tensor op0"), ops.name_of(op1, "scalar_tensor_tensor op1")
    number, roles, operands = scalar_or_tensor(
        name0, operand0, "operand0", ("dst", "data", "operand1"), (dst, data, operand1)
    )
    attrs = ScalarTensorTensor(name0, number, bool(reverse0), name1, bool(reverse1))
    return current().emit(_SCALAR_TENSOR_TENSOR, Engine.vector, roles, "wrrr"[: len(roles)], operands, attrs, name=name)


# --- tensor_reduce --------------------------------------------------------------------------------


class TensorReduce(NamedTuple):
    op: str
    axes: tuple[int, ...]
    negate: bool


def _check_tensor_reduce(template: Template) -> None:
    attrs: TensorReduce = template.attrs
    dst, data = rules.get(template, "dst"), rules.get(template, "data")
    op = ops.alu(attrs.op, "tensor_reduce")
    if not op.reduces:
        legal = ", ".join(f"nl.{o.name}" for o in ops.ALU.values() if o.reduces)
        raise NkiValidationError(f"tensor_reduce: nl.{op.name} is not a reduction; one of {legal}")
    if attrs.negate and op.bitvec:
        raise NkiValidationError("tensor_reduce: negate needs an arithmetic operator")
    rules.computed_on(template, Engine.vector)
    ndim = len(data.pattern)
    expected = tuple(range(ndim - len(attrs.axes), ndim))
    if not attrs.axes or attrs.axes != expected or 0 in attrs.axes:
        raise NkiValidationError(
            f"tensor_reduce: axis {attrs.axes} of data {list(data.shape)} must be the last free dimension(s), e.g. "
            f"{ndim - 1} or {tuple(range(1, ndim))}; the partition dimension (0) goes through nc_transpose or a matmul "
            "with ones"
        )
    kept = 1
    for size in data.shape[1 : ndim - len(attrs.axes)]:
        kept *= size
    if dst.partitions != data.partitions or dst.free_size != kept:
        raise NkiValidationError(
            f"tensor_reduce: dst {list(dst.shape)} must have {data.partitions} partitions of {kept} elements for data "
            f"{list(data.shape)} reduced over {attrs.axes}"
        )
    if op.bitvec:
        rules.integers(template, dst, data)


def _compute_tensor_reduce(arrays: Sequence[np.ndarray], attrs: TensorReduce) -> None:
    dst, data = arrays[0], arrays[1]
    op = ops.ALU[attrs.op]
    if op.bitvec:
        dst[...] = op.function.reduce(data, axis=attrs.axes).reshape(dst.shape).astype(dst.dtype)
        return
    value = _reduce(op, numerics.read32(data), attrs.axes)
    if attrs.negate:
        value = -value
    numerics.write(dst, value.reshape(dst.shape))


def _reduce(op: ops.AluOp, values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    if op.name == "subtract":  # not reorderable: first minus the rest, over the flattened axes
        flat = values.reshape(values.shape[: axes[0]] + (-1,))
        result: np.ndarray = np.subtract.reduce(flat, axis=-1)
        return result
    result = op.function.reduce(values, axis=axes)
    return result.astype(np.float32, copy=False)


_TENSOR_REDUCE = define(
    "tensor_reduce",
    writes("dst", ON_CHIP),
    reads("data", ON_CHIP),
    check=_check_tensor_reduce,
    compute=_compute_tensor_reduce,
    attrs_type=TensorReduce,
    values={"op": one_of(ops.ALU), "axes": listed(integer(1, MOST_DIMENSIONS), MOST_DIMENSIONS, least=1)},
)


def tensor_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: int | Sequence[int],
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> Instruction:
    """Reduce data over its last free dimension(s) into dst on Vector, in float32.

    `axis`: an int or several, which must be the trailing dimensions and never 0. dst holds one element
    for each kept position, in whatever shape (with or without `keepdims`). `negate` multiplies by -1.
    """
    axes = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
    ndim = data.ndim
    axes = tuple(sorted(a + ndim if a < 0 else a for a in map(operator.index, axes)))
    attrs = TensorReduce(ops.name_of(op, "tensor_reduce"), axes, bool(negate))
    return current().emit(_TENSOR_REDUCE, Engine.vector, ("dst", "data"), "wr", (dst, data), attrs, name=name)


# --- tensor_scalar_reduce -------------------------------------------------------------------------


class TensorScalarReduce(NamedTuple):
    op0: str
    operand0: Union[int, float] | None
    reverse0: bool
    reduce_op: str
    reduce_cmd: _reduce_cmd
    reduce_init: Union[int, float] | None
    negate: bool


_ACCUMULATES = ("add", "multiply", "maximum", "minimum")


def accumulate(
    op: ops.AluOp, registers: np.ndarray, values: np.ndarray, command: _reduce_cmd, start: Any = None
) -> None:
    """Run the accumulator registers [P, 1] over `values` [P, ...] in place, as `command` says."""
    if command is _reduce_cmd.idle:
        return
    if command in (_reduce_cmd.reset, _reduce_cmd.reset_reduce):
        registers[...] = op.identity
    elif command is _reduce_cmd.load_reduce:
        registers[...] = start
    if command is not _reduce_cmd.reset:
        flat = values if values.ndim == 2 else values.reshape(values.shape[0], -1)
        total = op.function.reduce(flat, axis=1, keepdims=True)
        op.function(registers, total, out=registers)


def _check_tensor_scalar_reduce(template: Template) -> None:
    attrs: TensorScalarReduce = template.attrs
    dst, data = rules.get(template, "dst"), rules.get(template, "data")
    op0 = ops.alu(attrs.op0, "tensor_scalar_reduce")
    if op0.bitvec:
        raise NkiValidationError(f"tensor_scalar_reduce: bit operator nl.{op0.name} is not supported")
    if attrs.reduce_op not in _ACCUMULATES:
        raise NkiValidationError(
            f"tensor_scalar_reduce: reduce_op nl.{attrs.reduce_op} must be nl.add, multiply, maximum or minimum"
        )
    if attrs.reduce_cmd not in (_reduce_cmd.reset_reduce, _reduce_cmd.reduce, _reduce_cmd.load_reduce):
        raise NkiValidationError(f"tensor_scalar_reduce: reduce_cmd {attrs.reduce_cmd.name} is not supported")
    init = template.operand("reduce_init")
    loads = attrs.reduce_cmd is _reduce_cmd.load_reduce
    if loads != (init is not None or attrs.reduce_init is not None):
        raise NkiValidationError("tensor_scalar_reduce: reduce_init goes with reduce_cmd.load_reduce, and only with it")
    rules.computed_on(template, Engine.vector)
    rules.same_size(template, dst, data)
    check_scalar_operand(template, data, op0, attrs.operand0, "operand0", False)
    rules.get(template, "accumulators")
    for role in ("reduce_res", "reduce_init"):
        operand = template.operand(role)
        if operand is not None:
            rules.per_partition(template, operand, data)


def _compute_tensor_scalar_reduce(arrays: Sequence[np.ndarray], attrs: TensorScalarReduce) -> None:
    dst, registers = arrays[0], arrays[2]
    data = numerics.read32(numerics.shaped(arrays[1], dst.shape))
    op0, reduce_op = ops.ALU[attrs.op0], ops.ALU[attrs.reduce_op]
    at = 3
    first: Any = None
    if not op0.unary:
        if attrs.operand0 is None:
            first = numerics.column(arrays[at], dst.ndim)
            at += 1
        else:
            first = np.float32(attrs.operand0)
    start: Any = attrs.reduce_init
    if attrs.reduce_cmd is _reduce_cmd.load_reduce and start is None:
        start = numerics.column(arrays[at], 2)
        at += 1
    value = numerics.workspace(dst)
    one_op(op0, data, first, attrs.reverse0, value)
    accumulate(reduce_op, registers, value, attrs.reduce_cmd, start)
    if value is not dst:
        numerics.write(dst, value)
    if at < len(arrays):
        result = arrays[at]
        numerics.write(result, (-registers if attrs.negate else registers).reshape(result.shape))


_TENSOR_SCALAR_REDUCE = define(
    "tensor_scalar_reduce",
    writes("dst", ON_CHIP),
    reads("data", ON_CHIP),
    state("accumulators", accumulators.access, dtypes.float32, 1, "data"),
    reads("operand0", ON_CHIP, when=lambda attrs: takes_tensor(attrs.op0, attrs.operand0)),
    reads("reduce_init", ON_CHIP, when=lambda a: a.reduce_cmd is _reduce_cmd.load_reduce and a.reduce_init is None),
    perhaps(writes("reduce_res", ON_CHIP)),
    check=_check_tensor_scalar_reduce,
    compute=_compute_tensor_scalar_reduce,
    attrs_type=TensorScalarReduce,
    values={"op0": one_of(ops.ALU), "reduce_op": one_of(_ACCUMULATES)},
)


def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Number | NkiTensor | None,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: _reduce_cmd = _reduce_cmd.reset_reduce,
    reduce_init: Number | NkiTensor | None = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> Instruction:
    """dst = data <op0> operand0, and the result reduced along all free dimensions, on Vector.

    reduce_op: nl.add, multiply, maximum or minimum, kept in the engine's accumulator registers and
    written to reduce_res [P, 1] when given. `reduce_cmd`: reset_reduce starts anew, reduce continues,
    load_reduce starts from `reduce_init`.
    """
    name0 = ops.name_of(op0, "tensor_scalar_reduce op0")
    registers = accumulators.lanes(Engine.vector, data)
    access = "wr" + accumulators.ACCESS[reduce_cmd]
    number, roles, operands = scalar_or_tensor(
        name0, operand0, "operand0", ("dst", "data", "accumulators"), (dst, data, registers)
    )
    start: Number | None = None
    if isinstance(reduce_init, NkiTensor):
        roles, operands = (*roles, "reduce_init"), (*operands, reduce_init)
    elif reduce_init is not None:
        start = ops.scalar(reduce_init, "reduce_init")
    access += "r" * (len(roles) - 3)
    if reduce_res is not None:
        roles, operands, access = (*roles, "reduce_res"), (*operands, reduce_res), access + "w"
    attrs = TensorScalarReduce(
        name0,
        number,
        bool(reverse0),
        ops.name_of(reduce_op, "tensor_scalar_reduce reduce_op"),
        reduce_cmd,
        start,
        bool(reduce_res_negate),
    )
    return current().emit(_TENSOR_SCALAR_REDUCE, Engine.vector, roles, access, operands, attrs, name=name)


# --- reciprocal -----------------------------------------------------------------------------------


def _check_reciprocal(template: Template) -> None:
    rules.computed_on(template, Engine.vector)
    rules.same_size(template, rules.get(template, "dst"), rules.get(template, "data"))


def _compute_reciprocal(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst = arrays[0]
    numerics.apply(np.divide, dst, np.float32(1), numerics.read32(numerics.shaped(arrays[1], dst.shape)))


_RECIPROCAL = define(
    "reciprocal", writes("dst", ON_CHIP), reads("data", ON_CHIP), check=_check_reciprocal, compute=_compute_reciprocal
)


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """dst = 1 / data on Vector in float32 (8 cycles an element; nl.reciprocal in activation is faster, less exact)."""
    return current().emit(_RECIPROCAL, Engine.vector, ("dst", "data"), "wr", (dst, data), name=name)


def _check_stats(template: Template) -> None:
    dst, data = rules.get(template, "dst"), rules.get(template, "data")
    rules.computed_on(template, Engine.vector)
    rules.free_range(template, data, 1, ISA.bn_stats_fmax)
    if dst.partitions != data.partitions or dst.free_size != 6:
        raise NkiValidationError(
            f"bn_stats: dst {list(dst.shape)} must be [{data.partitions}, 6] for data {list(data.shape)}"
        )


def _compute_stats(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, data = arrays[0], numerics.read32(arrays[1])
    rows = data.reshape(data.shape[0], -1)
    result = np.zeros((rows.shape[0], 6), np.float32)
    for at, half in ((0, rows[:, 0::2]), (3, rows[:, 1::2])):
        count = half.shape[1]
        if count:
            mean = half.mean(axis=1, dtype=np.float32)
            result[:, at] = count
            result[:, at + 1] = mean
            result[:, at + 2] = np.square(half - mean[:, None]).sum(axis=1)
    numerics.write(dst, result.reshape(dst.shape))


_BN_STATS = define(
    "bn_stats", writes("dst", ON_CHIP), reads("data", ON_CHIP), check=_check_stats, compute=_compute_stats
)


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """dst[P, 6] = (count, mean, variance * count) of the even, then of the odd elements of data; on Vector.

    At most 512 elements per partition; several results side by side go to bn_aggr.
    """
    return current().emit(_BN_STATS, Engine.vector, ("dst", "data"), "wr", (dst, data), name=name)


def _check_aggr(template: Template) -> None:
    dst, data = rules.get(template, "dst"), rules.get(template, "data")
    rules.computed_on(template, Engine.vector)
    if data.free_size % 3:
        raise NkiValidationError(
            f"bn_aggr: data {list(data.shape)} must hold whole (count, mean, variance * count) triples from bn_stats"
        )
    if dst.partitions != data.partitions or dst.free_size != 2:
        raise NkiValidationError(
            f"bn_aggr: dst {list(dst.shape)} must be [{data.partitions}, 2] for data {list(data.shape)}"
        )


def _compute_aggr(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, data = arrays[0], numerics.read32(arrays[1])
    triples = data.reshape(data.shape[0], -1, 3)
    count, mean, scaled = triples[..., 0], triples[..., 1], triples[..., 2]
    total = count.sum(axis=1)
    overall = (count * mean).sum(axis=1) / total
    spread = scaled.sum(axis=1) + (count * np.square(mean - overall[:, None])).sum(axis=1)
    numerics.write(dst, np.stack([overall, spread / total], axis=1).reshape(dst.shape))


_BN_AGGR = define("bn_aggr", writes("dst", ON_CHIP), reads("data", ON_CHIP), check=_check_aggr, compute=_compute_aggr)


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """dst[P, 2] = mean and (population) variance from one or more bn_stats results in data[P, 3 n]; on Vector."""
    return current().emit(_BN_AGGR, Engine.vector, ("dst", "data"), "wr", (dst, data), name=name)
