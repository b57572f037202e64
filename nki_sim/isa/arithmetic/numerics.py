"""How values are converted on their way in and out of an engine.

Engines compute in float32 whatever the operand dtypes (Trainium2 architecture guide); results are
rounded once, when they are written: to nearest even, and integers saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

FLOAT32 = np.dtype(np.float32)
_RANGES = {np.dtype(c).char: (float(np.iinfo(c).min), float(np.iinfo(c).max)) for c in "bBhHiIlLqQ"}
"""Lowest and highest value by type character; 64 bits only on the way to a cast."""


_rounded_integers = False


def take_rounded_integers() -> bool:
    """Has an integer that float32 does not hold, one beyond 2^24, been converted to it since this was asked last?"""
    global _rounded_integers
    found, _rounded_integers = _rounded_integers, False
    return found


def read32(array: np.ndarray) -> np.ndarray:
    """The operand as float32; float32 operands are not copied."""
    if array.dtype is FLOAT32 or array.dtype == FLOAT32:
        return array
    values = array.astype(FLOAT32)
    if array.dtype.kind in "iu" and array.dtype.itemsize >= 4 and not _rounded_integers:
        _notice(array, values)
    return values


def _notice(integers: np.ndarray, values: np.ndarray) -> None:
    global _rounded_integers
    _rounded_integers = bool((values.astype(np.float64) != integers).any())


TFLOAT32_DROPPED_BITS = 13
"""Of float32's 23 mantissa bits; tfloat32 is 1 sign, 8 exponent and 10 mantissa bits (NKI's table of dtypes)."""


def tfloat32(array: np.ndarray) -> np.ndarray:
    """A float32 operand as TensorE multiplies it when it is called tfloat32: rounded to nearest even."""
    bits = np.ascontiguousarray(array).view(np.uint32).astype(np.uint64)
    half = (1 << (TFLOAT32_DROPPED_BITS - 1)) - 1
    odd = (bits >> TFLOAT32_DROPPED_BITS) & 1
    kept = ((bits + half + odd) >> TFLOAT32_DROPPED_BITS << TFLOAT32_DROPPED_BITS).astype(np.uint32)
    return np.where(np.isfinite(array), kept.view(np.float32), array)


def shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The operand with another rank but the same elements per partition."""
    return array if array.shape == shape else array.reshape(shape)


def column(array: np.ndarray, ndim: int) -> np.ndarray:
    """A [P, 1] operand as a float32 copy [P, 1, ...] that broadcasts along `ndim` - 1 free dimensions.

    A copy, because the destination may overlap it.
    """
    values = read32(array.copy() if array.dtype == FLOAT32 else array)
    return values if ndim == 2 and array.ndim == 2 else values.reshape((array.shape[0],) + (1,) * (ndim - 1))


def write(dst: np.ndarray, values: np.ndarray) -> None:
    """Round float32 `values` into `dst`, whose shape they have (or broadcast to)."""
    dtype = dst.dtype
    if dtype == FLOAT32 or dtype == values.dtype:
        dst[...] = values
    elif dtype.kind in "iu" and values.dtype.kind == "f":
        low, high = _RANGES[dtype.char]
        rounded = values.astype(np.float64)
        np.rint(rounded, out=rounded)
        np.minimum(rounded, high, out=rounded)
        np.maximum(rounded, low, out=rounded)
        np.copyto(rounded, 0, where=rounded != rounded)  # NaN
        dst[...] = rounded  # exact by now
    elif dtype.kind == "b":
        dst[...] = values != 0
    else:
        dst[...] = values


def write32(dst: np.ndarray, values: np.ndarray) -> None:
    """Round any values into `dst` by way of float32, as an engine does when dtypes differ."""
    write(dst, values if values.dtype == dst.dtype else read32(values))


def workspace(dst: np.ndarray) -> np.ndarray:
    """Where to compute float32 results of dst's shape: dst itself, or a temporary to be written to it.

    dst itself only if each of its elements is a place of its own: kernels throw results away into views
    that repeat one element.
    """
    if dst.dtype is FLOAT32 and (dst.flags.c_contiguous or _apart(dst.shape, dst.strides)):
        return dst
    return np.empty(dst.shape, np.float32)


@lru_cache(maxsize=4096)
def _apart(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether no two elements of a float32 view share a byte (each stride steps over all smaller ones)."""
    reach = FLOAT32.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(strides, shape) if n > 1):
        if stride < reach:
            return False
        reach = stride * (size - 1) + reach
    return True


def apply(function: Callable[..., Any], dst: np.ndarray, *operands: Any) -> None:
    """dst = function(*operands) in float32, without a temporary where dst is float32.

    Array operands must be float32 already and have dst's shape or broadcast to it.
    """
    if dst.dtype == FLOAT32:
        function(*operands, out=dst)
    else:
        result = function(*operands)
        write(dst, result if result.dtype.kind == "f" else result.astype(FLOAT32))
