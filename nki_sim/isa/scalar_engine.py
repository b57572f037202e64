"""ScalarE: activation functions with a fused scale, bias and row sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from nki_sim import dtypes
from nki_sim.contract import rules
from nki_sim.contract.contracts import ANY_DTYPE, ON_CHIP, one_of, perhaps, reads, state, writes
from nki_sim.contract.opcodes import define
from nki_sim.errors import NkiValidationError
from nki_sim.isa.arithmetic import accumulators, numerics, ops
from nki_sim.isa.arithmetic.shared import Number
from nki_sim.isa.constants import reduce_cmd as _reduce_cmd
from nki_sim.isa.vector_engine import accumulate
from nki_sim.program.program import Engine, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor


class Activation(NamedTuple):
    op: str
    scale: Union[int, float] | None
    """None: a tensor operand."""
    bias: Union[int, float] | None
    """None: a tensor operand."""
    reduce_cmd: _reduce_cmd


def _check_activation(template: Template) -> None:
    attrs: Activation = template.attrs
    dst, data = rules.get(template, "dst"), rules.get(template, "data")
    ops.activation(attrs.op, "activation")
    rules.computed_on(template, Engine.scalar)
    rules.same_size(template, dst, data)
    for role, value in (("scale", attrs.scale), ("bias", attrs.bias)):
        operand = template.operand(role)
        if (operand is None) == (value is None):
            raise NkiValidationError(f"activation: {role} must be a number or a tensor, one of the two")
        if operand is not None:
            rules.per_partition(template, operand, data)
            if role == "scale":
                rules.dtype_in(template, operand, (dtypes.float32,))
            elif operand.dtype == dtypes.tfloat32:
                raise NkiValidationError("activation: bias cannot be tfloat32: use float32")
    idle = _reduce_cmd.idle
    if attrs.reduce_cmd is _reduce_cmd.load_reduce:
        raise NkiValidationError("activation: reduce_cmd.load_reduce is Vector's; use reset_reduce or reduce")
    result = template.operand("reduce_res")
    if result is not None:
        rules.per_partition(template, result, data)
    if (template.operand("accumulators") is not None) != (result is not None or attrs.reduce_cmd is not idle):
        raise NkiValidationError("activation: it has accumulators where it uses them, and only there")


def _compute_activation(arrays: Sequence[np.ndarray], attrs: Activation) -> None:
    dst = arrays[0]
    data = numerics.read32(numerics.shaped(arrays[1], dst.shape))
    at = 2
    scale: Any = attrs.scale
    if scale is None:
        scale = numerics.column(arrays[at], dst.ndim)
        at += 1
    bias: Any = attrs.bias
    if bias is None:
        bias = numerics.column(arrays[at], dst.ndim)
        at += 1
    value = numerics.workspace(dst)
    if attrs.scale != 1:
        np.multiply(data, scale if attrs.scale is None else np.float32(scale), out=value)
        data = value
    if attrs.bias != 0:
        np.add(data, bias if attrs.bias is None else np.float32(bias), out=value)
        data = value
    ops.ACTIVATIONS[attrs.op](data, value)
    if at < len(arrays):
        registers = arrays[at]
        accumulate(ops.ALU["add"], registers, value, attrs.reduce_cmd)
    if value is not dst:
        numerics.write(dst, value)
    if at + 1 < len(arrays):
        numerics.write(arrays[at + 1], arrays[at].reshape(arrays[at + 1].shape))


_ACTIVATION = define(
    "activation",
    writes("dst", ON_CHIP),
    reads("data", ON_CHIP),
    reads("scale", ON_CHIP, (dtypes.float32,), when=lambda attrs: attrs.scale is None),
    reads("bias", ON_CHIP, ANY_DTYPE - {dtypes.tfloat32}, when=lambda attrs: attrs.bias is None),
    perhaps(state("accumulators", accumulators.access, dtypes.float32, 1, "data")),
    perhaps(writes("reduce_res", ON_CHIP)),
    check=_check_activation,
    compute=_compute_activation,
    attrs_type=Activation,
    values={"op": one_of(ops.ACTIVATIONS)},
)


def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Number | NkiTensor | None = None,
    scale: Number | NkiTensor = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: _reduce_cmd = _reduce_cmd.idle,
    name: str | None = None,
) -> Instruction:
    """dst = op(data * scale + bias) on Scalar in float32, optionally with a sum along the free dimensions.

    scale: number or float32 tile [P, 1]; bias: number or tile [P, 1]. With reduce_op=nl.add, `reduce_cmd`
    reset_reduce sums this tile, reduce adds to the running sum; reduce_res [P, 1] receives the sum.
    With reduce_cmd idle (the default) the registers are left alone.
    """
    if reduce_op is not None and ops.name_of(reduce_op, "activation reduce_op") != "add":
        raise NkiValidationError(f"activation: reduce_op must be nl.add, not nl.{ops.name_of(reduce_op, 'reduce_op')}")
    roles: tuple[str, ...] = ("dst", "data")
    operands: tuple[NkiTensor, ...] = (dst, data)
    access = "wr"
    scale_value: Number | None = None
    if isinstance(scale, NkiTensor):
        roles, operands, access = (*roles, "scale"), (*operands, scale), access + "r"
    else:
        scale_value = ops.scalar(scale, "activation: scale")
    bias_value: Number | None = None
    if isinstance(bias, NkiTensor):
        roles, operands, access = (*roles, "bias"), (*operands, bias), access + "r"
    else:
        bias_value = 0.0 if bias is None else ops.scalar(bias, "activation: bias")
    if reduce_res is not None or reduce_cmd is not _reduce_cmd.idle:
        registers = accumulators.lanes(Engine.scalar, data)
        how = accumulators.ACCESS[reduce_cmd]
        roles, operands, access = (*roles, "accumulators"), (*operands, registers), access + how
    if reduce_res is not None:
        roles, operands, access = (*roles, "reduce_res"), (*operands, reduce_res), access + "w"
    attrs = Activation(ops.name_of(op, "activation"), scale_value, bias_value, reduce_cmd)
    return current().emit(_ACTIVATION, Engine.scalar, roles, access, operands, attrs, name=name)


def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    bias: Number | NkiTensor | None = None,
    scale: Number | NkiTensor = 1.0,
    name: str | None = None,
) -> Instruction:
    """dst = op(data * scale + bias) and its sum along the free dimensions in reduce_res [P, 1], on Scalar.

    The same as activation with reduce_cmd.reset_reduce.
    """
    return activation(dst, op, data, bias, scale, reduce_op, reduce_res, _reduce_cmd.reset_reduce, name)
