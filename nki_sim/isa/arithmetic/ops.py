"""Math operators: one table for every instruction that takes an `op`.

Sources: the operator and activation tables of AWS's shared API page (nki.api.shared, SDK 2.32).
`alu` operators run on Vector, GpSimd and in DMA; `activation` functions on Scalar.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_sim.errors import NkiValidationError
from nki_sim.isa.arithmetic import activation_functions

Array = np.ndarray


@dataclass(frozen=True)
class AluOp:
    """An operator of the Vector/GpSimd arithmetic unit."""

    name: str
    function: Any
    """NumPy ufunc (or a function with the same `out=`): two arguments, or one if `unary`."""
    bitvec: bool = False
    """Works on bit patterns of integers instead of float32 values."""
    unary: bool = False
    reduces: bool = False
    """May reduce along an axis."""
    identity: float | None = None
    """Where an accumulator starts when it is reset."""


def _rsqrt(x: Array, out: Array | None = None) -> Array:
    root: Array = np.sqrt(x, out=out)
    return np.divide(np.float32(1), root, out=root if out is None else out)


def _reciprocal(x: Array, out: Array | None = None) -> Array:
    result: Array = np.divide(np.float32(1), x, out=out)
    return result


def _relu(x: Array, out: Array | None = None) -> Array:
    result: Array = np.maximum(x, np.float32(0), out=out)
    return result


def _larger_magnitude(x: Array, y: Array, out: Array | None = None) -> Array:
    return _store(np.where(np.abs(x) > np.abs(y), x, y), out)


def _smaller_magnitude(x: Array, y: Array, out: Array | None = None) -> Array:
    return _store(np.where(np.abs(x) < np.abs(y), x, y), out)


def _first(x: Array, y: Array, out: Array | None = None) -> Array:
    return _store(x, out)


def _store(values: Array, out: Array | None) -> Array:
    if out is None:
        return values
    out[...] = values
    return out


def _logical_shift_right(x: Array, y: Array) -> Array:
    unsigned = x.dtype.str.replace("i", "u")
    return np.right_shift(x.view(unsigned), np.asarray(y).astype(unsigned)).view(x.dtype)


ALU: dict[str, AluOp] = {
    op.name: op
    for op in (
        AluOp("add", np.add, reduces=True, identity=0.0),
        AluOp("subtract", np.subtract, reduces=True, identity=0.0),
        AluOp("multiply", np.multiply, reduces=True, identity=1.0),
        AluOp("maximum", np.maximum, reduces=True, identity=-np.inf),
        AluOp("minimum", np.minimum, reduces=True, identity=np.inf),
        AluOp("equal", np.equal),
        AluOp("not_equal", np.not_equal),
        AluOp("greater_equal", np.greater_equal),
        AluOp("greater", np.greater),
        AluOp("less_equal", np.less_equal),
        AluOp("less", np.less),
        AluOp("logical_and", np.logical_and, reduces=True),
        AluOp("logical_or", np.logical_or, reduces=True),
        AluOp("logical_xor", np.logical_xor, reduces=True),
        AluOp("power", np.power),
        AluOp("abs_max", _larger_magnitude),
        AluOp("abs_min", _smaller_magnitude),
        AluOp("bypass", _first),
        AluOp("abs", np.abs, unary=True),
        AluOp("square", np.square, unary=True),
        AluOp("relu", _relu, unary=True),
        AluOp("rsqrt", _rsqrt, unary=True),
        AluOp("reciprocal", _reciprocal, unary=True),
        AluOp("bitwise_and", np.bitwise_and, bitvec=True, reduces=True),
        AluOp("bitwise_or", np.bitwise_or, bitvec=True, reduces=True),
        AluOp("bitwise_xor", np.bitwise_xor, bitvec=True, reduces=True),
        AluOp("left_shift", np.left_shift, bitvec=True),
        AluOp("right_shift", _logical_shift_right, bitvec=True),
        AluOp("invert", np.invert, bitvec=True, unary=True),
    )
}

ACTIVATIONS = activation_functions.FUNCTIONS
"""Name -> f(x, out) on float32 arrays; `out` may be `x`."""

_ALIASES = {
    "max": "maximum",
    "min": "minimum",
    "absolute": "abs",
    "bitwise_not": "invert",
    "true_divide": "divide",
    "float_power": "power",
    "identity": "copy",
    "conjugate": "copy",
}
_NOT_ON_HARDWARE = {
    "divide": "use nisa.reciprocal and multiply",
    "mod": "no engine computes remainders",
    "fmod": "no engine computes remainders",
    "remainder": "no engine computes remainders",
    "floor_divide": "use nisa.reciprocal, multiply and a cast",
    "logical_not": "compare with zero instead: op=nl.equal, operand0=0.0",
    "sum": "the reduction operator is nl.add",
    "mean": "reduce with nl.add, then scale by 1/n",
    "prod": "the reduction operator is nl.multiply",
    "prelu": "its slope is an argument of activate2 (NeuronCore-v4)",
    "cos": "cos(x) = sin(x + pi/2)",
    "tan": "sin(x) / cos(x) through nisa.reciprocal",
}


def name_of(op: Any, what: str) -> str:
    """The table name of an operator token: an object with a `name`, or a NumPy ufunc.

    Raises NkiValidationError when `op` is no operator at all.
    """
    name = getattr(op, "name", None) or getattr(op, "__name__", None)
    if not isinstance(name, str):
        raise NkiValidationError(f"{what}: {op!r} is not an operator: pass a token such as nl.add")
    return _ALIASES.get(name, name)


def alu(name: str, what: str) -> AluOp:
    """The ALU operator of that name. Raises NkiValidationError naming the nearest way to do it."""
    found = ALU.get(name)
    if found is None:
        hint = _NOT_ON_HARDWARE.get(name)
        if hint is None and name in ACTIVATIONS:
            hint = f"nl.{name} is a Scalar engine function: use nisa.activation(op=nl.{name})"
        raise NkiValidationError(
            f"{what} does not support op nl.{name}: {hint or 'one of ' + ', '.join(f'nl.{n}' for n in ALU)}"
        )
    return found


def activation(name: str, what: str) -> Callable[[Array, Array], None]:
    found = ACTIVATIONS.get(name)
    if found is None:
        hint = _NOT_ON_HARDWARE.get(name)
        if hint is None and name in ALU:
            hint = f"nl.{name} is an arithmetic operator: use nisa.tensor_scalar or nisa.tensor_tensor"
        raise NkiValidationError(
            f"{what} does not support op nl.{name}: {hint or 'one of ' + ', '.join(f'nl.{n}' for n in ACTIVATIONS)}"
        )
    return found


def scalar(value: Any, what: str) -> float | int:
    """A compile-time number as plain int or float (bool and NumPy scalars included)."""
    if type(value) is float or type(value) is int:
        return value
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (int, np.integer)):
        return operator.index(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise NkiValidationError(f"{what} must be a number or a tensor, not {value!r}") from None
