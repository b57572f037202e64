"""`neuronxcc.nki.language`: tensors, loads and stores, functions of tiles, loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from nki_sim.beta1 import isa
from nki_sim.beta1.indices import arange, mgrid
from nki_sim.beta1.operations import aligned, binary, broadcast_shape, holds, numbers, op_name, promoted, result, unary
from nki_sim.beta1.tiles import HBM, PSUM, SBUF, DynamicSlice, ParDim, Tile, covered, set_operator, write
from nki_sim.dtypes import as_dtype
from nki_sim.errors import NkiValidationError, NotSupported
from nki_sim.machine import DEFAULT_MACHINE, ISA, machine

ds = DynamicSlice
par_dim = ParDim
sbuf, psum, hbm, shared_hbm, private_hbm = SBUF, PSUM, HBM, HBM, HBM
float32, float16, bfloat16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
tfloat32 = float32
float8_e4m3, float8_e5m2 = np.dtype(ml_dtypes.float8_e4m3), np.dtype(ml_dtypes.float8_e5m2)
int8, int16, int32 = np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32)
uint8, uint16, uint32 = np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32)
bool_ = np.dtype(np.bool_)


class tile_size:
    pmax = ISA.partitions
    psum_fmax = ISA.psum_bank_bytes // float32.itemsize
    gemm_stationary_fmax = ISA.stationary_fmax
    gemm_moving_fmax = ISA.moving_fmax
    bn_stats_fmax = ISA.bn_stats_fmax
    psum_min_align = ISA.psum_align_bytes
    sbuf_min_align = ISA.sbuf_align_bytes
    total_available_sbuf_size = machine(DEFAULT_MACHINE).sbuf_partition_bytes


class fp32:
    min = float(np.finfo(np.float32).min)
    max = float(np.finfo(np.float32).max)


def finfo(dtype: Any) -> Any:
    """The limits of a floating type."""
    limits: Any = ml_dtypes.finfo(as_dtype(dtype).numpy)  # type: ignore[no-untyped-call]
    return SimpleNamespace(min=float(limits.min), max=float(limits.max), eps=float(limits.eps))


# --- tensors ---------------------------------------------------------------------------------------


def ndarray(shape: Any, dtype: Any, *, buffer: Any = None, lazy_initialization: bool = False) -> Tile:
    return _allocate(shape, dtype, buffer, None)


def zeros(shape: Any, dtype: Any, *, buffer: Any = None, lazy_initialization: bool = False) -> Tile:
    return _allocate(shape, dtype, buffer, 0)


def ones(shape: Any, dtype: Any, *, buffer: Any = None, lazy_initialization: bool = False) -> Tile:
    return _allocate(shape, dtype, buffer, 1)


def full(shape: Any, fill_value: Any, dtype: Any, *, buffer: Any = None, lazy_initialization: bool = False) -> Tile:
    return _allocate(shape, dtype, buffer, fill_value)


def zeros_like(a: Tile, dtype: Any = None, *, buffer: Any = None, lazy_initialization: bool = False) -> Tile:
    return _allocate(a.shape, dtype or a.numpy, buffer or a.memory, 0)


def _allocate(shape: Any, dtype: Any, buffer: Any, fill: Any) -> Tile:
    memory = buffer or SBUF
    if memory not in (SBUF, PSUM, HBM):
        raise NotSupported("a buffer placed by nki.compiler (direct allocation)")
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    marked = [k for k, n in enumerate(sizes) if isinstance(n, ParDim)]
    partition = marked[0] if marked else 0
    if memory != HBM and int(sizes[partition]) > tile_size.pmax:
        raise NkiValidationError(f"{int(sizes[partition])} partitions, at most {tile_size.pmax}")
    return Tile.new(sizes, dtype, memory, partition, fill=fill)


def empty_like(a: Tile, dtype: Any = None, *, buffer: Any = None, lazy_initialization: bool = False) -> Tile:
    return _allocate(a.shape, dtype or a.numpy, buffer or a.memory, None)


def shared_constant(constant: Any, dtype: Any = None) -> Tile:
    values = np.asarray(constant)
    if dtype is not None:
        values = values.astype(dtype)
    elif values.dtype == np.float64:
        values = values.astype(np.float32)
    elif values.dtype == np.int64:
        values = values.astype(np.int32)
    return Tile.new(values.shape, values.dtype, HBM, array=values)


# --- between memories ------------------------------------------------------------------------------


def load(src: Tile, *, mask: Any = None, dtype: Any = None, mode: Any = None) -> Tile:
    if src.memory != HBM:
        raise NkiValidationError("nl.load reads HBM")
    src.buffer.read = True
    shape = src.shape if src.ndim else (1,)
    valid = covered(mask, shape)
    tile = Tile.new(shape, dtype or src.numpy)
    tile.valid = valid
    if isinstance(valid, np.ndarray):
        np.copyto(tile.view(), src.elements(valid).astype(tile.numpy), where=valid)
    elif valid is None or all(int(n) for n in valid):
        tile.view(valid)[...] = src.view(valid).astype(tile.numpy)
    return tile


def store(dst: Tile, value: Any, *, mask: Any = None) -> None:
    if dst.memory != HBM:
        raise NkiValidationError("nl.store writes HBM")
    valid = covered(mask, dst.shape)
    if not isinstance(value, Tile):
        write(dst, np.full([int(n) for n in dst.shape], value), valid)
        return
    if math.prod(map(int, dst.shape)) != math.prod(map(int, value.shape)):
        raise NkiValidationError(f"nl.store of {[int(n) for n in value.shape]} into {[int(n) for n in dst.shape]}")
    dst.buffer.written = True
    if isinstance(valid, np.ndarray):
        np.copyto(dst.view(), value.view().reshape(valid.shape).astype(dst.numpy), where=valid)
    elif valid is None:
        write(dst, value.view(), None)
    elif all(int(n) for n in valid):
        part = value.view(_like(value, valid))
        write(dst, part, valid)


def _like(value: Tile, valid: tuple[int, ...]) -> tuple[int, ...]:
    if value.ndim == len(valid):
        return tuple(min(int(a), int(b)) for a, b in zip(value.shape, valid))
    sizes = [n for n in valid if int(n) != 1]
    return tuple(sizes.pop(0) if int(n) != 1 and sizes else int(n) for n in value.shape)


def load_transpose2d(src: Tile, *, mask: Any = None, dtype: Any = None) -> Tile:
    if mask is not None:
        raise NotSupported("nl.load_transpose2d(mask=)")
    return result(src.shape[::-1], dtype or src.numpy, None, lambda box: src.view().T.astype(np.float32))


# --- functions of tiles ----------------------------------------------------------------------------


class Function:
    """`nl.exp`: an operator for `op=`, and a function of tiles."""

    def __init__(self, name: str, function: Callable[..., Tile]) -> None:
        self.__name__ = name
        self._function = function

    def __call__(self, *operands: Any, name: str = "", **options: Any) -> Tile:
        return self._function(*operands, **options)


def _binary(name: str) -> Callable[..., Tile]:
    def function(x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
        x, y = aligned(x, y)
        shape = broadcast_shape(x, y)
        compute = binary(name)
        return result(
            shape, promoted(dtype, x, y), mask, lambda box: compute(numbers(x, box, shape), numbers(y, box, shape))
        )

    return function


def _unary(name: str) -> Callable[..., Tile]:
    def function(x: Tile, *, dtype: Any = None, mask: Any = None) -> Tile:
        shape = x.shape
        compute = unary(name)
        return result(shape, promoted(dtype, x), mask, lambda box: compute(numbers(x, box, shape).astype(np.float32)))

    return function


def _reduction(name: str) -> Callable[..., Tile]:
    def function(x: Tile, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> Tile:
        return isa.reduced(name, x, axis, mask, dtype, False, keepdims)

    return function


BINARY = [
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "mod", "fmod", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or",
    "logical_xor",
]  # fmt: skip
UNARY = [
    "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "relu", "gelu", "gelu_dx", "gelu_apprx_tanh",
    "gelu_apprx_sigmoid", "silu", "silu_dx", "softplus", "mish", "erf", "erf_dx", "arctan", "sign", "square",
    "reciprocal", "abs", "negative", "floor", "ceil", "trunc", "sin", "cos",
]  # fmt: skip
REDUCTIONS = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}

_functions: dict[str, Function] = {}
_functions.update({name: Function(name, _binary(name)) for name in BINARY})
_functions.update({name: Function(name, _unary(name)) for name in UNARY})
_functions.update({name: Function(name, _reduction(op)) for name, op in REDUCTIONS.items()})
# `nl.sum`, `nl.max`, ... are looked up in this table: here Python's own are needed under these names


def copy(src: Tile, *, dtype: Any = None, mask: Any = None) -> Tile:
    return isa.tensor_copy(src, mask=mask, dtype=dtype)


static_cast = copy


def mean(x: Tile, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> Tile:
    axes = [axis] if isinstance(axis, int) else list(axis)
    total = isa.reduced("add", x, axis, mask, np.float32, False, keepdims)
    count = math.prod(int(x.shape[a]) for a in axes)
    out = _binary("multiply")(total, 1.0 / count, dtype=dtype or x.numpy)
    out.valid = total.valid
    return out


def matmul(x: Tile, y: Tile, *, transpose_x: bool = False, mask: Any = None) -> Tile:
    rows = x.shape[1] if transpose_x else x.shape[0]

    def compute(box: Sequence[int] | None) -> np.ndarray:
        left = numbers(x, None, x.shape)
        out: np.ndarray = (left.T if transpose_x else left) @ numbers(y, None, y.shape)
        return out if box is None else out[tuple(slice(0, int(n)) for n in box)]

    return result((rows, *y.shape[1:]), np.float32, mask, compute, PSUM)


def transpose(x: Tile, *, dtype: Any = None, mask: Any = None) -> Tile:
    return isa.nc_transpose(x, mask=mask, dtype=dtype)


def broadcast_to(src: Tile, *, shape: Sequence[int]) -> Tile:
    return src.broadcast_to(shape)


def expand_dims(data: Tile, axis: int) -> Tile:
    shape = list(data.shape)
    shape.insert(axis if axis >= 0 else axis + data.ndim + 1, 1)
    return data.reshape(shape)


def where(condition: Any, x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    shape = broadcast_shape(condition, x, y)
    kind = promoted(dtype, *[t for t in (x, y) if isinstance(t, Tile)] or [condition])
    return result(
        shape,
        kind,
        mask,
        lambda box: np.where(holds(condition, box, shape), numbers(x, box, shape), numbers(y, box, shape)),
    )


class Reduced(Tile):
    """What `nl.loop_reduce` gives: the destination it is assigned to keeps the sum over the loops."""

    __slots__ = ("op", "first")
    op: str
    first: bool


def loop_reduce(x: Tile, op: Any, loop_indices: Any, *, mask: Any = None, dtype: Any = None) -> Tile:
    tile = isa.tensor_copy(x, mask=mask, dtype=dtype)
    out = Reduced(tile.buffer, tile.shape, tile.strides, 0)
    out.valid = tile.valid
    out.op = op_name(op)
    out.first = all(int(i) == 0 for i in loop_indices)
    return out


# --- loops and grids -------------------------------------------------------------------------------


def affine_range(*bounds: int, **_: Any) -> range:
    return range(*bounds)


sequential_range = static_range = affine_range

grid: ContextVar[tuple[tuple[int, int], ...]] = ContextVar("grid", default=())
"""(id, size) of this program along each axis of the launch grid."""


def program_id(axis: int) -> int:
    if axis >= len(grid.get()):
        raise NkiValidationError(f"nl.program_id({axis}) needs a launch grid, kernel[...]")
    return grid.get()[axis][0]


def num_programs(axes: Any = None) -> Any:
    sizes = [size for _, size in grid.get()]
    if axes is None:
        return math.prod(sizes)
    return sizes[axes] if isinstance(axes, int) else tuple(sizes[a] for a in axes)


def program_ndim() -> int:
    return len(grid.get())


def spmd_dim(size: int, *_: Any) -> int:
    return size


def nc(number: int) -> int:
    return number


def device_print(*_: Any, **__: Any) -> None:
    pass


def operator(name: str, *operands: Any, **options: Any) -> Tile:
    """What an operator between tiles does."""
    if name == "copy":
        return copy(*operands, **options)
    return _functions[name](*operands, **options)


set_operator(operator)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _functions:
        return _functions[name]
    if name == "range":
        return range
    raise NotSupported(f"nl.{name} is not in the Beta 1 front end")


__all__ = ["arange", "mgrid"]
