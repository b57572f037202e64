"""Scalars (NKI 0.7): integers of the sequencer with value semantics, for offsets and bounds of device loops.

A scalar is a register that is written once. Loading, storing and every operator is an instruction of the sequencer
(SyncE's here), so a program holds all of a kernel's address arithmetic. Source: NKI's pages of NkiScalar, scalar_load
and scalar_store, SDK 2.33.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nki_sim.contract import rules
from nki_sim.contract.contracts import HBM, REGISTER, SBUF, integer, one_of, or_none, reads, writes
from nki_sim.contract.opcodes import define
from nki_sim.dtypes import DType, int32, int64, uint32, uint64
from nki_sim.errors import DeviceValueMisused, NkiValidationError
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Operand, Template
from nki_sim.tracing.session import current
from nki_sim.tracing.tensor import DeviceNumber, NkiTensor

_SCALARS = frozenset({int32, int64})
_STORED = _SCALARS | {uint32, uint64}
_OPERATORS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}


class ScalarArithmetic(NamedTuple):
    op: str
    operand: int | None
    """A constant in place of the second scalar."""
    reverse: bool
    """The constant comes first."""


def _check_moved(template: Template) -> None:
    rules.engine(template, (Engine.sync,))
    for operand in template.operands:
        if operand.region is not MemoryRegion.register and operand.shape != (1, 1):
            raise NkiValidationError(
                f"{template.opcode}: {operand.role} {list(operand.shape)} must be a 1x1 tensor: slice or reshape it to "
                "(1, 1)"
            )
        _one_element(template, operand)
    dst, src = template.operands
    if dst.dtype.itemsize != src.dtype.itemsize or (template.opcode == "scalar_load" and dst.dtype != src.dtype):
        raise NkiValidationError(
            f"{template.opcode}: {src.role} is {src.dtype} and {dst.role} is {dst.dtype}; a scalar keeps its width"
        )


def _compute_moved(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, src = arrays
    dst[...] = src.astype(dst.dtype).reshape(dst.shape)


def _check_arithmetic(template: Template) -> None:
    rules.engine(template, (Engine.sync,))
    dst, attrs = template.operands[0], template.attrs
    for operand in template.operands:
        _one_element(template, operand)
        if operand.dtype != dst.dtype:
            raise NkiValidationError(
                f"scalar_arithmetic: {operand.role} is {operand.dtype} and {dst.role} is {dst.dtype}: scalars of one "
                "dtype only, nothing is widened"
            )
    limit = 1 << (8 * dst.dtype.itemsize - 1)
    if attrs.operand is not None and not -limit <= attrs.operand < limit:
        raise NkiValidationError(f"scalar_arithmetic: {attrs.operand} does not fit in {dst.dtype}")
    if attrs.reverse and attrs.operand is None:
        raise NkiValidationError("scalar_arithmetic: only a constant comes first")


def _one_element(template: Template, operand: Operand) -> None:
    if operand.elements != 1:
        raise NkiValidationError(f"{template.opcode}: {operand.role} {list(operand.shape)} must hold one element")


def _compute_arithmetic(arrays: Sequence[np.ndarray], attrs: ScalarArithmetic) -> None:
    """Wraps, as arrays of fixed width do."""
    dst, left = arrays[0], arrays[1]
    right = arrays[2] if attrs.operand is None else np.full(left.shape, attrs.operand, left.dtype)
    if attrs.reverse:
        left, right = right, left
    dst[...] = _OPERATORS[attrs.op](left, right)


_LOAD = define(
    "scalar_load",
    writes("dst", REGISTER, _SCALARS),
    reads("src", HBM | SBUF, _SCALARS),
    check=_check_moved,
    compute=_compute_moved,
)
_STORE = define(
    "scalar_store",
    writes("dst", HBM | SBUF, _STORED),
    reads("value", REGISTER, _SCALARS),
    check=_check_moved,
    compute=_compute_moved,
)
_ARITHMETIC = define(
    "scalar_arithmetic",
    writes("dst", REGISTER, _SCALARS),
    reads("left", REGISTER, _SCALARS),
    reads("right", REGISTER, _SCALARS, when=lambda attrs: attrs.operand is None),
    check=_check_arithmetic,
    compute=_compute_arithmetic,
    attrs_type=ScalarArithmetic,
    values={"op": one_of(_OPERATORS), "operand": or_none(integer(-(1 << 63), (1 << 63) - 1))},
)


class NkiScalar(DeviceNumber):
    """An int32 or int64 that only the device knows: what `nisa.scalar_load` returns, and the index of a device loop.

    `+ - *` and unary `-`, with an int or a scalar of the same dtype, give a new scalar of that dtype; int32 wraps.
    Use it as `scalar_offset=`, in `.select()`, as a bound of `nl.fori_loop` (int32), in `nisa.scalar_store`. Kernels
    do not construct it. Raises TypeError where Python wants its value, which tracing does not know.
    """

    __slots__ = ("dtype", "is_comparison")

    def __init__(self, state: NkiTensor, dtype: DType | None = None, is_comparison: bool = False) -> None:
        """`state`: the register [1, 1] that holds it."""
        super().__init__(state)
        self.dtype = state.dtype if dtype is None else dtype
        self.is_comparison = is_comparison
        """The outcome of a comparison, which nothing can use."""

    def steering(self) -> NkiTensor:
        """The register. Raises NkiValidationError for the outcome of a comparison."""
        usable(self, "an offset")
        return self.register

    def __repr__(self) -> str:
        return f"NkiScalar({'comparison' if self.is_comparison else self.dtype})"

    # --- arithmetic -------------------------------------------------------------------------------

    def __add__(self, other: Any) -> NkiScalar:
        return self._arithmetic("add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> NkiScalar:
        return self._arithmetic("subtract", other)

    def __rsub__(self, other: Any) -> NkiScalar:
        return self._arithmetic("subtract", other, reverse=True)

    def __mul__(self, other: Any) -> NkiScalar:
        return self._arithmetic("multiply", other)

    __rmul__ = __mul__

    def __neg__(self) -> NkiScalar:
        return self._arithmetic("subtract", 0, reverse=True)

    def _arithmetic(self, op: str, other: Any, reverse: bool = False) -> NkiScalar:
        usable(self, "arithmetic")
        tracer = current()
        dst = tracer.allocate((1, 1), self.dtype, MemoryRegion.register, "scalar")
        operands: tuple[NkiTensor, ...] = (dst, self.register)
        constant = None
        if isinstance(other, NkiScalar):
            usable(other, "arithmetic")
            operands = (*operands, other.register)
        else:
            constant = self._constant(other)
        roles = ("dst", "left", "right")[: len(operands)]
        access = "wrr"[: len(operands)]
        tracer.emit(_ARITHMETIC, Engine.sync, roles, access, operands, ScalarArithmetic(op, constant, reverse))
        return NkiScalar(dst)

    def _constant(self, other: Any) -> int:
        try:
            return operator.index(other)
        except TypeError:
            raise DeviceValueMisused(
                f"arithmetic of an NkiScalar takes an int or an NkiScalar, not {type(other).__name__}"
            ) from None

    # --- comparisons, which nothing can use -------------------------------------------------------

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return self._comparison(other)

    def __ne__(self, other: object) -> Any:
        return self._comparison(other)

    def __lt__(self, other: object) -> Any:
        return self._comparison(other)

    def __le__(self, other: object) -> Any:
        return self._comparison(other)

    def __gt__(self, other: object) -> Any:
        return self._comparison(other)

    def __ge__(self, other: object) -> Any:
        return self._comparison(other)

    def _comparison(self, other: object) -> Any:
        if not isinstance(other, (int, np.integer, NkiScalar)):
            return NotImplemented  # `scalar == None` asks Python, not the device
        if self.dtype == int64:
            raise NkiValidationError("int64 scalars cannot be compared: load a condition with nisa.register_load")
        return NkiScalar(self.register, is_comparison=True)

    # --- what Python cannot have ------------------------------------------------------------------

    def __bool__(self) -> bool:
        raise _misused("in if, while, and, or, not and bool()", "loop with nl.fori_loop or nl.while_loop")

    def __int__(self) -> int:
        raise _misused("as an int", "loop with nl.fori_loop")

    def __index__(self) -> int:
        raise _misused("in range() or as an index", "nl.fori_loop(lower, upper, body), or .ap(scalar_offset=...)")

    def __float__(self) -> float:
        raise _misused("as a float", "store it with nisa.scalar_store and compute on the tile")

    def _unlisted(self, other: Any) -> Any:
        raise DeviceValueMisused("NkiScalar has + - * and unary - only: compute on a tile, with nisa.tensor_scalar")

    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _unlisted
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _unlisted
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _unlisted


def _misused(where: str, instead: str) -> DeviceValueMisused:
    return DeviceValueMisused(f"an NkiScalar has no value while the kernel is traced, {where}: {instead}")


def usable(scalar: NkiScalar, what: str) -> None:
    """Raises NkiValidationError for the outcome of a comparison."""
    if scalar.is_comparison:
        raise NkiValidationError(f"{what}: the outcome of comparing an NkiScalar cannot be used")


def scalar_load(src: NkiTensor) -> NkiScalar:
    """The integer in src [1, 1], int32 or int64 in SBUF or HBM, as a new NkiScalar of src's dtype; traced, not read.

    Raises NkiValidationError for other shapes, memories and dtypes.
    """
    dst = current().allocate((1, 1), src.dtype, MemoryRegion.register, "scalar")
    current().emit(_LOAD, Engine.sync, ("dst", "src"), "wr", (dst, src))
    return NkiScalar(dst)


def scalar_store(dst: NkiTensor, value: NkiScalar) -> None:
    """dst [1, 1] in SBUF or HBM = value, of the same width.

    Raises NkiValidationError for a Python number, which the compiler would store nothing of: use nisa.memset.
    """
    if not isinstance(value, NkiScalar):
        raise NkiValidationError(f"scalar_store stores an NkiScalar, not {value!r}: nisa.memset(dst, value=...)")
    usable(value, "scalar_store")
    current().emit(_STORE, Engine.sync, ("dst", "value"), "wr", (dst, value.register))
