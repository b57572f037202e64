"""VectorE: results that depend on the element before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from nki_sim import dtypes
from nki_sim.contract import rules
from nki_sim.contract.contracts import ANY_DTYPE, ON_CHIP, WORDS, one_of, perhaps, reads, state, writes
from nki_sim.contract.opcodes import define
from nki_sim.errors import NkiValidationError
from nki_sim.isa.arithmetic import accumulators, numerics, ops
from nki_sim.isa.arithmetic.shared import Number, check_scalar_operand, one_op, scalar_or_tensor, takes_tensor
from nki_sim.isa.constants import reduce_cmd as _reduce_cmd
from nki_sim.program.program import Engine, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor

# --- tensor_tensor_scan ---------------------------------------------------------------------------


class TensorTensorScan(NamedTuple):
    op0: str
    op1: str
    reverse0: bool
    reverse1: bool
    initial: Union[int, float] | None
    """None: a tensor [P, 1]."""


def _check_scan(template: Template) -> None:
    attrs: TensorTensorScan = template.attrs
    dst, data0, data1 = (rules.get(template, role) for role in ("dst", "data0", "data1"))
    for name in (attrs.op0, attrs.op1):
        op = ops.alu(name, "tensor_tensor_scan")
        if op.bitvec or op.unary:
            raise NkiValidationError(f"tensor_tensor_scan: nl.{name} is not a binary arithmetic operator")
    rules.computed_on(template, Engine.vector)
    rules.same_size(template, dst, data0, data1)
    rules.not_both_psum(template, data0, data1)
    initial = template.operand("initial")
    if (initial is None) == (attrs.initial is None):
        raise NkiValidationError("tensor_tensor_scan: initial must be a number or a [P, 1] tile")
    if initial is not None:
        rules.per_partition(template, initial, data0)


def _compute_scan(arrays: Sequence[np.ndarray], attrs: TensorTensorScan) -> None:
    dst = arrays[0]
    rows = dst.shape[0]
    op0, op1 = (
        _in_order(ops.ALU[name].function, reverse)
        for name, reverse in ((attrs.op0, attrs.reverse0), (attrs.op1, attrs.reverse1))
    )
    # one contiguous line per step, so that a step is two calls on contiguous memory
    first = np.ascontiguousarray(numerics.read32(arrays[1]).reshape(rows, -1).T)
    # a copy even of one that is laid out so already: its first line is added to below
    second = np.array(numerics.read32(arrays[2]).reshape(rows, -1).T, order="C")
    state = np.empty(rows, np.float32)
    state[...] = numerics.column(arrays[3], 2)[:, 0] if attrs.initial is None else attrs.initial
    result = np.empty_like(first)
    if attrs.op0 == "multiply" and attrs.op1 == "add" and not attrs.reverse1 and bool((first == 1).all()):
        np.add(state, second[0], out=second[0])
        np.add.accumulate(second, axis=0, out=result)
    else:
        step = np.empty(rows, np.float32)
        for left, right, line in zip(first, second, result):
            op0(left, state, out=step)
            op1(step, right, out=line)
            state = line
    numerics.write(dst, result.T.reshape(dst.shape))


def _in_order(function: Any, reverse: bool) -> Any:
    """Of (left, right, out)."""
    return (lambda left, right, out: function(right, left, out=out)) if reverse else function


_SCAN = define(
    "tensor_tensor_scan",
    writes("dst", ON_CHIP),
    reads("data0", ON_CHIP),
    reads("data1", ON_CHIP),
    reads("initial", ON_CHIP, when=lambda attrs: attrs.initial is None),
    check=_check_scan,
    compute=_compute_scan,
    attrs_type=TensorTensorScan,
    values={"op0": one_of(ops.ALU), "op1": one_of(ops.ALU)},
)


def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Number | NkiTensor,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Instruction:
    """dst[:, i] = (data0[:, i] <op0> dst[:, i-1]) <op1> data1[:, i], starting from `initial`; on Vector in float32.

    initial: a number or a tile [P, 1]. data0 and data1 not both in PSUM. With op0 multiply and op1 add this
    is the linear recurrence h = a * h + b.
    """
    roles: tuple[str, ...] = ("dst", "data0", "data1")
    operands: tuple[NkiTensor, ...] = (dst, data0, data1)
    number: Number | None = None
    if isinstance(initial, NkiTensor):
        roles, operands = (*roles, "initial"), (*operands, initial)
    else:
        number = ops.scalar(initial, "tensor_tensor_scan: initial")
    attrs = TensorTensorScan(
        ops.name_of(op0, "tensor_tensor_scan op0"),
        ops.name_of(op1, "tensor_tensor_scan op1"),
        bool(reverse0),
        bool(reverse1),
        number,
    )
    return current().emit(_SCAN, Engine.vector, roles, "wrrr"[: len(roles)], operands, attrs, name=name)


# --- tensor_scalar_cumulative ---------------------------------------------------------------------


class TensorScalarCumulative(NamedTuple):
    op0: str
    imm0: Union[int, float] | None
    op1: str
    imm1: Union[int, float] | None
    reduce_cmd: _reduce_cmd


_CUMULATES = ("add", "subtract", "multiply", "maximum", "minimum")


def _check_cumulative(template: Template) -> None:
    attrs: TensorScalarCumulative = template.attrs
    dst, src = rules.get(template, "dst"), rules.get(template, "src")
    op0 = ops.alu(attrs.op0, "tensor_scalar_cumulative")
    if op0.bitvec:
        raise NkiValidationError(f"tensor_scalar_cumulative: bit operator nl.{op0.name} is not supported")
    if attrs.op1 not in _CUMULATES:
        raise NkiValidationError(
            f"tensor_scalar_cumulative: op1 nl.{attrs.op1} must be one of {', '.join(f'nl.{n}' for n in _CUMULATES)}"
        )
    rules.computed_on(template, Engine.vector)
    rules.same_size(template, dst, src)
    for operand in (dst, src):
        if operand.dtype in (dtypes.int32, dtypes.uint32):
            raise NkiValidationError(f"tensor_scalar_cumulative: {operand.role} cannot be {operand.dtype}: use float32")
    check_scalar_operand(template, src, op0, attrs.imm0, "imm0", False)
    loads = attrs.reduce_cmd is _reduce_cmd.load_reduce
    start = template.operand("imm1")
    if loads and (start is None) == (attrs.imm1 is None):
        raise NkiValidationError("tensor_scalar_cumulative: load_reduce starts from imm1, a number or a [P, 1] tile")
    if start is not None:
        rules.per_partition(template, start, src)
    if attrs.reduce_cmd in (_reduce_cmd.idle, _reduce_cmd.reset):
        raise NkiValidationError(f"tensor_scalar_cumulative: reduce_cmd.{attrs.reduce_cmd.name} is not supported")
    rules.get(template, "accumulators")


def _compute_cumulative(arrays: Sequence[np.ndarray], attrs: TensorScalarCumulative) -> None:
    dst, registers = arrays[0], arrays[2]
    rows = dst.shape[0]
    op0, op1 = ops.ALU[attrs.op0], ops.ALU[attrs.op1]
    at = 3
    operand: Any = None
    if not op0.unary:
        if attrs.imm0 is None:
            operand = numerics.column(arrays[at], 2)
            at += 1
        else:
            operand = np.float32(attrs.imm0)
    state = registers[:, 0].copy()
    if attrs.reduce_cmd is _reduce_cmd.reset_reduce:
        state[...] = op1.identity
    elif attrs.reduce_cmd is _reduce_cmd.load_reduce:
        state[...] = numerics.column(arrays[at], 2)[:, 0] if attrs.imm1 is None else attrs.imm1
    src = numerics.read32(arrays[1]).reshape(rows, -1)
    values = np.empty(src.shape, np.float32)
    one_op(op0, src, operand, False, values)
    if attrs.op1 == "subtract":
        for i in range(values.shape[1]):
            state = values[:, i] - state
            values[:, i] = state
    else:
        op1.function(values[:, 0], state, out=values[:, 0])
        values = op1.function.accumulate(values, axis=1)
    registers[:, 0] = values[:, -1]
    numerics.write(dst, values.reshape(dst.shape))


_NARROW = ANY_DTYPE - WORDS
_CUMULATIVE = define(
    "tensor_scalar_cumulative",
    writes("dst", ON_CHIP, _NARROW),
    reads("src", ON_CHIP, _NARROW),
    state("accumulators", accumulators.access, dtypes.float32, 1, "src"),
    reads("imm0", ON_CHIP, when=lambda attrs: takes_tensor(attrs.op0, attrs.imm0)),
    perhaps(reads("imm1", ON_CHIP)),
    check=_check_cumulative,
    compute=_compute_cumulative,
    attrs_type=TensorScalarCumulative,
    values={"op0": one_of(ops.ALU), "op1": one_of(_CUMULATES)},
)


def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Number | NkiTensor | None,
    imm1: Number | NkiTensor | None = None,
    reduce_cmd: _reduce_cmd = _reduce_cmd.reset_reduce,
    name: str | None = None,
) -> Instruction:
    """dst[:, i] = reg = (src[:, i] <op0> imm0) <op1> reg: a running reduction of every element; on Vector.

    op1: add, subtract, multiply, maximum or minimum. reg starts at op1's identity (reset_reduce), goes on
    from the accumulator registers (reduce) or from imm1 (load_reduce). No 32-bit integer tiles.
    """
    name0 = ops.name_of(op0, "tensor_scalar_cumulative op0")
    registers = accumulators.lanes(Engine.vector, src)
    number, roles, operands = scalar_or_tensor(
        name0, imm0, "imm0", ("dst", "src", "accumulators"), (dst, src, registers)
    )
    start: Number | None = None
    if isinstance(imm1, NkiTensor):
        roles, operands = (*roles, "imm1"), (*operands, imm1)
    elif imm1 is not None:
        start = ops.scalar(imm1, "tensor_scalar_cumulative: imm1")
    attrs = TensorScalarCumulative(name0, number, ops.name_of(op1, "tensor_scalar_cumulative op1"), start, reduce_cmd)
    access = "wr" + accumulators.ACCESS[reduce_cmd] + "rr"
    return current().emit(_CUMULATIVE, Engine.vector, roles, access[: len(roles)], operands, attrs, name=name)
