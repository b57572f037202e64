"""Input distributions: what a kernel meets beside the inputs that its reference draws.

Each takes the reference's own inputs and changes the floating arrays among them, so that shapes, dtypes, integers and
numbers stay what the task says, and what is never negative stays so. A shortcut that is right for standard normal
inputs alone (no maximum subtracted, no epsilon, no weight decay) is wrong for one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from accelopt_core.task import DISTRIBUTIONS, REFERENCE

Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def _large(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """8 times as large: the logits of a product of two reach beyond 88, where exp overflows in float32."""
    return array * 8


def _small(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A thousandth: the mean square falls below the usual epsilons."""
    return array * 1e-3


def _positive(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    return np.abs(array)


def _heavy_tailed(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A few elements a hundred times their neighbours: cubes, at the array's own scale."""
    scale = float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) or 1.0
    return array * np.square(array / scale)


def _constant_rows(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    return np.repeat(array[..., :1], array.shape[-1], axis=-1) if array.ndim > 1 else array


def _zeros_mixed(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    return np.where(draw.random(array.shape, np.float32) < 0.3, 0, array)


def _zero_rows(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Every seventh row, the same ones in all arrays: what is normalised there is 0 / epsilon."""
    if array.ndim < 2:
        return array
    changed = array.copy()
    changed[..., ::7, :] = 0
    return changed


_CHANGES: dict[str, Change] = {
    "large": _large,
    "small": _small,
    "positive": _positive,
    "heavy-tailed": _heavy_tailed,
    "constant-rows": _constant_rows,
    "zeros-mixed": _zeros_mixed,
    "zero-rows": _zero_rows,
}

assert (REFERENCE, *_CHANGES) == DISTRIBUTIONS, "a task can name what is not here, or the reverse"


def changed_inputs(inputs: list[Any], distribution: str, seed: int) -> list[Any]:
    """The reference's inputs under another distribution; `seed` draws what is drawn. Raises KeyError."""
    if distribution == REFERENCE:
        return inputs
    change = _CHANGES[distribution]
    result = []
    for position, value in enumerate(inputs):
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size:
            value = change(value, np.random.default_rng([seed, position])).astype(value.dtype)
        result.append(value)
    return result
