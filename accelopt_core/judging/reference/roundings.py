"""A reference run with other roundings: how far honest arithmetic, and the reference itself, may be off.

NumPy sums pairwise in blocks, which no engine does, and float64 is not exact: log(1 + exp(-40)) is 0 in it. Arrays of a
class of their own show both, whatever `forward` does with them, as long as it stays with NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from accelopt_core.judging.reference.reference_arrays import Float64Array, ReferenceArray, watched_like
from accelopt_core.judging.tolerance.closeness import FLOOR

ROUNDING = 2.0**-53
"""Unit roundoff of float64."""

_PRODUCTS = 128
"""Terms of a matrix product that TensorE sums at once (NKI documentation of nc_matmul: the contraction is the partition
axis, at most 128); blocks of them follow each other in PSUM."""

_KEPT = FLOOR / 16
"""A smaller result is denormal in float32, or is with a factor of another form of the same steps."""

_BLOCK = 1 << 16
"""Elements moved at a time."""

_EXACT = frozenset(
    (
        np.maximum, np.minimum, np.fmax, np.fmin, np.negative, np.positive, np.absolute, np.fabs, np.sign, np.floor,
        np.ceil, np.rint, np.trunc, np.copysign,
    )
)  # fmt: skip
"""Functions whose results are not rounded."""


class _Watched(np.ndarray):
    """An array whose arithmetic, and that of all that is computed from it, goes through `_computed`."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **named: Any) -> Any:
        if out is not None:
            named["out"] = tuple(_bare(each) for each in out)
        result = self._computed(ufunc, method, [_bare(each) for each in inputs], named)
        if out is not None:
            return out[0] if len(out) == 1 else out
        return watched_like(result, self)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return watched_like(super().__array_function__(func, types, args, kwargs), self)

    def _computed(self, ufunc: np.ufunc, method: str, inputs: list[Any], named: dict[str, Any]) -> Any:
        return getattr(ufunc, method)(*inputs, **named)


def _bare(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Watched) else value


_USUAL = {"dtype": None, "where": True}
"""What `sum` and `mean` hand on unasked."""


class _OneByOne(_Watched):
    """Sums of float32 one term after the other, and products in blocks that follow each other."""

    def _computed(self, ufunc: np.ufunc, method: str, inputs: list[Any], named: dict[str, Any]) -> Any:
        first = inputs[0]
        if ufunc is np.add and method == "reduce" and getattr(first, "dtype", None) == np.float32:
            asked = {name: value for name, value in named.items() if value is not _USUAL.get(name, named)}
            if not asked.keys() - {"axis", "keepdims"}:
                return _sum(first, **asked)
        if ufunc is np.matmul and method == "__call__" and not named and inputs[0].ndim > 1 and inputs[1].ndim > 1:
            terms = inputs[0].shape[-1]
            parts = [slice(at, at + _PRODUCTS) for at in range(0, terms, _PRODUCTS)]
            total = inputs[0][..., parts[0]] @ inputs[1][..., parts[0], :] if parts else inputs[0] @ inputs[1]
            for part in parts[1:]:
                total += inputs[0][..., part] @ inputs[1][..., part, :]
            return total
        return super()._computed(ufunc, method, inputs, named)


def _sum(array: np.ndarray, axis: Any = 0, keepdims: bool = False) -> Any:
    axes = range(array.ndim) if axis is None else [each % array.ndim for each in np.atleast_1d(axis)]
    for each in axes:
        if array.shape[each]:
            array = np.add.accumulate(array, axis=each).take([-1], axis=each)
        else:
            array = array.sum(axis=each, keepdims=True)
    return array if keepdims else np.squeeze(array, axis=tuple(axes))


class _Moved(_Watched):
    """Every result is moved by about one rounding of float64."""

    draw: np.random.Generator

    def __array_finalize__(self, parent: Any) -> None:
        self.draw = getattr(parent, "draw", None) or np.random.default_rng(0)

    def _computed(self, ufunc: np.ufunc, method: str, inputs: list[Any], named: dict[str, Any]) -> Any:
        result = super()._computed(ufunc, method, inputs, named)
        if ufunc in _EXACT or method == "at":
            return result
        if isinstance(result, tuple):
            return tuple(map(self._moved, result))
        return self._moved(result)

    def _moved(self, result: Any) -> Any:
        if getattr(result, "dtype", None) != np.float64:
            return result
        if not isinstance(result, np.ndarray) or not result.flags.c_contiguous:
            return np.multiply(result, 1 + ROUNDING * self.draw.uniform(-2, 2, np.shape(result)))
        flat = result.reshape(-1)  # a view: the array may be gigabytes, and is new or is to be written to
        for start in range(0, flat.size, _BLOCK):
            part = flat[start : start + _BLOCK]
            part *= 1 + ROUNDING * self.draw.uniform(-2, 2, part.size)
        return result


class _Flushed(_Watched):
    """Every result that an engine need not keep is 0."""

    def _computed(self, ufunc: np.ufunc, method: str, inputs: list[Any], named: dict[str, Any]) -> Any:
        result = super()._computed(ufunc, method, inputs, named)
        return tuple(map(_flushed, result)) if isinstance(result, tuple) else _flushed(result)


def _flushed(result: Any) -> Any:
    if isinstance(result, np.ndarray) and result.dtype == np.float64:
        result[np.abs(result) < _KEPT] = 0  # it is new, or is to be written to
        return result
    return np.float64(0) if isinstance(result, np.float64) and abs(result) < _KEPT else result


class _NarrowFlushed(Float64Array, _Flushed):
    """The same of a reference of narrow types."""


class _NarrowOneByOne(ReferenceArray, _OneByOne):
    """The same of a reference of narrow types."""


class _NarrowMoved(Float64Array, _Moved):
    """The same of a reference of narrow types."""

    def __array_finalize__(self, parent: Any) -> None:
        Float64Array.__array_finalize__(self, parent)
        _Moved.__array_finalize__(self, parent)


def summed_one_by_one(value: Any, narrow: bool = False) -> Any:
    """The array, if it is one of float32; anything else as it is. `narrow`: of a reference of narrow types."""
    return _as(_NarrowOneByOne if narrow else _OneByOne, value, np.float32)


def flushed_to_zero(value: Any, narrow: bool = False) -> Any:
    """The array, if it is one of float64; anything else as it is. `narrow`: as of `summed_one_by_one`."""
    return _as(_NarrowFlushed if narrow else _Flushed, value, np.float64)


def moved_by_roundings(value: Any, draw: np.random.Generator, narrow: bool = False) -> Any:
    """As `flushed_to_zero`."""
    watched = _as(_NarrowMoved if narrow else _Moved, value, np.float64)
    if isinstance(watched, _Moved):
        watched.draw = draw
    return watched


def _as(kind: type[np.ndarray], value: Any, dtype: type[np.floating]) -> Any:
    return value.view(kind) if isinstance(value, np.ndarray) and value.dtype == dtype else value
