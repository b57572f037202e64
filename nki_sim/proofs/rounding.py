"""Numbers with a bound on what types narrower than float32 may have done to them: a running error analysis.

Lane p is the value in float64, as if nothing were rounded; lane q bounds how far narrower types may have taken it from
there, whatever these inputs happen to be: a float32 value that bfloat16 happens to hold counts as rounded like any
other. What comes from an argument of a narrow type, and what is known when tracing, is held by that type: such a value
has -1 - the number of the type in lane q, and no error. What float32 itself rounds is not counted; tests measure that.
Bounds are worst cases: errors that cancel are added.
Higham, Accuracy and Stability of Numerical Algorithms, 3.3; unit roundoffs are half of the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nki_sim import dtypes
from nki_sim.checks.precision import holds
from nki_sim.dtypes import DType, as_dtype
from nki_sim.isa.arithmetic import ops
from nki_sim.machine import SIMULATED_VERSION
from nki_sim.program.program import Program
from nki_sim.proofs.arithmetic import Value
from nki_sim.proofs.execution import FieldRun, Input
from nki_sim.proofs.proof import Finding, NotProvable, Proof

Array = np.ndarray

UNIT_ROUNDOFF = {
    "tfloat32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3": 2.0**-4,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
"""Of normal numbers, to nearest; bits of the mantissa: NKI's table of dtypes."""

_STEEPEST = {"erf": 2 / np.sqrt(np.pi), "sin": 1.0, "arctan": 1.0}
"""A function's largest slope."""
_INTEGER = 1 << 24
_HELD = tuple(
    dtype for dtype in dtypes.ALL.values() if dtype.since <= SIMULATED_VERSION and holds(dtypes.float32, dtype)
)
"""Types of which a value may be exactly one, by number; float32 is the widest."""
_CONSTANTS = (dtypes.bool_, dtypes.float8_e4m3, dtypes.bfloat16, dtypes.float16)
"""Those that a constant is tried as, the narrowest first."""


class Rounding:
    """`Arithmetic` on numbers and bounds. `narrow` collects what rounded them."""

    element = np.dtype(np.float64)
    always_both = True
    wants_q = True
    seed = 0

    def __init__(self) -> None:
        self.line = 0
        self.engine = ""
        self.narrow: dict[tuple[str, str, int], None] = {}
        """(dtype, engine, line) of every rounding, in order."""

    # --- numbers --------------------------------------------------------------------------------------

    def random(self, generator: np.random.Generator, shape: tuple[int, ...], needed: bool = True) -> Value:
        """What memory holds that nothing wrote: no output depends on it, or coverage is refuted."""
        return Value(np.zeros(shape), np.zeros(shape))

    def number(self, value: float) -> Value:
        return self.constants(np.asarray(value, np.float64))

    def integers(self, values: Array) -> Value:
        return self.constants(values)

    def constants(self, values: Array) -> Value:
        p = np.asarray(values, np.float64)
        held = next((dtype for dtype in _CONSTANTS if _are_of(p, dtype)), dtypes.float32)
        return Value(p, np.full(p.shape, _code(held)))

    def given(self, values: Array) -> Value:
        dtype = as_dtype(values.dtype)
        return Value(
            values.astype(np.float64), np.full(values.shape, _code(dtype if dtype in _HELD else dtypes.float32))
        )

    def small_integers(self, x: Value) -> Array:
        if (np.abs(x.p) > _INTEGER).any() or (x.p != np.rint(x.p)).any():
            raise NotProvable(f"line {self.line} uses a computed value as a whole number")
        return x.p.astype(np.int64)

    def loaded(self, x: Value, dtype: DType) -> Value:
        return self._rounded(x, dtype)

    def stored(self, x: Value, dtype: DType) -> Value:
        if dtype == "bool":
            return self.truth(x.p != 0)
        if dtype.is_float:
            return self._rounded(x, dtype)
        return x if (x.p == np.rint(x.p)).all() else self._widened(x, 0.5, dtype)

    def _rounded(self, x: Value, dtype: DType) -> Value:
        roundoff = UNIT_ROUNDOFF.get(dtype)
        if roundoff is None:
            return x
        lane, exact = _lane(x), np.zeros(x.shape, np.bool_)
        for held in _HELD:
            if holds(dtype, held):
                exact |= lane == _code(held)
        return x if exact.all() else self._widened(x, roundoff * np.abs(x.p), dtype, exact)

    def _widened(self, x: Value, more: Array | float, dtype: DType, exact: Array | None = None) -> Value:
        self.narrow[str(dtype), self.engine, self.line] = None
        widened = bounds(x) + more
        return Value(x.p, widened if exact is None else np.where(exact, _lane(x), widened))

    # --- arithmetic -----------------------------------------------------------------------------------

    def add(self, x: Value, y: Value) -> Value:
        return Value(x.p + y.p, bounds(x) + bounds(y))

    def subtract(self, x: Value, y: Value) -> Value:
        return Value(x.p - y.p, bounds(x) + bounds(y))

    def multiply(self, x: Value, y: Value) -> Value:
        return Value(x.p * y.p, _times(np.abs(x.p), bounds(y)) + _times(bounds(x), np.abs(y.p) + bounds(y)))

    def negative(self, x: Value) -> Value:
        return Value(-x.p, x.q)

    def reciprocal(self, x: Value) -> Value:
        size, error = np.abs(x.p), bounds(x)
        left = size - error
        bound = np.divide(error, size * left, out=np.full(size.shape, np.inf), where=left > 0)
        return Value(1.0 / x.p, np.where(error == 0, 0.0, bound))

    def square(self, x: Value) -> Value:
        return self.multiply(x, x)

    def matmul(self, left: Value, right: Value) -> Value:
        a, b = np.abs(left.p), np.abs(right.p)
        error = np.zeros((a.shape[0], b.shape[1]))
        if bounds(right).any():
            error += a @ bounds(right)
        if bounds(left).any():
            error += bounds(left) @ (b + bounds(right))
        return Value(left.p @ right.p, error)

    def total(self, x: Value, axes: tuple[int, ...] | int) -> Value:
        return Value(x.p.sum(axis=axes), bounds(x).sum(axis=axes))

    def product(self, x: Value) -> Value:
        found = x.moved(lambda lane: lane[..., 0])
        for i in range(1, x.shape[-1]):
            found = self.multiply(found, x.moved(lambda lane: lane[..., i]))  # noqa: B023
        return found

    def recurrence(self, start: Value, factors: Value, terms: Value) -> Value:
        state = start
        found = np.empty((2, *factors.shape))
        for i in range(factors.shape[1]):
            factor, term = (each.moved(lambda lane: lane[:, i : i + 1]) for each in (factors, terms))  # noqa: B023
            state = self.add(self.multiply(factor, state), term)
            found[0, :, i : i + 1], found[1, :, i : i + 1] = state.p, bounds(state)
        return Value(found[0], found[1])

    # --- functions ------------------------------------------------------------------------------------

    def exp(self, x: Value) -> Value:
        value = np.exp(x.p)
        return Value(value, _times(value, np.expm1(bounds(x))))

    def opaque(self, function: str, *arguments: Value) -> Value:
        x = arguments[0]
        if function == "power":
            return self._monotonous(lambda base: np.power(base, arguments[1].p), x)
        if function in ("sqrt", "log"):
            return self._monotonous(getattr(np, function), x)
        value = np.empty(x.shape)
        ops.ACTIVATIONS[function](np.array(x.p), value)
        return Value(value, _STEEPEST[function] * bounds(x))

    def odd(self, function: str, x: Value) -> Value:
        return self.opaque(function, x)

    def _monotonous(self, function: Callable[[Array], Array], x: Value) -> Value:
        """Of arguments that are not negative: the ends of an interval go to the ends of one."""
        value = function(x.p)
        ends = [np.abs(function(np.maximum(x.p + way * bounds(x), 0.0)) - value) for way in (-1, 1)]
        return Value(value, np.where(bounds(x) == 0, 0.0, np.fmax(*ends)))

    def where(self, chosen: Array, x: Value, y: Value) -> Value:
        return Value(np.where(chosen, x.p, y.p), np.where(chosen, _lane(x), _lane(y)))

    # --- order ----------------------------------------------------------------------------------------

    def rank(self, x: Value) -> Array:
        return x.p

    def largest(self, x: Value, least: bool = False) -> Value:
        lane = _lane(x)
        alike = (lane == lane[..., :1]).all(axis=-1)
        return Value(
            x.p.min(axis=-1) if least else x.p.max(axis=-1), np.where(alike, lane[..., 0], bounds(x).max(axis=-1))
        )

    def larger(self, x: Value, y: Value) -> Value:
        return Value(np.maximum(x.p, y.p), _either(x, y))

    def smaller(self, x: Value, y: Value) -> Value:
        return Value(np.minimum(x.p, y.p), _either(x, y))

    def compared(self, comparison: Callable[[Array, Array], Array], x: Value, y: Value) -> Value:
        near = (bounds(x) + bounds(y) > 0) & (np.abs(x.p - y.p) <= bounds(x) + bounds(y))
        return Value(comparison(x.p, y.p).astype(np.float64), near.astype(np.float64))

    def truth(self, holds: Array) -> Value:
        return self.given(np.asarray(holds, np.bool_))

    def absolute(self, x: Value) -> Value:
        return Value(np.abs(x.p), x.q)


def bounds(x: Value) -> Array:
    """The bounds, 0 of what a type holds exactly."""
    return np.maximum(_lane(x), 0.0)


def _lane(x: Value) -> Array:
    assert x.q is not None
    return x.q


def _either(x: Value, y: Value) -> Array:
    """The second lane of one of the two: still of their type, if they have one in common."""
    one, other = _lane(x), _lane(y)
    return np.where(one == other, one, np.maximum(bounds(x), bounds(y)))


def _code(dtype: DType) -> float:
    return -1.0 - _HELD.index(dtype)


def _are_of(values: Array, dtype: DType) -> bool:
    return bool(np.array_equal(values.astype(dtype.numpy).astype(np.float64), values, equal_nan=True))


def _times(x: Array, error: Array) -> Array:
    """An error of 0 stays 0, whatever it is multiplied by."""
    with np.errstate(invalid="ignore"):
        return np.where((error == 0) | (x == 0), 0.0, x * error)


_SHOWN = 3
"""Roundings that are named."""


def narrows(program: Program) -> bool:
    """Could an instruction of some core round to fewer bits than float32 has?"""
    cores = (program, *program.peers)
    return any(
        operand.dtype in UNIT_ROUNDOFF or not (operand.dtype.is_float or operand.access == "r")
        for each in cores
        for template in each.templates
        for operand in template.operands
    )


def error_bound(program: Program, inputs: Sequence[np.ndarray], tolerance: float) -> Proof:
    """Held where the bound is within `tolerance`, relative to an output's size (Euclidean norms), beside one rounding
    to the type that the output is stored in. A larger bound refutes nothing: errors may cancel, and the proof says what
    rounds where.
    """
    if not narrows(program):
        return Proof(Finding.HELD, "nothing is rounded to fewer bits than float32 has")
    rounding = Rounding()
    try:
        with np.errstate(all="ignore"):
            found = FieldRun(program, [Input(array) for array in inputs]).execute(rounding)
    except NotProvable as reason:
        return Proof(Finding.NOT_PROVABLE, str(reason))
    if not rounding.narrow:
        return Proof(Finding.HELD, "nothing is rounded to fewer bits than float32 has")
    worst, output, own = -np.inf, 0, 0.0
    for number, (value, ref) in enumerate(zip(found.outputs, program.outputs)):
        size, off = (float(np.sqrt(np.sum(np.square(lane)))) for lane in (value.p, bounds(value)))
        relative = off / size if size > 0 else 0.0 if off == 0 else np.inf
        stored = UNIT_ROUNDOFF.get(ref.dtype, 0.0)
        if not relative - stored <= worst - own:  # NaN too
            worst, output, own = relative, number, stored
    names = [f"{dtype} on {engine} in line {line}" for dtype, engine, line in rounding.narrow]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    said = f"output {output} may be off by {worst:.2g} of its size, by {', '.join(names[:_SHOWN])}{more}"
    return Proof(Finding.HELD if worst <= tolerance + own else Finding.NOT_PROVABLE, said)
