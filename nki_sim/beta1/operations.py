"""How operations of the old API compute: in float32, under a mask, into a new tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nki_sim.beta1.indices import Grid, Mask
from nki_sim.beta1.tiles import SBUF, Tile, Valid, covered
from nki_sim.dtypes import as_dtype
from nki_sim.errors import NotSupported
from nki_sim.isa.arithmetic.ops import ACTIVATIONS, ALU

_NUMPY_NAMES = {
    "amax": "maximum",
    "max": "maximum",
    "amin": "minimum",
    "min": "minimum",
    "sum": "add",
    "prod": "multiply",
    "absolute": "abs",
    "bitwise_not": "invert",
    "true_divide": "divide",
    "arccos": "",
}


def op_name(op: Any) -> str:
    """The operator that `op=np.add`, `op=nl.add` or `op=np.max` names."""
    name = getattr(op, "__name__", "")
    name = _NUMPY_NAMES.get(name, name)
    if not name:
        raise NotSupported(f"operator {op!r}")
    return name


def binary(name: str) -> Callable[..., Any]:
    if name == "divide":
        return np.divide
    if name in ("mod", "fmod"):
        return np.mod if name == "mod" else np.fmod
    if name not in ALU:
        raise NotSupported(f"operator {name}")
    function: Callable[..., Any] = ALU[name].function
    return function


def reducing(name: str) -> np.ufunc:
    """The same, with `reduce`. Raises NotSupported for an operator that nothing is reduced by."""
    function = binary(name)
    if not isinstance(function, np.ufunc):
        raise NotSupported(f"a reduction by {name}")
    return function


def unary(name: str) -> Callable[[np.ndarray], np.ndarray]:
    if name == "negative":
        return np.negative
    if name in ("floor", "ceil", "trunc", "cos", "tan", "erf_inv", "sin"):
        return getattr(np, name)
    if name not in ACTIVATIONS:
        raise NotSupported(f"function {name}")
    function = ACTIVATIONS[name]

    def apply(x: np.ndarray) -> np.ndarray:
        out = np.empty_like(x)
        function(x, out)
        return out

    return apply


def is_float(tile: Tile) -> bool:
    return bool(as_dtype(tile.numpy).is_float)


def numbers(value: Any, extents: Sequence[int] | None, shape: Sequence[int]) -> Any:
    """An operand as an array in the type that engines compute in; a box of it where a mask leaves a box."""
    if isinstance(value, (float, int, np.generic)):
        return np.float32(value)
    if not isinstance(value, Tile):
        raise NotSupported(f"{type(value).__name__} as an operand")
    array = value.view(None if extents is None else clipped(value.shape, extents, shape))
    return array.astype(np.float32) if is_float(value) else array.astype(np.int64)


def holds(condition: Any, extents: Sequence[int] | None, shape: Sequence[int]) -> np.ndarray:
    """Where a comparison of index grids holds, or a tile is not zero; in a box of it where a mask leaves a box."""
    if not isinstance(condition, Mask):
        return np.asarray(numbers(condition, extents, shape) != 0)
    where = condition.values(tuple(shape))
    return where if extents is None else where[tuple(slice(0, int(n)) for n in extents)]


def clipped(mine: Sequence[int], extents: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The operand's part of a box over `shape`: dimensions of size 1 are broadcast, the rest are cut."""
    missing = len(shape) - len(mine)
    if missing < 0:
        raise NotSupported("a mask over fewer dimensions than an operand has")
    wide, ends = shape[missing:], extents[missing:]
    return tuple(min(int(n), int(e)) if int(n) == int(w) else int(n) for n, w, e in zip(mine, wide, ends))


def result(
    shape: Sequence[int], dtype: Any, mask: Any, compute: Callable[[Sequence[int] | None], Any], memory: str = SBUF
) -> Tile:
    """A new tile of `shape` with what `compute(box)` gives inside the mask; the rest is undefined."""
    tile = Tile.new(tuple(shape), dtype, memory)
    valid: Valid = covered(mask, shape)
    tile.valid = valid
    box = valid if isinstance(valid, tuple) else None
    if box is not None and any(int(n) == 0 for n in box):
        return tile
    with np.errstate(all="ignore"):
        values = np.asarray(compute(box))
        out = tile.view(box)
        values = np.broadcast_to(values.reshape(values.shape or (1,)), out.shape) if values.size != out.size else values
        values = _converted(values.reshape(out.shape), tile.numpy)
        if isinstance(valid, np.ndarray):
            np.copyto(out, values, where=valid)
        else:
            out[...] = values
    return tile


def _converted(values: np.ndarray, dtype: Any) -> np.ndarray:
    if values.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        return np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max).astype(dtype)
    return values.astype(dtype)


def broadcast_shape(*operands: Any) -> tuple[int, ...]:
    """Of tiles: the larger size of each dimension, aligned from the last; named sizes are kept."""
    shapes = [operand.shape for operand in operands if isinstance(operand, Tile)]
    if not shapes:
        raise NotSupported(
            f"{' and '.join(type(operand).__name__ for operand in operands)} as operands: none is a tile"
        )
    rank = max(len(shape) for shape in shapes)
    out: list[int] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if int(out[axis]) == 1:
                out[axis] = size
            elif int(size) not in (1, int(out[axis])):
                raise NotSupported(f"operands of shapes {[[int(n) for n in s] for s in shapes]}")
    return tuple(out)


def promoted(dtype: Any, *operands: Any) -> Any:
    """The given dtype, or that of the operands: a float before an integer, the wider one of two."""
    if dtype is not None:
        return dtype
    types = [operand.numpy for operand in operands if isinstance(operand, Tile)]
    return max(types, key=lambda each: (as_dtype(each).is_float, each.itemsize))


def aligned(x: Any, y: Any) -> tuple[Any, Any]:
    """Two operands, the one of fewer dimensions as a column of the other where it is one."""
    if isinstance(x, Tile) and isinstance(y, Tile) and x.ndim != y.ndim:
        return (x, column(y, x)) if x.ndim > y.ndim else (column(x, y), y)
    return x, y


def rows_of(valid: tuple[int, ...] | None, shape: Sequence[int]) -> Any:
    """The mask of a reduction's result: as many partitions as its operand's."""
    if valid is None or int(valid[0]) == int(shape[0]):
        return None
    rank = len(shape)
    factors = (-1, *(0,) * (rank - 1))
    return Mask([Grid((shape[0], *(1,) * (rank - 1)), factors, valid[0] - 1)])


def column(value: Any, data: Tile) -> Any:
    """A [P] or [P, 1] operand against a tile of more dimensions."""
    if isinstance(value, Tile) and value.ndim < data.ndim and int(value.shape[0]) == int(data.shape[0]):
        return _padded(value, data)
    if isinstance(value, Tile) and value.ndim > data.ndim and int(value.shape[0]) == int(data.shape[0]):
        return _squeezed(value, data)
    return value


def _padded(value: Tile, data: Tile) -> Tile:
    extra = data.ndim - value.ndim
    tile = Tile(value.buffer, (*value.shape, *(1,) * extra), (*value.strides, *(0,) * extra), value.offset)
    return tile


def _squeezed(value: Tile, data: Tile) -> Tile:
    keep = [k for k, n in enumerate(value.shape) if k == 0 or int(n) != 1][: data.ndim]
    return Tile(value.buffer, [value.shape[k] for k in keep], [value.strides[k] for k in keep], value.offset)
