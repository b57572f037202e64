"""Sorting of numbers that are no larger than there are things: rows by buffer, buffers by row."""

from __future__ import annotations

import numpy as np

from nki_sim import compiled


def in_turn(keys: np.ndarray, bound: int) -> np.ndarray:
    """int64: the places of the keys, smallest key first, equal ones as they stand. Keys: 0 up to below `bound`."""
    core = compiled.functions()
    if core is None:
        return np.argsort(keys, kind="stable")
    found: np.ndarray = core.ordered(np.array(keys, np.int64), bound)  # a copy: Numba compiles anew for other layouts
    return found
