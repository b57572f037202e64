"""Instructions that more than one of Vector, Scalar and GpSimd can run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from nki_sim import dtypes
from nki_sim.contract import rules
from nki_sim.contract.contracts import ANY_DTYPE, LONG, ON_CHIP, one_of, or_none, reads, writes
from nki_sim.contract.opcodes import define
from nki_sim.dtypes import DType, as_dtype
from nki_sim.errors import NkiValidationError
from nki_sim.isa.arithmetic import numerics, ops
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Operand, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor

Number = Union[int, float]
_INT32 = (dtypes.int32, dtypes.uint32)
_COMPUTE_ENGINES = (Engine.vector, Engine.scalar, Engine.gpsimd)

# --- tensor_copy ----------------------------------------------------------------------------------


def _check_copy(template: Template) -> None:
    rules.on_chip(template)
    rules.engine(template, _COMPUTE_ENGINES)
    rules.same_size(template, rules.get(template, "dst"), rules.get(template, "src"))


def _compute_copy(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, src = arrays[0], arrays[1]
    src = numerics.shaped(src, dst.shape)
    if dst.dtype == src.dtype:
        dst[...] = src
    else:
        numerics.write(dst, numerics.read32(src))


_TENSOR_COPY = define(
    "tensor_copy", writes("dst", ON_CHIP), reads("src", ON_CHIP), check=_check_copy, compute=_compute_copy
)


def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None, dtype: Any = None
) -> Instruction:
    """dst = src between SBUF and PSUM. Bit-exact for equal dtypes, else converted through float32.

    Same partitions and elements per partition; shapes may differ. Vector unless `engine` says scalar, or
    gpsimd, which reaches SBUF alone. `dtype` is of NKI 0.2 and can only repeat dst's.
    """
    if dtype is not None and as_dtype(dtype) != dst.dtype:
        raise NkiValidationError(f"tensor_copy(dtype={dtype}): the result has dst's dtype, {dst.dtype}; drop dtype=")
    where = Engine.vector if engine is Engine.unknown else engine
    return current().emit(_TENSOR_COPY, where, ("dst", "src"), "wr", (dst, src), name=name)


# --- memset ---------------------------------------------------------------------------------------


class Memset(NamedTuple):
    value: Union[int, float]


def _check_memset(template: Template) -> None:
    rules.computed_on(template, Engine.vector, Engine.gpsimd)
    dst = rules.get(template, "dst")
    value = template.attrs.value
    if not dst.dtype.is_float:
        info = None if dst.dtype == "bool" else np.iinfo(dst.dtype.numpy)
        low, high = (0, 1) if info is None else (int(info.min), int(info.max))
        if value != value or value in (float("inf"), float("-inf")) or int(value) != value or not low <= value <= high:
            raise NkiValidationError(f"memset: value {value!r} is not a {dst.dtype} ({low} to {high})")
    if dst.region is MemoryRegion.psum and dst.dtype.itemsize == 2:
        raise NkiValidationError(
            f"memset: dst {list(dst.shape)} is {dst.dtype} in PSUM, where only 4-byte tiles can be set (NCC_IBIR441): "
            "leave it out, the first nc_matmul overwrites"
        )


def _compute_memset(arrays: Sequence[np.ndarray], attrs: Memset) -> None:
    arrays[0].fill(attrs.value)


_MEMSET = define(
    "memset", writes("dst", ON_CHIP, ANY_DTYPE | LONG), check=_check_memset, compute=_compute_memset, attrs_type=Memset
)


def memset(dst: NkiTensor, value: Number, engine: Engine = Engine.unknown, name: str | None = None) -> Instruction:
    """Fill dst with a compile-time number, which must be exact in an integer dst's dtype. Vector or GpSimd."""
    where = Engine.vector if engine is Engine.unknown else engine
    return current().emit(_MEMSET, where, ("dst",), "w", (dst,), Memset(ops.scalar(value, "memset: value")), name=name)


# --- tensor_tensor --------------------------------------------------------------------------------


class TensorTensor(NamedTuple):
    op: str
    exact: bool
    """Native 32-bit integer arithmetic instead of float32."""


def _check_tensor_tensor(template: Template) -> None:
    attrs: TensorTensor = template.attrs
    op = ops.alu(attrs.op, "tensor_tensor")
    if op.unary:
        raise NkiValidationError(
            f"tensor_tensor takes two tensors, nl.{op.name} takes one: use nisa.tensor_scalar or activation"
        )
    dst, first, second = (rules.get(template, role) for role in ("dst", "data1", "data2"))
    rules.on_chip(template)
    if op.name == "power" and template.engine is not Engine.gpsimd:
        raise NkiValidationError(
            "tensor_tensor: nl.power runs on GpSimd, which cannot access PSUM: keep all three tiles in SBUF"
        )
    rules.engine(template, (Engine.vector,) if op.bitvec else (Engine.vector, Engine.gpsimd))
    rules.same_size(template, dst, first, second)
    rules.not_both_psum(template, first, second)
    if op.bitvec or attrs.exact:
        rules.integers(template, dst, first, second)
    if attrs.exact != _is_exact(template.engine, dst.dtype, first.dtype, second.dtype):
        raise NkiValidationError("tensor_tensor: only GpSimd computes exactly, and only 32-bit integers")


def _is_exact(engine: Engine, *operands: DType) -> bool:
    return engine is Engine.gpsimd and all(dtype in _INT32 for dtype in operands)


def _compute_tensor_tensor(arrays: Sequence[np.ndarray], attrs: TensorTensor) -> None:
    dst, first, second = arrays[0], arrays[1], arrays[2]
    shape = dst.shape
    op = ops.ALU[attrs.op]
    first, second = numerics.shaped(first, shape), numerics.shaped(second, shape)
    if op.bitvec:
        dst[...] = op.function(first, second.astype(first.dtype, copy=False)).astype(dst.dtype)
    elif attrs.exact:
        dst[...] = op.function(first.astype(np.int64), second.astype(np.int64)).astype(dst.dtype)
    else:
        numerics.apply(op.function, dst, numerics.read32(first), numerics.read32(second))


_TENSOR_TENSOR = define(
    "tensor_tensor",
    writes("dst", ON_CHIP),
    reads("data1", ON_CHIP),
    reads("data2", ON_CHIP),
    check=_check_tensor_tensor,
    compute=_compute_tensor_tensor,
    attrs_type=TensorTensor,
    values={"op": one_of(ops.ALU)},
)


def tensor_tensor(
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Any,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Instruction:
    """dst = data1 <op> data2, element by element, in float32.

    Same partitions and elements per partition for all three (no broadcasting); data1 and data2 not both
    in PSUM. Tiles that are all int32/uint32 in SBUF go to GpSimd and are computed exactly; on Vector
    integers pass through float32 (exact to 2^24). nl.power runs on GpSimd; bit operators on Vector.
    """
    op_name = ops.name_of(op, "tensor_tensor")
    integers = data1.dtype in _INT32 and data2.dtype in _INT32 and dst.dtype in _INT32
    if engine is Engine.unknown:
        engine = Engine.vector
        if integers or op_name == "power":
            in_sbuf = MemoryRegion.psum not in (data1.buffer, data2.buffer, dst.buffer)
            bitvec = op_name in ops.ALU and ops.ALU[op_name].bitvec
            engine = Engine.gpsimd if in_sbuf and not bitvec else Engine.vector
    attrs = TensorTensor(op_name, _is_exact(engine, data1.dtype, data2.dtype, dst.dtype))
    return current().emit(
        _TENSOR_TENSOR, engine, ("dst", "data1", "data2"), "wrr", (dst, data1, data2), attrs, name=name
    )


# --- tensor_scalar --------------------------------------------------------------------------------


class TensorScalar(NamedTuple):
    op0: str
    operand0: Union[int, float] | None
    """None: a tensor operand, or none at all if the operator is unary."""
    reverse0: bool
    op1: str | None
    operand1: Union[int, float] | None
    reverse1: bool
    exact: bool
    """32-bit integer arithmetic (address arithmetic on Vector; any on GpSimd)."""


def _check_tensor_scalar(template: Template) -> None:
    attrs: TensorScalar = template.attrs
    dst, data = rules.get(template, "dst"), rules.get(template, "data")
    op0 = ops.alu(attrs.op0, "tensor_scalar")
    op1 = None if attrs.op1 is None else ops.alu(attrs.op1, "tensor_scalar")
    rules.on_chip(template)
    rules.same_size(template, dst, data)
    if op1 is not None and op1.bitvec != op0.bitvec and "bypass" not in (op0.name, op1.name):
        raise NkiValidationError(
            f"tensor_scalar cannot mix bit and arithmetic operators (nl.{op0.name}, nl.{op1.name}): use two calls"
        )
    bitvec = op0.bitvec or (op1 is not None and op1.bitvec)
    if bitvec or attrs.exact:
        rules.integers(template, dst, data)
    extra = [operand.dtype for operand in template.operands if operand.role in ("operand0", "operand1")]
    if attrs.exact != _exact_scalars(template.engine, (data.dtype, dst.dtype), extra, (attrs.operand0, attrs.operand1)):
        raise NkiValidationError("tensor_scalar: 32-bit integers are computed exactly by integers, and no others")
    if bitvec:
        rules.engine(template, (Engine.vector,))
    else:
        rules.engine(template, _COMPUTE_ENGINES)
    if template.engine is Engine.scalar and (attrs.op0, attrs.op1) not in (
        ("multiply", "add"),
        ("multiply", None),
        ("add", None),
    ):
        raise NkiValidationError(
            f"tensor_scalar on the Scalar engine only multiplies, adds, or multiplies and adds; got op0 "
            f"nl.{attrs.op0}, op1 {attrs.op1 and 'nl.' + attrs.op1}: leave engine unset"
        )
    check_scalar_operand(template, data, op0, attrs.operand0, "operand0", attrs.exact)
    if op1 is not None:
        check_scalar_operand(template, data, op1, attrs.operand1, "operand1", attrs.exact)


def check_scalar_operand(
    template: Template,
    data: Operand,
    op: ops.AluOp,
    value: Number | None,
    role: str,
    exact: bool,
    converted: bool = False,
) -> None:
    operand = template.operand(role)
    if op.unary:
        if operand is not None:
            raise NkiValidationError(f"{template.opcode}: nl.{op.name} takes no {role}: pass None or 0")
        return
    if operand is None:
        if value is None:
            raise NkiValidationError(f"{template.opcode}: nl.{op.name} needs {role}, a number or a [P, 1] tile")
        if op.bitvec and type(value) is not int:
            raise NkiValidationError(f"{template.opcode}: nl.{op.name} needs an integer {role}, not {value!r}")
        return
    if value is not None:
        raise NkiValidationError(f"{template.opcode}: {role} is both a number and a tensor")
    rules.per_partition(template, operand, data)
    if op.bitvec or exact:
        rules.integers(template, operand)
    elif not converted:
        rules.dtype_in(template, operand, (dtypes.float32, dtypes.tfloat32))


def _compute_tensor_scalar(arrays: Sequence[np.ndarray], attrs: TensorScalar) -> None:
    dst, data = arrays[0], numerics.shaped(arrays[1], arrays[0].shape)
    op0 = ops.ALU[attrs.op0]
    op1 = None if attrs.op1 is None else ops.ALU[attrs.op1]
    if op0.bitvec or (op1 is not None and op1.bitvec) or attrs.exact:
        _compute_tensor_scalar_integers(arrays, attrs, dst, data, op0, op1)
        return
    at = 2
    value = numerics.read32(data)
    first: Any = attrs.operand0
    if op0.unary:
        first = None
    elif first is None:
        first = numerics.column(arrays[at], dst.ndim)
        at += 1
    else:
        first = np.float32(first)
    second: Any = None
    if op1 is not None and not op1.unary:
        second = attrs.operand1
        second = numerics.column(arrays[at], dst.ndim) if second is None else np.float32(second)
    result = numerics.workspace(dst)
    one_op(op0, value, first, attrs.reverse0, result)
    if op1 is not None:
        one_op(op1, result, second, attrs.reverse1, result)
    if result is not dst:
        numerics.write(dst, result)


def one_op(op: ops.AluOp, value: np.ndarray, operand: Any, reverse: bool, out: np.ndarray) -> None:
    if op.unary:
        op.function(value, out=out)
    elif reverse:
        op.function(operand, value, out=out)
    else:
        op.function(value, operand, out=out)


def _compute_tensor_scalar_integers(
    arrays: Sequence[np.ndarray],
    attrs: TensorScalar,
    dst: np.ndarray,
    data: np.ndarray,
    op0: ops.AluOp,
    op1: ops.AluOp | None,
) -> None:
    at = 2
    value = data
    for op, number, reverse in ((op0, attrs.operand0, attrs.reverse0), (op1, attrs.operand1, attrs.reverse1)):
        if op is None:
            continue
        width = data.dtype if op.bitvec else np.dtype(np.int64)
        value = value.astype(width, copy=False)
        if op.unary:
            value = op.function(value)
            continue
        if number is None:
            operand = arrays[at].astype(width).reshape((data.shape[0],) + (1,) * (data.ndim - 1))
            at += 1
        else:
            operand = _as_bits(int(number), width)
        value = op.function(operand, value) if reverse else op.function(value, operand)
    dst[...] = value.astype(dst.dtype)


def _as_bits(value: int, dtype: np.dtype[Any]) -> np.ndarray:
    """An integer of any sign as the bit pattern of `dtype`."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return np.array(value & ((1 << (8 * dtype.itemsize)) - 1), unsigned).view(dtype)


def takes_tensor(op: str | None, number: Number | None) -> bool:
    """Whether an operator's other side is a tensor: it has one, and it is no number."""
    return op is not None and number is None and not ops.ALU[op].unary


_TENSOR_SCALAR = define(
    "tensor_scalar",
    writes("dst", ON_CHIP),
    reads("data", ON_CHIP),
    reads("operand0", ON_CHIP, when=lambda attrs: takes_tensor(attrs.op0, attrs.operand0)),
    reads("operand1", ON_CHIP, when=lambda attrs: takes_tensor(attrs.op1, attrs.operand1)),
    check=_check_tensor_scalar,
    compute=_compute_tensor_scalar,
    attrs_type=TensorScalar,
    values={"op0": one_of(ops.ALU), "op1": or_none(one_of(ops.ALU))},
)


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Number | NkiTensor | None,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Number | NkiTensor | None = None,
    reverse1: bool = False,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Instruction:
    """dst = (data <op0> operand0) <op1> operand1 in float32; `reverse` swaps an operator's sides.

    Operands are numbers, or float32 tiles [P, 1] that hold one value for each partition. Both operators
    arithmetic, or both on bits (integer tiles, Vector only). Scalar engine: multiply, add, or multiply
    then add. Two operators cost the same as one.
    """
    roles: tuple[str, ...] = ("dst", "data")
    operands: tuple[NkiTensor, ...] = (dst, data)
    name0 = ops.name_of(op0, "tensor_scalar op0")
    number0, roles, operands = scalar_or_tensor(name0, operand0, "operand0", roles, operands)
    name1 = number1 = None
    if op1 is not None:
        name1 = ops.name_of(op1, "tensor_scalar op1")
        number1, roles, operands = scalar_or_tensor(name1, operand1, "operand1", roles, operands)
    elif operand1 is not None:
        raise NkiValidationError("tensor_scalar: operand1 is given without op1")
    if engine is Engine.unknown:
        on_gpsimd = "rsqrt" in (name0, name1) and MemoryRegion.psum not in (data.buffer, dst.buffer)
        engine = Engine.gpsimd if on_gpsimd else Engine.vector
    extra = [tensor.dtype for tensor in operands[2:]]
    exact = _exact_scalars(engine, (data.dtype, dst.dtype), extra, (number0, number1))
    attrs = TensorScalar(name0, number0, bool(reverse0), name1, number1, bool(reverse1), exact)
    return current().emit(_TENSOR_SCALAR, engine, roles, "wrrr"[: len(roles)], operands, attrs, name=name)


def _exact_scalars(
    engine: Engine, tiles: Sequence[DType], extra: Sequence[DType], numbers: Sequence[Number | None]
) -> bool:
    """On GpSimd with integers; on Vector, address arithmetic with integer operands that are tensors."""
    if any(dtype not in _INT32 for dtype in tiles):
        return False
    by_number = engine is Engine.gpsimd and all(n is None or (math.isfinite(n) and n == int(n)) for n in numbers)
    return by_number or (bool(extra) and all(dtype in _INT32 for dtype in extra))


def scalar_or_tensor(
    op_name: str, operand: Number | NkiTensor | None, role: str, roles: tuple[str, ...], operands: tuple[NkiTensor, ...]
) -> tuple[Number | None, tuple[str, ...], tuple[NkiTensor, ...]]:
    """Split an operand that is a number, a tile, or absent: (number, roles, operands)."""
    if isinstance(operand, NkiTensor):
        return None, (*roles, role), (*operands, operand)
    op = ops.ALU.get(op_name)
    if op is not None and op.unary:
        if operand not in (None, 0):
            raise NkiValidationError(f"nl.{op_name} takes no {role}: pass None or 0, not {operand!r}")
        return None, roles, operands
    return (None if operand is None else ops.scalar(operand, role)), roles, operands
