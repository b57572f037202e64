"""VectorE: choosing between values by predicates and index ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from nki_sim import dtypes
from nki_sim.contract import rules
from nki_sim.contract.contracts import (
    FLOATS,
    INTEGERS,
    ON_CHIP,
    integer,
    one_of,
    perhaps,
    reads,
    state,
    updates,
    writes,
)
from nki_sim.contract.opcodes import define
from nki_sim.errors import NkiValidationError
from nki_sim.isa.arithmetic import accumulators, numerics, ops
from nki_sim.isa.arithmetic.shared import Number
from nki_sim.isa.constants import reduce_cmd as _reduce_cmd
from nki_sim.isa.vector_engine import accumulate
from nki_sim.program.program import Engine, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor

FLOAT32_MIN = float(np.finfo(np.float32).min)
_MAX_EXACT_INDEX = 2**24

# --- tensor_copy_predicated -----------------------------------------------------------------------


class CopyPredicated(NamedTuple):
    value: Union[int, float] | None
    """None: src is a tensor."""
    reverse: bool


def _check_copy_predicated(template: Template) -> None:
    attrs: CopyPredicated = template.attrs
    dst, predicate = rules.get(template, "dst"), rules.get(template, "predicate")
    src = template.operand("src")
    rules.computed_on(template, Engine.vector)
    rules.same_size(template, dst, predicate)
    if predicate.dtype.is_float:
        raise NkiValidationError(
            f"tensor_copy_predicated: predicate {list(predicate.shape)} is {predicate.dtype}, must be uint8, uint16 or "
            "uint32: write the comparison into a uint8 tile"
        )
    if (src is None) == (attrs.value is None):
        raise NkiValidationError("tensor_copy_predicated: src must be a number or a tensor")
    if src is not None:
        rules.same_size(template, dst, src)
        rules.not_both_psum(template, src, predicate)


def _compute_copy_predicated(arrays: Sequence[np.ndarray], attrs: CopyPredicated) -> None:
    dst = arrays[0]
    chosen = numerics.shaped(arrays[1], dst.shape) != 0
    if attrs.reverse:
        chosen = ~chosen
    value = np.empty(dst.shape if attrs.value is None else (), dst.dtype)
    if attrs.value is None:
        numerics.write32(value, numerics.shaped(arrays[2], dst.shape))
    else:
        numerics.write(value, np.asarray(attrs.value, np.float32))
    np.copyto(dst, value, where=chosen)


_COPY_PREDICATED = define(
    "tensor_copy_predicated",
    updates("dst", ON_CHIP),
    reads("predicate", ON_CHIP, INTEGERS),
    reads("src", ON_CHIP, when=lambda attrs: attrs.value is None),
    check=_check_copy_predicated,
    compute=_compute_copy_predicated,
    attrs_type=CopyPredicated,
)


def tensor_copy_predicated(
    dst: NkiTensor, src: Number | NkiTensor, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None
) -> Instruction:
    """dst = src where predicate is non-zero (zero with reverse_pred); elsewhere dst keeps its values. Vector.

    predicate: integer tile of dst's size; src: a number or a tile of dst's size. src and predicate not both
    in PSUM.
    """
    roles: tuple[str, ...] = ("dst", "predicate")
    operands: tuple[NkiTensor, ...] = (dst, predicate)
    number: Number | None = None
    if isinstance(src, NkiTensor):
        roles, operands = (*roles, "src"), (*operands, src)
    else:
        number = ops.scalar(src, "tensor_copy_predicated: src")
    attrs = CopyPredicated(number, bool(reverse_pred))
    return current().emit(_COPY_PREDICATED, Engine.vector, roles, "urr"[: len(roles)], operands, attrs, name=name)


# --- range_select ---------------------------------------------------------------------------------


class RangeSelect(NamedTuple):
    comp_op0: str
    comp_op1: str
    reduce_cmd: _reduce_cmd
    range_start: int


_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")


def _letter(command: _reduce_cmd) -> str:
    """The registers are read out even where nothing is reduced."""
    return "w" if command in (_reduce_cmd.reset, _reduce_cmd.reset_reduce) else "u"


def _accumulators_access(attrs: Any) -> str:
    return _letter(attrs.reduce_cmd)


def _check_range_select(template: Template) -> None:
    attrs: RangeSelect = template.attrs
    dst, data = rules.get(template, "dst"), rules.get(template, "on_true_tile")
    for op in (attrs.comp_op0, attrs.comp_op1):
        if op not in _COMPARISONS:
            raise NkiValidationError(
                f"range_select: nl.{op} is not one of {', '.join(f'nl.{name}' for name in _COMPARISONS)}"
            )
    rules.computed_on(template, Engine.vector)
    rules.same_size(template, dst, data)
    if not data.dtype.is_float:
        raise NkiValidationError(f"range_select: on_true_tile must be a float tile, not {data.dtype}")
    for role in ("bound0", "bound1"):
        bound = rules.get(template, role)
        rules.per_partition(template, bound, data)
        rules.dtype_in(template, bound, (dtypes.float32,))
    if attrs.range_start < 0 or attrs.range_start + data.free_size > _MAX_EXACT_INDEX:
        raise NkiValidationError(
            f"range_select compares indices in float32: range_start {attrs.range_start} + {data.free_size} must stay "
            "within 2^24"
        )
    _check_reduction(template, attrs.reduce_cmd)


def _check_reduction(template: Template, command: _reduce_cmd) -> None:
    if command is _reduce_cmd.load_reduce:
        raise NkiValidationError(f"{template.opcode}: reduce_cmd.load_reduce is not supported")
    rules.get(template, "accumulators")
    result = template.operand("reduce_res")
    if result is not None:
        rules.per_partition(template, result, rules.get(template, "dst"))


def _finish_max(arrays: Sequence[np.ndarray], at: int, values: np.ndarray, command: _reduce_cmd) -> None:
    """Write the selection, run the accumulators at `at` over it, and read them out where asked."""
    dst, registers = arrays[0], arrays[at]
    accumulate(ops.ALU["maximum"], registers, values, command)
    numerics.write(dst, values)
    if at + 1 < len(arrays):
        numerics.write(arrays[at + 1], registers.reshape(arrays[at + 1].shape))


def _compute_range_select(arrays: Sequence[np.ndarray], attrs: RangeSelect) -> None:
    dst = arrays[0]
    data = numerics.read32(numerics.shaped(arrays[1], dst.shape))
    rows = dst.shape[0]
    indices = np.arange(dst.size // rows, dtype=np.float32) + np.float32(attrs.range_start)
    first = ops.ALU[attrs.comp_op0].function(indices, numerics.column(arrays[2], 2))
    second = ops.ALU[attrs.comp_op1].function(indices, numerics.column(arrays[3], 2))
    values = np.where((first & second).reshape(dst.shape), data, np.float32(FLOAT32_MIN))
    _finish_max(arrays, 4, values, attrs.reduce_cmd)


_RANGE_SELECT = define(
    "range_select",
    writes("dst", ON_CHIP),
    reads("on_true_tile", ON_CHIP, FLOATS),
    reads("bound0", ON_CHIP, (dtypes.float32,)),
    reads("bound1", ON_CHIP, (dtypes.float32,)),
    state("accumulators", _accumulators_access, dtypes.float32, 1, "on_true_tile"),
    perhaps(writes("reduce_res", ON_CHIP)),
    check=_check_range_select,
    compute=_compute_range_select,
    attrs_type=RangeSelect,
    values={
        "comp_op0": one_of(_COMPARISONS),
        "comp_op1": one_of(_COMPARISONS),
        "range_start": integer(0, _MAX_EXACT_INDEX),
    },
)


def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: _reduce_cmd = _reduce_cmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = None,
    range_start: int = 0,
    on_false_value: float = FLOAT32_MIN,
    name: str | None = None,
) -> Instruction:
    """dst = on_true_tile where both index comparisons hold, else the lowest float32; on Vector.

    The index of an element is range_start + its position in the partition; bound0 and bound1 are float32
    tiles [P, 1]. The row maximum goes to the accumulator registers, and to reduce_res [P, 1] when given.
    """
    if not on_false_value <= FLOAT32_MIN or on_false_value == float("-inf"):
        raise NkiValidationError(f"range_select: on_false_value must be {FLOAT32_MIN}, not {on_false_value!r}")
    _only_maximum(reduce_op, "range_select")
    attrs = RangeSelect(
        ops.name_of(comp_op0, "range_select comp_op0"),
        ops.name_of(comp_op1, "range_select comp_op1"),
        reduce_cmd,
        int(range_start),
    )
    roles = ("dst", "on_true_tile", "bound0", "bound1", "accumulators")
    operands = (dst, on_true_tile, bound0, bound1, accumulators.lanes(Engine.vector, on_true_tile))
    return _emit_reducing(_RANGE_SELECT, roles, "wrrr", operands, reduce_cmd, reduce_res, attrs, name)


def _only_maximum(reduce_op: Any, what: str) -> None:
    if reduce_op is not None and ops.name_of(reduce_op, what) != "maximum":
        raise NkiValidationError(f"{what}: reduce_op must be nl.maximum, not nl.{ops.name_of(reduce_op, what)}")


def _emit_reducing(
    opcode: Any,
    roles: tuple[str, ...],
    access: str,
    operands: tuple[NkiTensor, ...],
    command: _reduce_cmd,
    reduce_res: NkiTensor | None,
    attrs: Any,
    name: str | None,
) -> Instruction:
    """Emit with the accumulators as last operand so far, then reduce_res."""
    access += _letter(command)
    if reduce_res is not None:
        roles, operands, access = (*roles, "reduce_res"), (*operands, reduce_res), access + "w"
    return current().emit(opcode, Engine.vector, roles, access, operands, attrs, name)


# --- select_reduce --------------------------------------------------------------------------------


class SelectReduce(NamedTuple):
    on_false: Union[int, float] | None
    """None: a tensor [P, 1]."""
    reduce_cmd: _reduce_cmd
    reverse: bool


def _check_select_reduce(template: Template) -> None:
    attrs: SelectReduce = template.attrs
    dst, predicate, on_true = (rules.get(template, role) for role in ("dst", "predicate", "on_true"))
    rules.computed_on(template, Engine.vector)
    rules.same_size(template, dst, predicate, on_true)
    rules.not_both_psum(template, on_true, predicate)
    rules.integers(template, predicate)
    if on_true.dtype in (dtypes.tfloat32, dtypes.int32, dtypes.uint32):
        raise NkiValidationError(f"select_reduce: on_true {list(on_true.shape)} cannot be {on_true.dtype}")
    on_false = template.operand("on_false")
    if (on_false is None) == (attrs.on_false is None):
        raise NkiValidationError("select_reduce: on_false must be a number or a [P, 1] tile")
    if on_false is not None:
        rules.per_partition(template, on_false, on_true)
    _check_reduction(template, attrs.reduce_cmd)


def _compute_select_reduce(arrays: Sequence[np.ndarray], attrs: SelectReduce) -> None:
    dst = arrays[0]
    chosen = numerics.shaped(arrays[1], dst.shape) != 0
    if attrs.reverse:
        chosen = ~chosen
    at = 3
    other: Any = attrs.on_false
    if other is None:
        other = numerics.column(arrays[at], dst.ndim)
        at += 1
    values = np.where(chosen, numerics.read32(numerics.shaped(arrays[2], dst.shape)), np.float32(other))
    _finish_max(arrays, at, values, attrs.reduce_cmd)


_SELECT_REDUCE = define(
    "select_reduce",
    writes("dst", ON_CHIP),
    reads("predicate", ON_CHIP, INTEGERS),
    reads("on_true", ON_CHIP),
    reads("on_false", ON_CHIP, when=lambda attrs: attrs.on_false is None),
    state("accumulators", _accumulators_access, dtypes.float32, 1, "on_true"),
    perhaps(writes("reduce_res", ON_CHIP)),
    check=_check_select_reduce,
    compute=_compute_select_reduce,
    attrs_type=SelectReduce,
)


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Number | NkiTensor,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: _reduce_cmd = _reduce_cmd.idle,
    reduce_op: Any = None,
    reverse_pred: bool = False,
    name: str | None = None,
) -> Instruction:
    """dst = on_true where predicate is non-zero, else on_false (number or tile [P, 1]); on Vector.

    With reduce_cmd reset_reduce or reduce, the row maximum is accumulated and written to reduce_res [P, 1].
    """
    _only_maximum(reduce_op, "select_reduce")
    roles: tuple[str, ...] = ("dst", "predicate", "on_true")
    operands: tuple[NkiTensor, ...] = (dst, predicate, on_true)
    number: Number | None = None
    if isinstance(on_false, NkiTensor):
        roles, operands = (*roles, "on_false"), (*operands, on_false)
    else:
        number = ops.scalar(on_false, "select_reduce: on_false")
    access = "wrrr"[: len(roles)]
    roles, operands = (*roles, "accumulators"), (*operands, accumulators.lanes(Engine.vector, on_true))
    attrs = SelectReduce(number, reduce_cmd, bool(reverse_pred))
    return _emit_reducing(_SELECT_REDUCE, roles, access, operands, reduce_cmd, reduce_res, attrs, name)
