"""Input distributions: what a kernel meets beside the inputs that its reference draws.

Most take the reference's own inputs and change the floating arrays among them, so that shapes, dtypes, integers and
numbers stay what the task says, and what is never negative stays so. A shortcut that is right for standard normal
inputs alone (no maximum subtracted, no epsilon, no weight decay, a variance by E[x^2] - E[x]^2) is wrong for one of
them. Two set magnitudes by target and not by factor: 150 to 200, where neither exp(x) nor exp(-x) fits float32. The
last two change what the others leave as it is, within its domain (`domains`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from accelopt_core.judging.inputs.domains import Kind, Movement, is_floating, moved_inputs
from accelopt_core.task import COMPLEMENT, DISTRIBUTIONS, DOMAIN, REFERENCE

PEAK = (150.0, 200.0)
"""Between which the largest magnitude of an array lies where it is set."""

ORDERS = 4
"""Powers of ten between the scales of rows."""

OFFSET = 100.0
"""Mean over spread where there is an offset: there E[x^2] - E[x]^2 loses four of float32's seven digits."""

Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def _heavy_tailed(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A few elements a hundred times their neighbours: cubes, at the array's own scale."""
    scale = float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) or 1.0
    return array * np.square(array / scale)


def _constant_rows(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    return np.repeat(array[..., :1], array.shape[-1], axis=-1) if array.ndim > 1 else array


def _zero_rows(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Every seventh row and column, the same ones in all arrays: what is normalised there is 0 / epsilon."""
    if array.ndim < 2:
        return array
    changed = array.copy()
    changed[..., ::7, :] = changed[..., 5::7] = 0
    return changed


def _peaks(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """One row in eight with its largest at 150 to 200, the others as they are.

    Of each array other rows: where all are large at once, what they make is often beyond float32, and nothing shows.
    """
    rows = _rows(array)
    changed = rows * (draw.uniform(*PEAK) / _largest(rows, axis=1))
    return np.where(_one_in_eight(len(rows), draw)[:, None], changed, rows).reshape(array.shape)


def _scaled_rows(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Rows between their own size and a ten-thousandth of it; what hides behind large rows is alone in its own."""
    return array * 10.0 ** draw.uniform(-ORDERS, 0, (*array.shape[:-1], 1) if array.ndim > 1 else array.shape)


def _offset_rows(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Each row by its own offset, of either sign where the array has both: 1 to 1,000 times its spread."""
    shape = (*array.shape[:-1], 1) if array.ndim > 1 else array.shape
    signs = np.where(draw.random(shape) < 0.5, -1.0, 1.0) if array.min() < 0 else 1.0
    return array + signs * 10.0 ** draw.uniform(0, 3, shape) * _spread(array)


def _spread(array: np.ndarray) -> float:
    return float(np.std(array, dtype=np.float64)) or 1.0


def _mixed(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """All of the others in one draw, row by row, at scales that differ by four orders; the largest 150 to 200.

    Each row is as it is, of one sign, heavy-tailed, constant, with zeros mixed in or far from zero beside its spread;
    one row in eight reaches the peak.
    """
    rows = _rows(array)
    kinds = draw.integers(0, 7, len(rows))[:, None]
    changed = np.where(kinds == 1, np.abs(rows), rows)
    if array.min() < 0:  # what is never negative stays so
        changed = np.where(kinds == 2, -np.abs(rows), changed)
    changed = np.where(kinds == 3, rows * np.square(rows / _largest(rows, axis=1)), changed)
    changed = np.where(kinds == 4, rows[:, :1], changed)
    changed = np.where((kinds == 5) & (draw.random(rows.shape, np.float32) < 0.3), 0, changed)
    changed = np.where(kinds == 6, rows + OFFSET * _spread(array), changed)
    scales = 10.0 ** draw.uniform(-ORDERS, 0, (len(rows), 1))
    scales[_one_in_eight(len(rows), draw)] = 1
    return (changed * (draw.uniform(*PEAK) * scales / _largest(changed, axis=1))).reshape(array.shape)


def _rows(array: np.ndarray) -> np.ndarray:
    """[rows, columns]; each element of a vector is a row."""
    return array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(-1, 1)


def _one_in_eight(count: int, draw: np.random.Generator) -> np.ndarray:
    """bool [count], one at least."""
    chosen = draw.random(count) < 1 / 8
    chosen[draw.integers(count)] = True
    return chosen


def _largest(array: np.ndarray, axis: int | None = None) -> np.ndarray:
    largest = np.abs(array).max(axis=axis, keepdims=axis is not None)
    return np.where(largest > 0, largest, 1)


_CHANGES: dict[str, Change] = {
    "large": lambda array, _: array * 8,  # the logits of a product of two reach beyond 88, where exp overflows
    "small": lambda array, _: array * 1e-3,  # the mean square falls below the usual epsilons
    "positive": lambda array, _: np.abs(array),
    "heavy-tailed": _heavy_tailed,
    "constant-rows": _constant_rows,
    "zeros-mixed": lambda array, draw: np.where(draw.random(array.shape, np.float32) < 0.3, 0, array),
    "zero-rows": _zero_rows,
    "peaks": _peaks,
    "scaled-rows": _scaled_rows,
    "offset": lambda array, _: array + OFFSET * _spread(array),  # as far apart as before
    "offset-rows": _offset_rows,
    "mixed": _mixed,
}

assert (REFERENCE, *_CHANGES, DOMAIN, COMPLEMENT) == DISTRIBUTIONS, "a task can name what is not here, or the reverse"


def changed_inputs(
    inputs: list[Any], distribution: str, seed: int, movements: Sequence[Movement | None] = ()
) -> list[Any]:
    """The reference's inputs under another distribution; `seed` draws what is drawn. Raises KeyError.

    `movements`: of each input, as `domains.movements` finds them; what is declared fixed stays, and what has declared
    ends stays between them.
    """
    if distribution == REFERENCE:
        return inputs
    if distribution in (DOMAIN, COMPLEMENT):
        return moved_inputs(inputs, movements, seed, distribution == COMPLEMENT)
    change = _CHANGES[distribution]
    result = []
    for position, value in enumerate(inputs):
        movement = movements[position] if position < len(movements) else None
        if is_floating(value) and value.size and (movement is None or movement.kind is not Kind.FIXED):
            wide = value if value.dtype.isbuiltin == 1 else value.astype(np.float32)
            changed = change(wide, np.random.default_rng([seed, position]))
            if movement is not None and movement.declared:
                changed = np.clip(changed, movement.low, movement.high)
            value = changed.astype(value.dtype)
        result.append(value)
    return result
