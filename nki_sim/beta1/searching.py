"""`neuronxcc.nki.isa`, continued: statistics, searches and reductions over partitions, on VectorE and GpSimd."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_sim.beta1.operations import numbers, op_name, reducing, result, rows_of
from nki_sim.beta1.tiles import Tile, covered
from nki_sim.errors import NotSupported


def _rows(data: Tile, mask: Any, what: str) -> tuple[np.ndarray, Any]:
    """(each partition's elements that the mask lets through, the mask of a result with as many partitions)."""
    valid = covered(mask, data.shape)
    if isinstance(valid, np.ndarray):
        raise NotSupported(f"{what} under a mask that is not a box")
    values: np.ndarray = numbers(data, valid, data.shape)
    return values.reshape(values.shape[0], -1), valid


def bn_stats(data: Tile, *, mask: Any = None, dtype: Any = None) -> Tile:
    """(count, mean, variance * count) of the even, then of the odd elements."""
    rows, valid = _rows(data, mask, "bn_stats")
    out = np.zeros((rows.shape[0], 6), np.float32)
    for at, half in ((0, rows[:, 0::2]), (3, rows[:, 1::2])):
        if half.shape[1]:
            out[:, at], out[:, at + 1] = half.shape[1], half.mean(axis=1)
            out[:, at + 2] = half.var(axis=1) * half.shape[1]
    shape = (data.shape[0], 6)
    return result(shape, dtype or data.numpy, rows_of(valid, shape), lambda box: out)


def bn_aggr(data: Tile, *, mask: Any = None, dtype: Any = None) -> Tile:
    """Mean and variance from results of bn_stats side by side."""
    rows, valid = _rows(data, mask, "bn_aggr")
    triples = rows.reshape(rows.shape[0], -1, 3)
    count, mean, scaled = (triples[..., k] for k in range(3))
    total = count.sum(axis=1)
    overall = (count * mean).sum(axis=1) / total
    spread = scaled.sum(axis=1) + (count * np.square(mean - overall[:, None])).sum(axis=1)
    shape = (data.shape[0], 2)
    values = np.stack([overall, spread / total], axis=1)
    return result(shape, dtype or data.numpy, rows_of(valid, shape), lambda box: values)


def max8(*, src: Tile, mask: Any = None, dtype: Any = None) -> Tile:
    """The eight largest elements of each partition, the largest first."""
    rows, valid = _rows(src, mask, "max8")
    shape = (src.shape[0], 8)
    return result(shape, dtype or src.numpy, rows_of(valid, shape), lambda box: np.sort(rows, axis=1)[:, ::-1][:, :8])


def _places(rows: np.ndarray, vals: np.ndarray, order: Any) -> np.ndarray:
    """Where each value stands in its partition, -1 for nowhere; equal values take successive places."""
    out = np.full(vals.shape, -1, np.int64)
    for row in range(rows.shape[0]):
        taken: set[int] = set()
        for k in order:
            found = [int(at) for at in np.flatnonzero(rows[row] == vals[row, k]) if int(at) not in taken]
            if found:
                out[row, k] = found[0]
                taken.add(found[0])
    return out


def nc_find_index8(*, data: Tile, vals: Tile, mask: Any = None, dtype: Any = None) -> Tile:
    """The places of eight values in each partition."""
    rows, valid = _rows(data, mask, "nc_find_index8")
    wanted = numbers(vals, None, vals.shape)[: rows.shape[0]]
    kind = np.dtype(dtype or np.uint32)
    shape = (data.shape[0], 8)
    places = _places(rows, wanted, range(8)).astype(kind)
    return result(shape, kind, rows_of(valid, shape), lambda box: places)


def nc_match_replace8(*, data: Tile, vals: Tile, imm: Any, mask: Any = None, dtype: Any = None) -> Tile:
    """The data with the first occurrence of each of eight values replaced."""
    rows, valid = _rows(data, mask, "nc_match_replace8")
    if isinstance(valid, tuple):
        raise NotSupported("nc_match_replace8 under a mask that cuts it")
    wanted = numbers(vals, None, vals.shape)
    out = rows.copy()
    for row, places in enumerate(_places(rows, wanted, range(7, -1, -1))):
        out[row, places[places >= 0]] = imm
    return result(data.shape, dtype or data.numpy, None, lambda box: out)


def tensor_partition_reduce(op: Any, data: Tile, *, mask: Any = None, dtype: Any = None) -> Tile:
    """One partition with what all partitions reduce to."""
    if mask is not None:
        raise NotSupported("tensor_partition_reduce(mask=)")
    values = reducing(op_name(op)).reduce(numbers(data, None, data.shape), axis=0, keepdims=True)
    return result((1, *data.shape[1:]), dtype or data.numpy, None, lambda box: values)
