"""The functions of the Scalar engine, in float32 and in place: f(x, out), where out may be x.

Hardware evaluates piecewise polynomials; these are the mathematical functions to float32 accuracy.
Only `sin` differs from mathematics: the engine does not reduce its argument and extrapolates a cubic
outside [-pi, pi] (SDK 2.32, nki.api.shared, activation table).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Function = Callable[[Array, Array], None]

_ONE = np.float32(1)
_HALF = np.float32(0.5)
_PI = np.float32(np.pi)


def _copy(x: Array, out: Array) -> None:
    if out is not x:
        out[...] = x


def _rsqrt(x: Array, out: Array) -> None:
    np.sqrt(x, out=out)
    np.divide(_ONE, out, out=out)


def _reciprocal(x: Array, out: Array) -> None:
    np.divide(_ONE, x, out=out)


def _square(x: Array, out: Array) -> None:
    np.multiply(x, x, out=out)


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, np.float32(0), out=out)


def _sin(x: Array, out: Array) -> None:
    beyond = np.abs(x) > _PI
    if not beyond.any():
        np.sin(x, out=out)
        return
    distance = x - np.copysign(_PI, x)
    extrapolated = distance * distance * distance / np.float32(6) - distance
    out[...] = np.where(beyond, extrapolated, np.sin(x))


def _sigmoid(x: Array) -> Array:
    result: Array = np.multiply(x, np.float32(-1))
    np.exp(result, out=result)  # overflow to inf gives the right limit, 0
    np.add(result, _ONE, out=result)
    np.divide(_ONE, result, out=result)
    return result


def _silu(x: Array, out: Array) -> None:
    # x / (1 + exp(-x)); the product form would give inf * 0 = NaN for large negative x
    denominator = np.exp(-x)
    np.add(denominator, _ONE, out=denominator)
    np.divide(x, denominator, out=out)


def _silu_dx(x: Array) -> Array:
    gate = _sigmoid(x)
    return gate * (_ONE + x * (_ONE - gate))


def _softplus(x: Array) -> Array:
    result: Array = np.maximum(x, np.float32(0)) + np.log1p(np.exp(-np.abs(x)))
    return result


def _mish(x: Array) -> Array:
    return x * np.tanh(_softplus(x))


# Rational minimax approximation of erf (as used by Eigen and XLA), within 3 float32 ulp.
_ERF_P = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_Q = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


# log(erfc(z)) + z^2 - log(t) as a polynomial of t = 1 / (1 + z / 2), the lowest power first: fitted for z from 0 to 10,
# within 5e-8.
_ERFC = (
    -1.2654479969,
    0.99863278334,
    0.3866404121,
    0.034602800249,
    0.0012675856779,
    -0.080280430944,
    -0.69625190032,
    1.1567337581,
    -0.68082717818,
    0.14493021379,
)


def _erfc_of(z: Array) -> Array:
    """Of z >= 0: to some roundings of itself, however small it is, until it underflows."""
    t = _ONE / (_ONE + _HALF * z)
    exponent = np.full_like(z, _ERFC[-1])
    for coefficient in _ERFC[-2::-1]:
        exponent *= t
        exponent += np.float32(coefficient)
    exponent -= z * z
    np.exp(exponent, out=exponent)
    exponent *= t
    return exponent


def _erf(x: Array) -> Array:
    """Beyond 0.5 by what is missing to 1, so that it is within one rounding where 1 + erf(x) nearly cancels."""
    clamped = np.clip(x, -_HALF, _HALF)
    square = clamped * clamped
    top = np.full_like(square, _ERF_P[0])
    for coefficient in _ERF_P[1:]:
        top *= square
        top += np.float32(coefficient)
    bottom = np.full_like(square, _ERF_Q[0])
    for coefficient in _ERF_Q[1:]:
        bottom *= square
        bottom += np.float32(coefficient)
    size = np.abs(x)
    result: Array = np.where(size < _HALF, clamped * top / bottom, np.copysign(_ONE - _erfc_of(size), x))
    return result


def _erf_dx(x: Array) -> Array:
    return np.float32(2 / np.sqrt(np.pi)) * np.exp(-x * x)


def _normal_cdf(x: Array) -> Array:
    """With what 1 + erf(x) drops below 6e-8, as references are written: further out they drop it in float64 too, and a
    value that is right would stand against 0."""
    result: Array = _HALF * (_ONE + _erf(x * np.float32(np.sqrt(0.5))))
    return result


def _gelu(x: Array) -> Array:
    return x * _normal_cdf(x)


def _gelu_dx(x: Array) -> Array:
    return _normal_cdf(x) + x * np.float32(1 / np.sqrt(2 * np.pi)) * np.exp(-_HALF * x * x)


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return _HALF * x * (_ONE + np.tanh(inner))


_GELU_SLOPE = np.float32(1.702)


def _gelu_sigmoid(x: Array, out: Array) -> None:
    denominator = np.exp(-_GELU_SLOPE * x)
    np.add(denominator, _ONE, out=denominator)
    np.divide(x, denominator, out=out)


def _gelu_sigmoid_dx(x: Array) -> Array:
    gate = _sigmoid(_GELU_SLOPE * x)
    return gate * (_ONE + _GELU_SLOPE * x * (_ONE - gate))


def _stored(function: Callable[[Array], Array]) -> Function:
    def stored(x: Array, out: Array) -> None:
        out[...] = function(x)

    return stored


FUNCTIONS: dict[str, Function] = {
    "copy": _copy,
    "square": _square,
    "sigmoid": _stored(_sigmoid),
    "relu": _relu,
    "gelu": _stored(_gelu),
    "gelu_dx": _stored(_gelu_dx),
    "gelu_apprx_tanh": _stored(_gelu_tanh),
    "gelu_apprx_sigmoid": _gelu_sigmoid,
    "gelu_apprx_sigmoid_dx": _stored(_gelu_sigmoid_dx),
    "silu": _silu,
    "silu_dx": _stored(_silu_dx),
    "tanh": np.tanh,
    "softplus": _stored(_softplus),
    "mish": _stored(_mish),
    "erf": _stored(_erf),
    "erf_dx": _stored(_erf_dx),
    "exp": np.exp,
    "log": np.log,
    "sin": _sin,
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": _reciprocal,
    "sign": np.sign,
    "abs": np.abs,
}
