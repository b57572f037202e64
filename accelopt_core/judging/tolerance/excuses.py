"""What the task's input kernel gets wrong excuses a candidate there, by as much and not much more."""

from __future__ import annotations

import numpy as np

from accelopt_core.judging.tolerance.closeness import BINS, SHORT, alike_bins

EXCUSE_SLACK = 8
"""A candidate may be this many times as far off as the input kernel is."""

_UNDEFINED = 1e-3
"""Of the largest in its row, where the reference gives no number and the input kernel does."""

_SAMPLE = 1 << 20
"""Elements from which it is taken what is usual."""


def excuse(theirs: np.ndarray, expected: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(what a candidate is held to, how far each element may be off that besides): with the input kernel's output.

    The second is `EXCUSE_SLACK` times what the input kernel is off there, or what it is off at half of the elements of
    that row, of that column, or of those that are alike (`alike_bins`), if that is more: at the element alone it may be
    right by luck, and its worst elsewhere would excuse anything. Where the input kernel is not finite the element is
    left out: infinite. Where only the reference is not, the input kernel's value is what counts.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(theirs.astype(np.float64) - expected)
    known = np.isfinite(expected) & np.isfinite(theirs)
    alike = alike_bins(np.where(known, expected, 0.0), noise).reshape(-1)
    step = max(1, error.size // _SAMPLE)
    sample = np.flatnonzero(known.reshape(-1)[::step]) * step
    order = sample[np.lexsort((error.reshape(-1)[sample], alike[sample]))]
    usual = np.zeros(int(np.prod(BINS)))
    starts = np.flatnonzero(np.diff(alike[order], prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(order)]):
        usual[alike[order[start]]] = error.reshape(-1)[order[(start + end) // 2]]
    counted = np.where(known, error, 0.0)
    allowed = np.maximum(counted, usual[alike].reshape(error.shape))
    for axis in range(max(0, error.ndim - 2), error.ndim):
        middle = error.shape[axis] // 2
        if error.shape[axis] >= SHORT:
            allowed = np.maximum(allowed, np.partition(counted, middle, axis=axis).take([middle], axis=axis))
    allowed *= EXCUSE_SLACK
    held = np.where(np.isfinite(expected) | ~np.isfinite(theirs), expected, theirs)
    undefined = ~np.isfinite(expected) & np.isfinite(theirs)
    if undefined.any():
        largest = np.abs(np.where(np.isfinite(theirs), theirs, 0.0)).max(axis=-1, keepdims=True, initial=0)
        allowed = np.where(undefined, _UNDEFINED * largest, allowed)
    return held, np.where(np.isfinite(theirs), allowed, np.inf)
