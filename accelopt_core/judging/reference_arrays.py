"""Inputs on which a reference of narrow types computes in float64, or in float32, whatever it casts to in between.

A reference of bfloat16 arrays casts: `x.astype(np.float32)` before it computes, `.astype(bfloat16)` before it returns.
Both are about what its own machine has and not about the formula; left in place, the reference would be as far off as
the kernel is. And what NumPy makes float64 of (`np.vectorize`, a factor of `np.sqrt(2)`) would show nothing of what
plain float32 gets wrong. A narrow value that is used in further arithmetic is part of the formula, and stays rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from accelopt_core.judging.storage import STORAGE, WIDE


class ReferenceArray(np.ndarray):
    """An array whose `astype` to a narrow type remembers what it rounded."""

    unrounded: np.ndarray | None = None
    """Of an array that is exactly what `astype` returned; what is computed from it has none."""

    def __array_finalize__(self, made_from: object) -> None:
        self.unrounded = None

    def astype(self, dtype: Any, *arguments: Any, **keywords: Any) -> Any:
        found = super().astype(dtype, *arguments, **keywords)
        if found.dtype.name in STORAGE and isinstance(found, ReferenceArray):
            found.unrounded = self
        return found


class Float64Array(ReferenceArray):
    """An array whose `astype(np.float32)` is float64."""

    def astype(self, dtype: Any, *arguments: Any, **keywords: Any) -> Any:
        wide = np.float64 if np.dtype(dtype) == np.float32 else dtype
        return super().astype(wide, *arguments, **keywords)


class _Float32Array(ReferenceArray):
    """An array whose arithmetic is of float32, whatever float64 it meets."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            kwargs["out"] = tuple(_plain(out) for out in kwargs["out"])
        found = getattr(ufunc, method)(*(_in_float32(each) for each in inputs), **kwargs)
        if isinstance(found, tuple):
            return tuple(_as_float32_array(each) for each in found)
        return _as_float32_array(found)


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Float32Array) else value


def _in_float32(value: Any) -> Any:
    is_double = isinstance(value, (np.ndarray, np.generic)) and value.dtype == np.float64
    return _plain(value).astype(np.float32) if is_double else _plain(value)


def _as_float32_array(value: Any) -> Any:
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    return np.asarray(_in_float32(value)).view(_Float32Array)


def narrowest(inputs: Sequence[Any]) -> float:
    """The largest unit roundoff among arrays in narrow types; 0 where there are none."""
    return max((STORAGE.get(a.dtype.name, WIDE).relative for a in inputs if isinstance(a, np.ndarray)), default=0.0)


def computing_wide(inputs: Sequence[Any]) -> list[Any]:
    """`inputs`, to compute with: arrays of float64 in float64, and arrays of float32 in float32."""
    kinds = {np.dtype(np.float64): Float64Array, np.dtype(np.float32): _Float32Array}
    return [a.view(kinds[a.dtype]) if isinstance(a, np.ndarray) and a.dtype in kinds else a for a in inputs]


def unrounded(result: Any, most: float) -> np.ndarray:
    """A result of the reference before it was cast to a type of at most that unit roundoff; as it is where it was not.

    A narrower type than any input has is part of the problem: the kernel is held to that type.
    """
    before = getattr(result, "unrounded", None)
    if before is not None and STORAGE[result.dtype.name].relative <= most:
        result = before
    return np.asarray(result)
