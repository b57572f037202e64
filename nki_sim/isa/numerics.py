"""How values are converted on their way in and out of an engine.

Engines compute in float32 whatever the operand dtypes (Trainium2 architecture guide); results are
rounded once, when they are written: to nearest even, and integers saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

FLOAT32 = np.dtype(np.float32)


def read32(array: np.ndarray) -> np.ndarray:
    """The operand as float32; float32 operands are not copied."""
    return array if array.dtype == FLOAT32 else array.astype(FLOAT32)


def shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The operand with another rank but the same elements per partition."""
    return array if array.shape == shape else array.reshape(shape)


def column(array: np.ndarray, ndim: int) -> np.ndarray:
    """A [P, 1] operand as a float32 copy [P, 1, ...] that broadcasts along `ndim` - 1 free dimensions.

    A copy, because the destination may overlap it.
    """
    return array.astype(FLOAT32).reshape((array.shape[0],) + (1,) * (ndim - 1))


def write(dst: np.ndarray, values: np.ndarray) -> None:
    """Round float32 `values` into `dst`, whose shape they have (or broadcast to)."""
    dtype = dst.dtype
    if dtype == FLOAT32 or dtype == values.dtype:
        dst[...] = values
    elif dtype.kind in "iu" and values.dtype.kind == "f":
        info = np.iinfo(dtype)
        rounded = np.rint(values.astype(np.float64))
        dst[...] = np.where(np.isnan(rounded), 0, np.clip(rounded, info.min, info.max)).astype(dtype)
    elif dtype.kind == "b":
        dst[...] = values != 0
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            dst[...] = values.astype(dtype)


def write32(dst: np.ndarray, values: np.ndarray) -> None:
    """Round any values into `dst` by way of float32, as an engine does when dtypes differ."""
    write(dst, values if values.dtype == dst.dtype else read32(values))


def apply(function: Callable[..., Any], dst: np.ndarray, *operands: Any) -> None:
    """dst = function(*operands) in float32, without a temporary where dst is float32.

    Array operands must be float32 already and have dst's shape or broadcast to it.
    """
    if dst.dtype == FLOAT32:
        function(*operands, out=dst)
    else:
        result = function(*operands)
        write(dst, result if result.dtype.kind == "f" else result.astype(FLOAT32))
