"""The operators and functions of `nki_sim.isa.arithmetic.ops`, by name, on elements of a field."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nki_sim.isa.arithmetic import ops
from nki_sim.proofs.arithmetic import Arithmetic, Value
from nki_sim.proofs.proof import NotProvable

Unary = Callable[[Arithmetic, Value], Value]
Binary = Callable[[Arithmetic, Value, Value], Value]

_HALF_POWERS = {0.5: lambda a, x: sqrt(a, x), -0.5: lambda a, x: rsqrt(a, x)}
_MOST_POWER = 16


def sqrt(a: Arithmetic, x: Value) -> Value:
    return a.opaque("sqrt", x)


def rsqrt(a: Arithmetic, x: Value) -> Value:
    return a.reciprocal(sqrt(a, x))


def relu(a: Arithmetic, x: Value) -> Value:
    return a.larger(x, a.number(0))


def sigmoid(a: Arithmetic, x: Value) -> Value:
    return a.reciprocal(a.add(a.number(1), a.exp(a.negative(x))))


def silu(a: Arithmetic, x: Value) -> Value:
    return a.multiply(x, sigmoid(a, x))


def _silu_dx(a: Arithmetic, x: Value) -> Value:
    gate = sigmoid(a, x)
    return a.multiply(gate, a.add(a.number(1), a.multiply(x, a.subtract(a.number(1), gate))))


def tanh(a: Arithmetic, x: Value) -> Value:
    """2 sigmoid(2 x) - 1"""
    two = a.number(2)
    return a.subtract(a.multiply(two, sigmoid(a, a.multiply(two, x))), a.number(1))


def _softplus(a: Arithmetic, x: Value) -> Value:
    return a.opaque("log", a.add(a.number(1), a.exp(x)))


def _mish(a: Arithmetic, x: Value) -> Value:
    """x tanh(softplus(x)), and tanh(log(u)) is (u^2 - 1) / (u^2 + 1)."""
    square = a.square(a.add(a.number(1), a.exp(x)))
    one = a.number(1)
    return a.multiply(x, a.multiply(a.subtract(square, one), a.reciprocal(a.add(square, one))))


def _erf(a: Arithmetic, x: Value) -> Value:
    return a.odd("erf", x)


def _erf_dx(a: Arithmetic, x: Value) -> Value:
    return a.multiply(a.number(2 / np.sqrt(np.pi)), a.exp(a.negative(a.square(x))))


def _normal_cdf(a: Arithmetic, x: Value) -> Value:
    return a.multiply(a.number(0.5), a.add(a.number(1), _erf(a, a.multiply(x, a.number(np.sqrt(0.5))))))


def _gelu(a: Arithmetic, x: Value) -> Value:
    return a.multiply(x, _normal_cdf(a, x))


def _gelu_dx(a: Arithmetic, x: Value) -> Value:
    bell = a.exp(a.multiply(a.number(-0.5), a.square(x)))
    return a.add(_normal_cdf(a, x), a.multiply(a.multiply(x, a.number(1 / np.sqrt(2 * np.pi))), bell))


def _gelu_tanh(a: Arithmetic, x: Value) -> Value:
    cube = a.multiply(a.number(0.044715), a.multiply(x, a.square(x)))
    inner = a.multiply(a.number(np.sqrt(2 / np.pi)), a.add(x, cube))
    return a.multiply(a.multiply(a.number(0.5), x), a.add(a.number(1), tanh(a, inner)))


def _gelu_sigmoid(a: Arithmetic, x: Value) -> Value:
    return a.multiply(x, sigmoid(a, a.multiply(a.number(1.702), x)))


def _gelu_sigmoid_dx(a: Arithmetic, x: Value) -> Value:
    steep = a.multiply(a.number(1.702), x)
    gate = sigmoid(a, steep)
    return a.multiply(gate, a.add(a.number(1), a.multiply(steep, a.subtract(a.number(1), gate))))


def _sign(a: Arithmetic, x: Value) -> Value:
    zero = a.number(0)
    return a.subtract(a.compared(np.greater, x, zero), a.compared(np.less, x, zero))


FUNCTIONS: dict[str, Unary] = {
    "copy": lambda a, x: x,
    "square": lambda a, x: a.square(x),
    "sigmoid": sigmoid,
    "relu": relu,
    "gelu": _gelu,
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": _gelu_sigmoid,
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "silu": silu,
    "silu_dx": _silu_dx,
    "tanh": tanh,
    "softplus": _softplus,
    "mish": _mish,
    "erf": _erf,
    "erf_dx": _erf_dx,
    "exp": lambda a, x: a.exp(x),
    "log": lambda a, x: a.opaque("log", x),
    "sin": lambda a, x: a.odd("sin", x),
    "arctan": lambda a, x: a.odd("arctan", x),
    "sqrt": sqrt,
    "rsqrt": rsqrt,
    "reciprocal": lambda a, x: a.reciprocal(x),
    "sign": _sign,
    "abs": lambda a, x: a.absolute(x),
}
"""Of the Scalar engine, as in `isa.activation_functions`. An erf that is odd is all that is known of erf."""

EXPONENTIAL = frozenset(FUNCTIONS) - {
    "copy", "square", "relu", "erf", "log", "sin", "arctan", "sqrt", "rsqrt", "reciprocal", "sign", "abs", "gelu",
}  # fmt: skip
"""Those that take an exponential of their argument."""


def _truths(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Binary:
    return lambda a, x, y: a.truth(function(x.p != 0, y.p != 0))


def _comparison(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Binary:
    return lambda a, x, y: a.compared(function, x, y)


def _of_larger_size(a: Arithmetic, x: Value, y: Value) -> Value:
    return a.where(a.rank(a.absolute(x)) > a.rank(a.absolute(y)), x, y)


def _of_smaller_size(a: Arithmetic, x: Value, y: Value) -> Value:
    return a.where(a.rank(a.absolute(x)) < a.rank(a.absolute(y)), x, y)


UNARY = {name: FUNCTIONS[name] for name in ("abs", "square", "relu", "rsqrt", "reciprocal")}
BINARY: dict[str, Binary] = {
    "add": lambda a, x, y: a.add(x, y),
    "subtract": lambda a, x, y: a.subtract(x, y),
    "multiply": lambda a, x, y: a.multiply(x, y),
    "maximum": lambda a, x, y: a.larger(x, y),
    "minimum": lambda a, x, y: a.smaller(x, y),
    "equal": _comparison(np.equal),
    "not_equal": _comparison(np.not_equal),
    "greater_equal": _comparison(np.greater_equal),
    "greater": _comparison(np.greater),
    "less_equal": _comparison(np.less_equal),
    "less": _comparison(np.less),
    "logical_and": _truths(np.logical_and),
    "logical_or": _truths(np.logical_or),
    "logical_xor": _truths(np.logical_xor),
    "power": lambda a, x, y: a.opaque("power", x, y),
    "abs_max": _of_larger_size,
    "abs_min": _of_smaller_size,
    "bypass": lambda a, x, y: x,
}
"""Of the arithmetic unit, without those on bits, which `applied` takes to integers."""


def applied(
    a: Arithmetic, name: str, x: Value, y: Value | None, reverse: bool = False, number: float | None = None
) -> Value:
    """x <op> y, or the other way round. `number`: what y is, where it is a constant."""
    if name in UNARY:
        return UNARY[name](a, x)
    if ops.ALU[name].bitvec:
        return _on_bits(a, name, x, y, reverse)
    assert y is not None
    if name == "power" and number is not None and not reverse:
        return _power(a, x, y, number)
    return BINARY[name](a, y, x) if reverse else BINARY[name](a, x, y)


def _power(a: Arithmetic, x: Value, y: Value, exponent: float) -> Value:
    half = _HALF_POWERS.get(exponent)
    if half is not None:
        return half(a, x)
    if exponent != int(exponent) or abs(exponent) > _MOST_POWER:
        return a.opaque("power", x, y)
    found = a.add(a.number(1), a.multiply(x, a.number(0)))
    for _ in range(abs(int(exponent))):
        found = a.multiply(found, x)
    return a.reciprocal(found) if exponent < 0 else found


def _on_bits(a: Arithmetic, name: str, x: Value, y: Value | None, reverse: bool) -> Value:
    function = ops.ALU[name].function
    mine = a.small_integers(x)
    if y is None:
        return a.integers(function(mine))
    other = np.broadcast_to(a.small_integers(y), mine.shape)
    return a.integers(function(other, mine) if reverse else function(mine, other))


def reduced(a: Arithmetic, name: str, x: Value) -> Value:
    """Along the last axis."""
    if name == "add":
        return a.total(x, -1)
    if name == "multiply":
        return a.product(x)
    if name in ("maximum", "minimum"):
        return a.largest(x, least=name == "minimum")
    if name == "subtract":  # the first minus all others
        first = x.moved(lambda lane: lane[..., 0])
        return a.subtract(a.add(first, first), a.total(x, -1))
    if name == "logical_and":
        return a.truth((x.p != 0).all(axis=-1))
    if name == "logical_or":
        return a.truth((x.p != 0).any(axis=-1))
    if name == "logical_xor":
        return a.truth(np.logical_xor.reduce(x.p != 0, axis=-1))
    if ops.ALU[name].bitvec:
        return a.integers(ops.ALU[name].function.reduce(a.small_integers(x), axis=-1))
    raise NotProvable(f"line {a.line}: a reduction by nl.{name} has no model")
