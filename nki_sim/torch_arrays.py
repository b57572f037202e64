"""torch tensors as kernel arguments, when the caller has torch; the simulator never needs it."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

_VIEWED = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
}
"""Types that torch and NumPy do not exchange directly: torch type -> (carrier, NumPy type)."""


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Any) -> np.ndarray:
    """The same memory as a NumPy array where torch allows it."""
    if isinstance(value, np.ndarray):
        return value
    torch = sys.modules["torch"]
    tensor = value.detach().cpu()
    name = str(tensor.dtype).rpartition(".")[2]
    if name in _VIEWED:
        carrier, dtype = _VIEWED[name]
        viewed: np.ndarray = tensor.contiguous().view(getattr(torch, carrier)).numpy().view(dtype)
        return viewed
    array: np.ndarray = tensor.numpy()
    return array


def to_torch(array: np.ndarray) -> Any:
    torch = sys.modules["torch"]
    for name, (carrier, dtype) in _VIEWED.items():
        if array.dtype == dtype:
            return torch.from_numpy(array.view(carrier)).view(getattr(torch, name))
    return torch.from_numpy(array)


def update(original: Any, values: np.ndarray) -> None:
    """Write a kernel's changes back into the caller's array."""
    if isinstance(original, np.ndarray):
        original[...] = values.reshape(original.shape)
    elif original is not None:
        original.detach().copy_(to_torch(np.array(values)).reshape(original.shape))
