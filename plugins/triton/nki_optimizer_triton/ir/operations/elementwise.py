"""What operations compute that take each element by itself: numbers in, numbers out, lanes side by side.

Arrays are held as `numbers.py` says. Division and remainder of integers round to zero, as LLVM's sdiv and srem; shifts
by the width or more, and division by zero, are undefined there and give 0 here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nki_optimizer_triton.ir.contract import libdevice_function
from nki_optimizer_triton.ir.faults import NotHere
from nki_optimizer_triton.ir.numbers import held, reinterpreted, rounded, rounded_to_zero, signed, unsigned
from nki_optimizer_triton.ir.types import FLOATS, Element, Operation, Pointer, Pointers, Scalar, Tensor, Type

Compute = Callable[..., np.ndarray]

# --- integers ---------------------------------------------------------------------------------------


def _modulo(kind: np.dtype[np.generic]) -> int:
    return kind.itemsize * 8


def _wrapping(compute: Compute) -> Compute:
    """On i1, arithmetic is modulo 2."""

    def of(one: np.ndarray, two: np.ndarray) -> np.ndarray:
        if one.dtype == np.dtype(bool):
            return (compute(one.astype(np.int8), two.astype(np.int8)) & 1).astype(bool)
        return compute(one, two)

    return of


def _divided(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    safe = np.where(two == 0, one.dtype.type(1), two)
    down = np.floor_divide(one, safe)
    up = (np.remainder(one, safe) != 0) & ((one < 0) != (safe < 0))
    return np.where(two == 0, one.dtype.type(0), down + up.astype(one.dtype))


def _remainder(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return np.where(two == 0, one.dtype.type(0), np.fmod(one, np.where(two == 0, one.dtype.type(1), two)))


def _ceiling(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    safe = np.where(two == 0, one.dtype.type(1), two)
    return np.where(two == 0, one.dtype.type(0), -np.floor_divide(-one, safe))


def _floor(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return np.where(two == 0, one.dtype.type(0), np.floor_divide(one, np.where(two == 0, one.dtype.type(1), two)))


def _on_unsigned(compute: Compute) -> Compute:
    def of(one: np.ndarray, two: np.ndarray) -> np.ndarray:
        return signed(compute(unsigned(one), unsigned(two)), one)

    return of


def _shifted(compute: Compute) -> Compute:
    def of(one: np.ndarray, two: np.ndarray) -> np.ndarray:
        width = _modulo(one.dtype)
        count = unsigned(two)
        result = compute(one, np.where(count < width, count, 0).astype(one.dtype))
        return np.where(count < width, result, one.dtype.type(0))

    return of


def _high_half(one: np.ndarray, two: np.ndarray, is_signed: bool) -> np.ndarray:
    """The upper half of a product of integers."""
    width = one.dtype.itemsize * 8
    if width < 64:
        wide = np.int64 if is_signed else np.uint64
        a, b = (one, two) if is_signed else (unsigned(one), unsigned(two))
        return ((a.astype(wide) * b.astype(wide)) >> wide(width)).astype(one.dtype)
    a, b = unsigned(one), unsigned(two)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a_low, a_high, b_low, b_high = a & low, a >> shift, b & low, b >> shift
    middle = a_high * b_low + ((a_low * b_low) >> shift)
    other = (middle & low) + a_low * b_high
    high = (a_high * b_high + (middle >> shift) + (other >> shift)).view(np.int64)
    if is_signed:
        high = high - np.where(one < 0, two, 0) - np.where(two < 0, one, 0)
    return high


INTEGERS: dict[str, Compute] = {
    "arith.addi": _wrapping(np.add),
    "arith.subi": _wrapping(np.subtract),
    "arith.muli": _wrapping(np.multiply),
    "arith.divsi": _divided,
    "arith.remsi": _remainder,
    "arith.divui": _on_unsigned(_floor),
    "arith.remui": _on_unsigned(_remainder),
    "arith.ceildivsi": _ceiling,
    "arith.ceildivui": _on_unsigned(lambda a, b: _floor(a, b) + (_remainder(a, b) != 0).astype(a.dtype)),
    "arith.floordivsi": _floor,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.minui": _on_unsigned(np.minimum),
    "arith.maxui": _on_unsigned(np.maximum),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": _shifted(np.left_shift),
    "arith.shrsi": _shifted(np.right_shift),
    "arith.shrui": _on_unsigned(_shifted(np.right_shift)),
    "tt.mulhiui": lambda a, b: _high_half(a, b, False),
}

_COMPARED: dict[str, Compute] = {
    "eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal, "sgt": np.greater,
    "sge": np.greater_equal,
    "ult": lambda a, b: np.less(unsigned(a), unsigned(b)),
    "ule": lambda a, b: np.less_equal(unsigned(a), unsigned(b)),
    "ugt": lambda a, b: np.greater(unsigned(a), unsigned(b)),
    "uge": lambda a, b: np.greater_equal(unsigned(a), unsigned(b)),
}  # fmt: skip


def _ordered(compute: Compute) -> Compute:
    return lambda a, b: compute(a, b) & ~np.isnan(a) & ~np.isnan(b)


def _unordered(compute: Compute) -> Compute:
    return lambda a, b: compute(a, b) | np.isnan(a) | np.isnan(b)


_FLOATS_COMPARED: dict[str, Compute] = {
    "oeq": np.equal, "ogt": np.greater, "oge": np.greater_equal, "olt": np.less, "ole": np.less_equal,
    "one": _ordered(np.not_equal), "ueq": _unordered(np.equal), "ugt": _unordered(np.greater),
    "uge": _unordered(np.greater_equal), "ult": _unordered(np.less), "ule": _unordered(np.less_equal),
    "une": np.not_equal,
    "ord": lambda a, b: ~np.isnan(a) & ~np.isnan(b),
    "uno": lambda a, b: np.isnan(a) | np.isnan(b),
    "true": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), bool),
    "false": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), bool),
}  # fmt: skip

# --- floats -----------------------------------------------------------------------------------------


def _by_element(function: Callable[[float], float]) -> Compute:
    """A function that NumPy does not have."""
    return np.vectorize(function, otypes=[np.float64])


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(_by_element(math.erf)(x))


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (OverflowError, ValueError):
        return math.inf


def _fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c rounded once: float32 products are exact in float64, whose sum is rounded again to float32."""
    if a.dtype == np.float64:
        return a * b + c
    return (a.astype(np.float64) * b + c).astype(np.float32)


_ONE: dict[str, Compute] = {
    "arith.negf": np.negative, "math.absf": np.abs, "math.ceil": np.ceil, "math.floor": np.floor, "math.cos": np.cos,
    "math.sin": np.sin, "math.tan": np.tan, "math.atan": np.arctan, "math.tanh": np.tanh, "math.exp": np.exp,
    "math.exp2": np.exp2, "math.expm1": np.expm1, "math.log": np.log, "math.log2": np.log2, "math.log1p": np.log1p,
    "math.sqrt": np.sqrt, "tt.precise_sqrt": np.sqrt, "math.cbrt": np.cbrt, "math.trunc": np.trunc,
    "math.roundeven": np.rint, "math.round": lambda a: np.copysign(np.floor(np.abs(a) + 0.5), a),
    "math.rsqrt": lambda a: 1 / np.sqrt(a), "math.erf": _erf,
}  # fmt: skip
_TWO: dict[str, Compute] = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.remf": np.fmod, "tt.precise_divf": np.divide, "tt.approx_divf": np.divide, "math.powf": np.power,
    "math.atan2": np.arctan2, "math.copysign": np.copysign,
    "arith.maximumf": np.maximum, "arith.minimumf": np.minimum, "arith.maxnumf": np.fmax, "arith.minnumf": np.fmin,
}  # fmt: skip
_EXACT = frozenset(
    [
        "arith.negf", "math.absf", "arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf",
        "math.copysign", "math.ceil", "math.floor", "math.trunc", "math.roundeven", "math.round",
    ]
)  # fmt: skip
"""Whose results need no rounding to the type of their operands."""

_LIBDEVICE: dict[str, Compute] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil, "copysign": np.copysign, "cos": np.cos,
    "cosh": np.cosh, "cospi": lambda a: np.cos(np.pi * a), "erf": _erf, "erfc": _by_element(math.erfc), "exp": np.exp,
    "exp10": lambda a: np.power(a.dtype.type(10), a), "exp2": np.exp2, "expm1": np.expm1, "fabs": np.abs,
    "fast_cosf": np.cos, "fast_exp10f": lambda a: np.power(a.dtype.type(10), a), "fast_expf": np.exp,
    "fast_fdividef": np.divide, "fast_dividef": np.divide, "fast_log10f": np.log10, "fast_log2f": np.log2,
    "fast_logf": np.log, "fast_powf": np.power, "fast_sinf": np.sin, "fast_tanf": np.tan,
    "fdim": lambda a, b: np.maximum(a - b, 0), "floor": np.floor, "fma": _fused, "fmax": np.fmax, "fmin": np.fmin,
    "fmod": np.fmod, "hypot": np.hypot, "lgamma": _by_element(_lgamma), "log": np.log, "log10": np.log10,
    "log1p": np.log1p, "log2": np.log2, "nearbyint": np.rint, "nextafter": np.nextafter, "pow": np.power,
    "rcbrt": lambda a: 1 / np.cbrt(a), "remainder": lambda a, b: a - b * np.rint(a / b),
    "rhypot": lambda a, b: 1 / np.hypot(a, b), "rint": np.rint,
    "round": lambda a: np.copysign(np.floor(np.abs(a) + 0.5), a), "rsqrt": lambda a: 1 / np.sqrt(a),
    "saturatef": lambda a: np.clip(np.nan_to_num(a, nan=0.0), 0, 1), "sin": np.sin, "sinh": np.sinh,
    "sinpi": lambda a: np.sin(np.pi * a), "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "tgamma": _by_element(_gamma), "trunc": np.trunc, "fadd_rn": np.add, "fsub_rn": np.subtract,
    "fmul_rn": np.multiply, "fdiv_rn": np.divide, "frcp_rn": lambda a: 1 / a, "fsqrt_rn": np.sqrt,
    "add_rn": np.add, "sub_rn": np.subtract, "mul_rn": np.multiply, "fmaf_rn": _fused, "fma_rn": _fused,
    "normcdf": lambda a: 0.5 * np.asarray(_by_element(math.erfc)(-np.asarray(a, np.float64) / math.sqrt(2))),
    "isnan": np.isnan, "isinf": np.isinf, "finitef": np.isfinite, "isfinited": np.isfinite, "signbit": np.signbit,
    "abs": np.abs, "llabs": np.abs, "max": np.maximum, "min": np.minimum, "llmax": np.maximum, "llmin": np.minimum,
    "umax": _on_unsigned(np.maximum), "umin": _on_unsigned(np.minimum),
    "mulhi": lambda a, b: _high_half(a, b, True), "umulhi": lambda a, b: _high_half(a, b, False),
}  # fmt: skip
"""Functions of libdevice as NumPy has them; those of contract.LIBDEVICE that are not here need a GPU."""


def compute(operation: Operation, values: list[np.ndarray]) -> np.ndarray | tuple[np.ndarray, ...] | None:
    """The results of an operation on each element by itself; None for one that is none.

    Raises NotHere for a function that only a GPU has.
    """
    name = operation.name
    if name in INTEGERS:
        return INTEGERS[name](*values)
    if name in _ONE or name in _TWO:
        return _float(operation, (_ONE.get(name) or _TWO[name])(*values), name in _EXACT)
    if name == "arith.cmpi":
        return _COMPARED[operation.words[0]](*values)
    if name == "arith.cmpf":
        return _FLOATS_COMPARED[operation.words[0]](*values)
    if name == "arith.select":
        return _selected(*values)
    if name == "math.fma":
        return _float(operation, _fused(*values), False)
    if name == "math.absi":
        return np.abs(values[0])
    if name == "math.isnan":
        return np.isnan(values[0])
    if name == "math.isinf":
        return np.isinf(values[0])
    if name == "tt.clampf":
        return _clamped(operation, *values)
    if name in ("arith.mulsi_extended", "arith.mului_extended"):
        return np.multiply(*values), _high_half(values[0], values[1], name == "arith.mulsi_extended")
    if name == "arith.addui_extended":
        total = values[0] + values[1]
        return total, unsigned(total) < unsigned(values[0])
    if name == "tt.extern_elementwise":
        return _libdevice(operation, values)
    if name in _CASTS:
        return cast(operation, values[0])
    return None


def _float(operation: Operation, result: np.ndarray, exact: bool) -> np.ndarray:
    element = _element(operation.result_types[0])
    if exact and result.dtype == held(element):
        return result
    return rounded(np.asarray(result), element)


def _selected(condition: np.ndarray, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    if condition.ndim < one.ndim:
        condition = condition.reshape(condition.shape + (1,) * (one.ndim - condition.ndim))
    return np.where(condition, one, two)


def _clamped(operation: Operation, value: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    if operation.word("propagateNan") == "all":
        return np.minimum(np.maximum(value, low), high)
    return np.fmin(np.fmax(value, low), high)


def _libdevice(operation: Operation, values: list[np.ndarray]) -> np.ndarray:
    name = libdevice_function(str(operation.attributes["symbol"]))
    if name is None or name not in _LIBDEVICE:
        raise NotHere(f"libdevice's {operation.attributes['symbol']} is computed on a GPU only")
    result = np.asarray(_LIBDEVICE[name](*values))
    element = _element(operation.result_types[0])
    if element in FLOATS:
        return rounded(result, element)
    return result.astype(held(element), copy=False)


# --- casts ------------------------------------------------------------------------------------------

_CASTS = frozenset(
    [
        "arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "arith.trunci", "arith.sitofp", "arith.uitofp",
        "arith.fptosi", "arith.fptoui", "arith.bitcast", "arith.index_cast", "arith.index_castui", "tt.bitcast",
        "tt.int_to_ptr", "tt.ptr_to_int", "tt.fp_to_fp",
    ]
)  # fmt: skip


def cast(operation: Operation, value: np.ndarray) -> np.ndarray:
    name = operation.name
    before, after = _element(operation.operand_types[0]), _element(operation.result_types[0])
    target = held(after)
    if name in ("arith.extf", "arith.truncf", "tt.fp_to_fp"):
        to_zero = operation.word("rounding") == "rtz" or "toward_zero" in operation.words
        return rounded_to_zero(value, after) if to_zero else rounded(value, after)
    if name in ("arith.extsi", "arith.index_cast"):
        if value.dtype == np.dtype(bool):
            return -value.astype(target)
        return value.astype(target)
    if name in ("arith.extui", "arith.index_castui"):
        return unsigned(value).astype(np.dtype(f"u{target.name}")).view(target)
    if name == "arith.trunci":
        return (value & 1).astype(bool) if target == np.dtype(bool) else value.astype(target)
    if name in ("arith.sitofp", "arith.uitofp"):
        if value.dtype == np.dtype(bool):
            number = value.astype(np.int8) * (-1 if name == "arith.sitofp" else 1)
        else:
            number = value if name == "arith.sitofp" else unsigned(value)
        wide = np.float64 if after == "f64" or value.dtype.itemsize < 8 else np.longdouble
        return rounded(number.astype(wide).astype(np.float64 if after == "f64" else np.float32), after)
    if name in ("arith.fptosi", "arith.fptoui"):
        return _to_integer(value, target, name == "arith.fptosi")
    if name in ("tt.int_to_ptr", "tt.ptr_to_int"):
        return value.astype(target)
    if isinstance(before, (Pointer, Pointers)) and isinstance(after, (Pointer, Pointers)):
        return value
    return reinterpreted(value, before, after)


def _to_integer(value: np.ndarray, target: np.dtype[np.generic], is_signed: bool) -> np.ndarray:
    """Toward zero; what is out of range is the nearest in it and NaN is 0, as PTX's cvt does."""
    if target == np.dtype(bool):
        return np.trunc(value) != 0
    kind = target if is_signed else np.dtype(f"u{target.name}")
    limits = np.iinfo(kind)
    whole = np.trunc(np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    low, high = float(limits.min), float(limits.max)
    inside = np.where((whole > low) & (whole < high), whole, 0).astype(kind)
    return np.where(whole >= high, limits.max, np.where(whole <= low, limits.min, inside)).astype(kind).view(target)


def _element(type_: Type) -> Element:
    assert isinstance(type_, (Scalar, Tensor))
    return type_.element
