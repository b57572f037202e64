"""Reductions and scans: a small region combines two elements, here all pairs of a step at once.

The order is a tree of halves: GPUs do not say theirs, and this one does not depend on how many programs run side by
side, so that the same inputs give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nki_optimizer_triton.ir.faults import NotHere
from nki_optimizer_triton.ir.types import Operation

Combine = Callable[[list[np.ndarray], list[np.ndarray]], list[np.ndarray]]


def reduced(operation: Operation, arrays: list[np.ndarray], combine: Combine) -> list[np.ndarray]:
    """Along the axis of the operation; arrays [P, ...], of which the axis is dropped."""
    axis = int(operation.attributes["axis"]) + 1  # type: ignore[arg-type]
    moved = [np.moveaxis(array, axis, -1) for array in arrays]
    while (size := moved[0].shape[-1]) > 1:
        half = size // 2
        rest = [array[..., 2 * half :] for array in moved]
        done = combine([array[..., :half] for array in moved], [array[..., half : 2 * half] for array in moved])
        moved = [np.concatenate(pair, -1) if size % 2 else pair[0] for pair in zip(done, rest)]
    return [array[..., 0] for array in moved]


def scanned(operation: Operation, arrays: list[np.ndarray], combine: Combine) -> list[np.ndarray]:
    """Inclusive, along the axis; from the end where it is reversed."""
    axis = int(operation.attributes["axis"]) + 1  # type: ignore[arg-type]
    reverse = bool(operation.attributes.get("reverse", False))
    moved = [np.moveaxis(array, axis, -1) for array in arrays]
    if reverse:
        moved = [array[..., ::-1] for array in moved]
    step, size = 1, moved[0].shape[-1]
    while step < size:
        later = combine([array[..., :-step] for array in moved], [array[..., step:] for array in moved])
        moved = [np.concatenate((array[..., :step], new), -1) for array, new in zip(moved, later)]
        step *= 2
    if reverse:
        moved = [array[..., ::-1] for array in moved]
    return [np.moveaxis(array, -1, axis) for array in moved]


def histogram(values: np.ndarray, mask: np.ndarray | None, bins: int) -> np.ndarray:
    """How often each of 0 ... bins - 1 is among the values of a program; others are not counted. [P, bins], int32."""
    flat = values.reshape(values.shape[0], -1).astype(np.int64)
    counted = (flat >= 0) & (flat < bins)
    if mask is not None:
        counted = counted & mask.reshape(mask.shape[0], -1)
    rows = np.arange(max(len(flat), len(counted)))[:, None]
    flat, counted = (
        np.broadcast_to(flat, (len(rows), flat.shape[1])),
        np.broadcast_to(counted, (len(rows), flat.shape[1])),
    )
    places = (rows * bins + flat)[counted]
    return np.bincount(places, minlength=len(rows) * bins).reshape(len(rows), bins).astype(np.int32)


def gathered(source: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    """Along an axis; raises NotHere for an index outside, which a GPU answers with anything."""
    if ((indices < 0) | (indices >= source.shape[axis + 1])).any():
        raise NotHere("tl.gather with an index outside its source: what that gives, only a GPU knows")
    count = max(source.shape[0], indices.shape[0])
    whole = np.broadcast_to(source, (count, *source.shape[1:]))
    return np.take_along_axis(whole, np.broadcast_to(indices, (count, *indices.shape[1:])).astype(np.int64), axis + 1)
