"""`neuronxcc.nki.isa`: instructions that return the tile they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nki_sim.beta1.indices import Grid, Mask
from nki_sim.beta1.operations import (
    aligned,
    binary,
    broadcast_shape,
    column,
    holds,
    numbers,
    op_name,
    promoted,
    reducing,
    result,
    rows_of,
    unary,
)
from nki_sim.beta1.tiles import PSUM, SBUF, Tile, covered, write
from nki_sim.errors import NkiValidationError, NotSupported
from nki_sim.isa.constants import dge_mode, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from nki_sim.machine import DEFAULT_MACHINE, ISA, machine

tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine, sync_engine = engine.gpsimd, engine.unknown, engine.sync

Number = Any
Box = Sequence[int] | None


def nc_matmul(
    stationary: Tile,
    moving: Tile,
    *,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    tile_position: Any = (),
    tile_size: Any = (),
    perf_mode: Any = None,
    mask: Any = None,
) -> Tile:
    if perf_mode not in (None, "none", matmul_perf_mode.none):
        raise NotSupported(f"nc_matmul(perf_mode={perf_mode})")
    if int(stationary.shape[0]) != int(moving.shape[0]):
        raise NkiValidationError(f"nc_matmul contracts {int(stationary.shape[0])} with {int(moving.shape[0])}")
    shape = (*stationary.shape[1:], *moving.shape[1:])
    dtype = stationary.numpy if is_transpose else np.dtype(np.float32)

    def compute(box: Box) -> np.ndarray:
        left, right = numbers(stationary, None, shape), numbers(moving, None, shape)
        if left.ndim == right.ndim == 2:
            product = left.T @ right
        else:
            product = np.tensordot(left, right, axes=([0], [0]))
        return product if box is None else product[tuple(slice(0, int(n)) for n in box)]

    return result(shape, dtype, mask, compute, PSUM)


def nc_transpose(data: Tile, *, mask: Any = None, dtype: Any = None, engine: Any = unknown_engine) -> Tile:
    rows, columns = data.shape[0], int(np.prod([int(n) for n in data.shape[1:]]))
    shape = (data.shape[1] if data.ndim == 2 else columns, rows)
    small = max(int(rows), columns) <= ISA.vector_transpose_fmax
    on_vector = engine is vector_engine or (engine is unknown_engine and small)

    def compute(box: Box) -> np.ndarray:
        valid = covered(mask, data.shape)
        if isinstance(valid, tuple):  # the mask is over what is read
            out = np.full([int(n) for n in shape], np.nan, np.float32)
            part = data.view(valid).astype(np.float32)
            out[: part.shape[1], : part.shape[0]] = part.T
            return out
        whole: np.ndarray = data.view().reshape(int(rows), columns).T.astype(np.float32)
        return whole

    return result(shape, dtype or data.numpy, None, compute, SBUF if on_vector else PSUM)


def activation(
    op: Any,
    data: Tile,
    *,
    bias: Number = None,
    scale: Number = 1.0,
    reduce_op: Any = None,
    reduce_res: Tile | None = None,
    reduce_cmd: Any = None,
    mask: Any = None,
    dtype: Any = None,
) -> Tile:
    if reduce_cmd not in (None, _commands.idle, _commands.reset_reduce):
        raise NotSupported(f"activation(reduce_cmd={reduce_cmd})")
    shape = data.shape
    scale, bias = column(scale, data), column(bias, data)
    function = unary(op_name(op))

    def compute(box: Box) -> np.ndarray:
        x = numbers(data, box, shape) * numbers(scale, box, shape)
        values = function((x if bias is None else x + numbers(bias, box, shape)).astype(np.float32))
        if reduce_res is not None:
            write(reduce_res, values.sum(axis=tuple(range(1, values.ndim))), None if box is None else (box[0], 1))
        return values

    return result(shape, dtype or data.numpy, mask, compute)


def activation_reduce(
    op: Any,
    data: Tile,
    *,
    reduce_op: Any,
    reduce_res: Tile,
    bias: Number = None,
    scale: Number = 1.0,
    mask: Any = None,
    dtype: Any = None,
) -> Tile:
    if op_name(reduce_op) != "add":
        raise NotSupported(f"activation_reduce(reduce_op={reduce_op})")
    return activation(op, data, bias=bias, scale=scale, reduce_res=reduce_res, mask=mask, dtype=dtype)


def tensor_reduce(
    op: Any, data: Tile, axis: Any, *, mask: Any = None, dtype: Any = None, negate: bool = False, keepdims: bool = False
) -> Tile:
    return reduced(op_name(op), data, axis, mask, dtype, negate, keepdims)


def reduced(
    name: str, data: Tile, axis: Any, mask: Any, dtype: Any, negate: bool = False, keepdims: bool = False
) -> Tile:
    """The reduction behind `tensor_reduce` and `nl.sum` and its like; the mask is over the operand."""
    axes = sorted(
        (a + data.ndim if a < 0 else a) for a in ([axis] if isinstance(axis, int) else [int(a) for a in axis])
    )
    if 0 in axes:
        raise NotSupported("a reduction over partitions")
    shape = [1 if k in axes else n for k, n in enumerate(data.shape) if keepdims or k not in axes]
    if len(shape) == 1:
        shape = [shape[0], 1]
    valid = covered(mask, data.shape)
    if isinstance(valid, np.ndarray):
        raise NotSupported("a reduction under a mask that is not a box")

    def compute(box: Box) -> np.ndarray:
        values = numbers(data, valid, data.shape)
        out: np.ndarray = reducing(name).reduce(values, axis=tuple(axes), keepdims=keepdims)
        return -out if negate else out

    tile = result(shape, dtype or data.numpy, rows_of(valid, shape), compute)
    return tile


def tensor_tensor(
    data1: Tile, data2: Tile, op: Any, *, dtype: Any = None, mask: Any = None, engine: Any = unknown_engine
) -> Tile:
    data1, data2 = aligned(data1, data2)
    shape = broadcast_shape(data1, data2)
    function = binary(op_name(op))

    def compute(box: Box) -> Any:
        return function(numbers(data1, box, shape), numbers(data2, box, shape))

    return result(shape, promoted(dtype, data1, data2), mask, compute)


def tensor_scalar(
    data: Tile,
    op0: Any,
    operand0: Number,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Number = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = unknown_engine,
) -> Tile:
    operand0, operand1 = column(operand0, data), column(operand1, data)
    shape = data.shape

    def compute(box: Box) -> Any:
        x = _step(op0, numbers(data, box, shape), numbers(operand0, box, shape), reverse0)
        return x if op1 is None else _step(op1, x, numbers(operand1, box, shape), reverse1)

    return result(shape, dtype or data.numpy, mask, compute)


def _step(op: Any, x: Any, y: Any, reverse: bool) -> Any:
    function = binary(op_name(op))
    return function(y, x) if reverse else function(x, y)


def scalar_tensor_tensor(
    data: Tile,
    op0: Any,
    operand0: Number,
    op1: Any,
    operand1: Tile,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = unknown_engine,
) -> Tile:
    operand0 = column(operand0, data)
    shape = data.shape

    def compute(box: Box) -> Any:
        x = _step(op0, numbers(data, box, shape), numbers(operand0, box, shape), reverse0)
        return _step(op1, x, numbers(operand1, box, shape), reverse1)

    return result(shape, dtype or data.numpy, mask, compute)


def tensor_scalar_reduce(
    *,
    data: Tile,
    op0: Any,
    operand0: Number,
    reduce_op: Any,
    reduce_res: Tile,
    reverse0: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Tile:
    operand0 = column(operand0, data)
    shape = data.shape

    def compute(box: Box) -> Any:
        values = _step(op0, numbers(data, box, shape), numbers(operand0, box, shape), reverse0)
        total = reducing(op_name(reduce_op)).reduce(values, axis=tuple(range(1, values.ndim)))
        write(reduce_res, total, None if box is None else (box[0], 1))
        return values

    return result(shape, dtype or data.numpy, mask, compute)


def tensor_tensor_scan(
    data0: Tile,
    data1: Tile,
    initial: Number,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
) -> Tile:
    shape = data0.shape

    def compute(box: Box) -> np.ndarray:
        left, right = numbers(data0, box, shape), numbers(data1, box, shape)
        state = numbers(initial, (box[0], 1) if box else None, initial.shape) if isinstance(initial, Tile) else initial
        out = np.empty(left.shape, np.float32)
        last = np.broadcast_to(np.asarray(state, np.float32).reshape(-1), (left.shape[0],))
        for step in range(left.shape[1]):
            last = _step(op1, _step(op0, left[:, step], last, reverse0), right[:, step], reverse1)
            out[:, step] = last
        return out

    return result(shape, promoted(dtype, data0, data1), mask, compute)


def reciprocal(data: Tile, *, dtype: Any = None, mask: Any = None) -> Tile:
    shape = data.shape
    return result(shape, dtype or data.numpy, mask, lambda box: np.float32(1) / numbers(data, box, shape))


def tensor_copy(src: Tile, *, mask: Any = None, dtype: Any = None, engine: Any = unknown_engine) -> Tile:
    shape = src.shape
    return result(shape, dtype or src.numpy, mask, lambda box: numbers(src, box, shape))


def memset(shape: Any, value: Number, dtype: Any, *, mask: Any = None, engine: Any = unknown_engine) -> Tile:
    return result(tuple(shape), dtype, mask, lambda box: np.asarray(value, np.float64))


def iota(expr: Any, dtype: Any, *, mask: Any = None) -> Tile:
    if not isinstance(expr, Grid):
        raise NotSupported("iota of what is not an index grid")
    return result(expr.shape, dtype, mask, lambda box: expr.values())


def affine_select(
    pred: Any, on_true_tile: Tile, on_false_value: Number, *, mask: Any = None, dtype: Any = None
) -> Tile:
    shape = on_true_tile.shape

    if not isinstance(pred, Mask):
        raise NotSupported("affine_select of what is no comparison of index grids")
    return result(
        shape,
        dtype or on_true_tile.numpy,
        mask,
        lambda box: np.where(holds(pred, box, shape), numbers(on_true_tile, box, shape), np.float32(on_false_value)),
    )


def dma_copy(
    *, dst: Tile, src: Tile, mask: Any = None, dge_mode: Any = None, engine: Any = None, oob_mode: Any = None
) -> None:
    """What is out of bounds fails whatever `oob_mode` says; the others change no number."""
    src.buffer.read = True
    valid = covered(mask, src.shape)
    box = valid if isinstance(valid, tuple) else None
    write(dst, src.view(box), valid)


def get_nc_version() -> nc_version:
    return nc_version(machine(DEFAULT_MACHINE).neuron_core_version)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotSupported(f"nisa.{name} is not in the Beta 1 front end")


_commands = reduce_cmd
__all__ = ["dge_mode", "nc_version", "oob_mode"]


# --- statistics, searches and reductions over partitions ------------------------------------------


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
