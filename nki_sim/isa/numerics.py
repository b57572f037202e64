"""How values are converted on their way in and out of an engine.

Engines compute in float32 whatever the operand dtypes (Trainium2 architecture guide); results are
rounded once, when they are written: to nearest even, and integers saturate.
"""

from __future__ import annotations

import numpy as np

_FLOAT32 = np.dtype(np.float32)


def read32(array: np.ndarray) -> np.ndarray:
    """The operand as float32; float32 operands are not copied."""
    return array if array.dtype == _FLOAT32 else array.astype(np.float32)


def write(dst: np.ndarray, values: np.ndarray) -> None:
    """Round float32 `values` into `dst`, whose shape they have (or broadcast to)."""
    dtype = dst.dtype
    if dtype == _FLOAT32 or dtype == values.dtype:
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
