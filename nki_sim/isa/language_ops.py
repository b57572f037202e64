"""`nl.*` functions on tiles, lowered to the instructions they stand for, so that they are costed.

Each returns a new tile, in SBUF unless said otherwise, of the first tile's dtype unless `dtype` is given.
Names shadow Python's built-ins on purpose: `nl.sum` finds its lowering here under its own name.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

from nki_sim import dtypes
from nki_sim.dtypes import DType, as_dtype
from nki_sim.errors import NkiValidationError, NotSupported
from nki_sim.isa import dma, gather, prng, scalar_engine, select, tensor_engine, vector_engine
from nki_sim.isa.arithmetic import ops, shared
from nki_sim.machine import first_with
from nki_sim.program.memory import MemoryRegion
from nki_sim.tracing.session import current
from nki_sim.tracing.tensor import NkiTensor

_TWO_PI = 2 * math.pi


def _tile(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf) -> NkiTensor:
    return current().allocate(tuple(shape), as_dtype(dtype), buffer)


def _dtype(given: Any, x: NkiTensor) -> DType:
    return x.dtype if given is None else as_dtype(given)


def _need_tile(value: Any, what: str) -> NkiTensor:
    if not isinstance(value, NkiTensor):
        raise NkiValidationError(f"nl.{what} needs a tile, not {value!r}")
    return value


class _Token:
    """An operator by name, as instructions accept it."""

    def __init__(self, name: str) -> None:
        self.name = name


def _op(name: str) -> _Token:
    return _Token(name)


# --- element by element ---------------------------------------------------------------------------


def _binary(name: str) -> Callable[..., NkiTensor]:
    def function(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
            return _two_tiles(name, x, y, dtype)
        tile = _need_tile(x if isinstance(x, NkiTensor) else y, name)
        number = y if tile is x else x
        dst = _tile(tile.shape, _dtype(dtype, tile))
        if ops.ALU[name].bitvec:
            number = int(number)
        shared.tensor_scalar(dst, tile, _op(name), number, reverse0=tile is not x)
        return dst

    function.__name__ = name
    function.__doc__ = f"x {name} y, element by element: two tiles of one size, or a tile and a number or [P, 1] tile."
    return function


def _two_tiles(name: str, x: NkiTensor, y: NkiTensor, dtype: Any) -> NkiTensor:
    if x.shape != y.shape:
        if _is_column(y, x):
            return _with_column(name, x, y, False, dtype)
        if _is_column(x, y):
            return _with_column(name, y, x, True, dtype)
    dst = _tile(x.shape, _dtype(dtype, x))
    shared.tensor_tensor(dst, x, y, _op(name))
    return dst


def _is_column(column: NkiTensor, tile: NkiTensor) -> bool:
    return column.shape[0] == tile.shape[0] and column.size == column.shape[0] and tile.size > column.size


def _with_column(name: str, tile: NkiTensor, column: NkiTensor, reverse: bool, dtype: Any) -> NkiTensor:
    if not ops.ALU[name].bitvec and column.dtype != dtypes.float32:
        column = copy(column, dtypes.float32)
    dst = _tile(tile.shape, _dtype(dtype, tile))
    shared.tensor_scalar(dst, tile, _op(name), column, reverse0=reverse)
    return dst


def _activated(name: str) -> Callable[..., NkiTensor]:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        dst = _tile(_need_tile(x, name).shape, _dtype(dtype, x))
        scalar_engine.activation(dst, _op(name), x)
        return dst

    function.__name__ = name
    function.__doc__ = f"{name} of a tile, on the Scalar engine."
    return function


for _name, _alu in ops.ALU.items():  # what is defined again below is another lowering
    if not _alu.unary:
        globals()[_name] = _binary(_name)
for _name in ops.ACTIVATIONS:
    globals()[_name] = _activated(_name)


def _refused(name: str, why: str) -> Callable[..., NkiTensor]:
    def function(*arguments: Any, **keywords: Any) -> NkiTensor:
        raise NotSupported(f"nl.{name} is not supported: {why}")

    function.__name__ = name
    function.__doc__ = f"Not supported: {why}."
    return function


divide = _refused("divide", "no engine divides; multiply by nisa.reciprocal (nl.reciprocal)")
fmod = _refused("fmod", "no engine computes remainders")
mod = _refused("mod", "no engine computes remainders")
abs_max = _refused("abs_max", f"{first_with(4)} only")
abs_min = _refused("abs_min", f"{first_with(4)} only")


def _scaled(x: NkiTensor, op: str, number: Any, dtype: Any, then: str | None = None, other: Any = None) -> NkiTensor:
    dst = _tile(x.shape, _dtype(dtype, x))
    shared.tensor_scalar(dst, x, _op(op), number, op1=None if then is None else _op(then), operand1=other)
    return dst


def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A copy of a tile, in SBUF."""
    dst = _tile(_need_tile(x, "copy").shape, _dtype(dtype, x))
    shared.tensor_copy(dst, x)
    return dst


def abs(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Magnitude, on Vector."""
    return _scaled(_need_tile(x, "abs"), "abs", None, dtype)


def rsqrt(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 / sqrt(x), on GpSimd: x in SBUF."""
    if _need_tile(x, "rsqrt").buffer is MemoryRegion.psum:
        raise NkiValidationError(f"nl.rsqrt runs on GpSimd, which cannot access PSUM ({x!r}): nl.copy it first")
    return _scaled(x, "rsqrt", None, dtype)


def reciprocal(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 / x, on Vector."""
    dst = _tile(_need_tile(x, "reciprocal").shape, _dtype(dtype, x))
    vector_engine.reciprocal(dst, x)
    return dst


def negative(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """-x, on Vector."""
    return _scaled(_need_tile(x, "negative"), "multiply", -1.0, dtype)


def invert(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Every bit flipped, of an integer tile."""
    return _scaled(_need_tile(x, "invert"), "bitwise_xor", -1, dtype)


def logical_not(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 where x is 0 and 0 where it is 1; x holds only these."""
    return _scaled(_need_tile(x, "logical_not"), "logical_xor", 1.0, dtype)


def _rounded(x: NkiTensor) -> NkiTensor:
    """The nearest integers as float32, by way of an int32 tile: |x| < 2^31."""
    return copy(copy(x, dtypes.int32), dtypes.float32)


def floor(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The largest integer not above x; |x| < 2^31."""
    return _corrected(_need_tile(x, "floor"), "greater", "subtract", dtype)


def ceil(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The smallest integer not below x; |x| < 2^31."""
    return _corrected(_need_tile(x, "ceil"), "less", "add", dtype)


def _corrected(x: NkiTensor, too_far: str, back: str, dtype: Any) -> NkiTensor:
    nearest = _rounded(x)
    step = _tile(x.shape, dtypes.float32)
    shared.tensor_tensor(step, nearest, x, _op(too_far))
    dst = _tile(x.shape, _dtype(dtype, x))
    shared.tensor_tensor(dst, nearest, step, _op(back))
    return dst


def trunc(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """x without its fraction; |x| < 2^31."""
    size = floor(_scaled(_need_tile(x, "trunc"), "abs", None, dtypes.float32))
    direction = _tile(x.shape, dtypes.float32)
    scalar_engine.activation(direction, _op("sign"), x)
    dst = _tile(x.shape, _dtype(dtype, x))
    shared.tensor_tensor(dst, size, direction, _op("multiply"))
    return dst


def _sine(x: NkiTensor, shift: float, dtype: Any) -> NkiTensor:
    """sin(x + shift) for any x: the Scalar engine itself is right only on [-pi, pi]."""
    shifted = _scaled(x, "add", shift, dtypes.float32)
    turns = _rounded(_scaled(shifted, "multiply", 1 / _TWO_PI, dtypes.float32))
    high = 6.28125  # exact in few bits, so that turns * high is exact; the rest of 2 pi follows
    for part in (high, _TWO_PI - high):
        vector_engine.scalar_tensor_tensor(shifted, turns, _op("multiply"), -part, _op("add"), shifted)
    shared.tensor_scalar(shifted, shifted, _op("minimum"), math.pi, op1=_op("maximum"), operand1=-math.pi)
    dst = _tile(x.shape, _dtype(dtype, x))
    scalar_engine.activation(dst, _op("sin"), shifted)
    return dst


def sin(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Sine of any angle (the argument is reduced first)."""
    return _sine(_need_tile(x, "sin"), 0.0, dtype)


def cos(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Cosine of any angle."""
    return _sine(_need_tile(x, "cos"), math.pi / 2, dtype)


def tan(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Tangent: sine times the reciprocal of cosine."""
    over = reciprocal(_sine(_need_tile(x, "tan"), math.pi / 2, dtypes.float32))
    dst = _tile(x.shape, _dtype(dtype, x))
    shared.tensor_tensor(dst, _sine(x, 0.0, dtypes.float32), over, _op("multiply"))
    return dst


# --- reductions over trailing free dimensions -----------------------------------------------------


def _axes(x: NkiTensor, axis: Any) -> tuple[int, ...]:
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    return tuple(sorted(int(a) + x.ndim if a < 0 else int(a) for a in given))


def _reduced_shape(x: NkiTensor, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes)
    return kept if len(kept) > 1 else (*kept, 1)  # on chip a tile has at least a partition and a free dimension


def _reduction(name: str, op: str) -> Callable[..., NkiTensor]:
    def function(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
        axes = _axes(_need_tile(x, name), axis)
        dst = _tile(_reduced_shape(x, axes, keepdims), _dtype(dtype, x))
        vector_engine.tensor_reduce(dst, _op(op), x, axes)
        return dst

    function.__name__ = name
    function.__doc__ = f"{name} over the last free dimension(s), on Vector."
    return function


sum = _reduction("sum", "add")
max = _reduction("max", "maximum")
min = _reduction("min", "minimum")
prod = _reduction("prod", "multiply")


def all(x: NkiTensor, axis: Any, dtype: Any = None) -> NkiTensor:
    """1 where every element along the last free dimension(s) is non-zero, else 0."""
    axes = _axes(_need_tile(x, "all"), axis)
    dst = _tile(_reduced_shape(x, axes, False), _dtype(dtype, x))
    vector_engine.tensor_reduce(dst, _op("logical_and"), x, axes)
    return dst


def _count(x: NkiTensor, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[a] for a in axes)


def mean(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Average over the last free dimension(s), through float32."""
    axes = _axes(_need_tile(x, "mean"), axis)
    return _scaled(sum(x, axes, dtypes.float32, keepdims), "multiply", 1.0 / _count(x, axes), _dtype(dtype, x))


def _per_row(x: NkiTensor, axes: tuple[int, ...], what: str) -> None:
    if axes != tuple(range(1, x.ndim)):
        raise NkiValidationError(f"nl.{what} works over all free dimensions of {x!r}: axis {tuple(range(1, x.ndim))}")


def var(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = True) -> NkiTensor:
    """Population variance over all free dimensions; the result keeps them with size 1."""
    axes = _axes(_need_tile(x, "var"), axis)
    _per_row(x, axes, "var")
    centred = _scaled(x, "subtract", _column(mean(x, axes, dtypes.float32)), dtypes.float32)
    squares = _tile(x.shape, dtypes.float32)
    shared.tensor_tensor(squares, centred, centred, _op("multiply"))
    return mean(squares, axes, _dtype(dtype, x), keepdims=True)


def _column(x: NkiTensor) -> NkiTensor:
    return x if x.ndim == 2 else x.reshape((x.shape[0], 1))


def softmax(x: NkiTensor, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """exp(x - max) / sum over all free dimensions."""
    axes = _axes(_need_tile(x, "softmax"), axis)
    _per_row(x, axes, "softmax")
    lowest = _tile((x.shape[0], 1), dtypes.float32)
    vector_engine.tensor_reduce(lowest, _op("maximum"), x, axes, negate=True)
    exponentials, total = _tile(x.shape, dtypes.float32), _tile((x.shape[0], 1), dtypes.float32)
    scalar_engine.activation_reduce(exponentials, _op("exp"), x, _op("add"), total, bias=lowest)
    return _scaled(exponentials, "multiply", reciprocal(total), _dtype(dtype, x))


def rms_norm(
    x: NkiTensor, w: NkiTensor, axis: Any, n: int, epsilon: float = 1e-6, dtype: Any = None, compute_dtype: Any = None
) -> NkiTensor:
    """x / sqrt(sum(x^2) / n + epsilon) * w over all free dimensions."""
    axes = _axes(_need_tile(x, "rms_norm"), axis)
    _per_row(x, axes, "rms_norm")
    squares = _tile(x.shape, compute_dtype or dtypes.float32)
    total, scale = _tile((x.shape[0], 1), dtypes.float32), _tile((x.shape[0], 1), dtypes.float32)
    scalar_engine.activation_reduce(squares, _op("square"), x, _op("add"), total)
    scalar_engine.activation(scale, _op("rsqrt"), total, bias=float(epsilon), scale=1.0 / n)
    weights = broadcast_to(w, x.shape) if w.shape != x.shape else w
    dst = _tile(x.shape, _dtype(dtype, x))
    vector_engine.scalar_tensor_tensor(dst, x, _op("multiply"), scale, _op("multiply"), weights)
    return dst


# --- choice and chance ----------------------------------------------------------------------------


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """x where condition is non-zero, else y; either may be a number."""
    tile = x if isinstance(x, NkiTensor) else y if isinstance(y, NkiTensor) else _need_tile(condition, "where")
    dst = _tile(tile.shape, _dtype(dtype, tile))
    if isinstance(y, NkiTensor):
        shared.tensor_copy(dst, y)
    else:
        shared.memset(dst, y)
    chosen = _scaled(_need_tile(condition, "where"), "not_equal", 0.0, dtypes.uint8)
    source = copy(x, dst.dtype) if isinstance(x, NkiTensor) and x.dtype != dst.dtype else x
    select.tensor_copy_predicated(dst, source, chosen)
    return dst


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """x with elements zeroed with probability `rate` (number or [P, 1] tile)."""
    dst = _tile(_need_tile(x, "dropout").shape, x.dtype)
    prng.dropout(dst, x, rate)
    return dst if dtype is None or as_dtype(dtype) == x.dtype else copy(dst, dtype)


def random_seed(seed: NkiTensor) -> None:
    """Seed the generator behind nl.rand with the 32-bit value in a [1, 1] tile."""
    prng.set_rng_seed(seed)


def rand(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tile of uniform random numbers in [0, 1)."""
    bits = _tile(shape, dtypes.uint32)
    prng.rng(bits)
    # 24 bits, which float32 holds exactly: 32 could round up to 1
    shared.tensor_scalar(bits, bits, _op("right_shift"), 8)
    dst = current().allocate(tuple(shape), as_dtype(dtype), buffer, name)
    shared.tensor_scalar(dst, bits, _op("multiply"), 2.0**-24)
    return dst


# --- moving and reshaping -------------------------------------------------------------------------


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the contents of an HBM view; its first dimension becomes the partitions."""
    dst = _tile(_need_tile(src, "load").shape, _dtype(dtype, src))
    dma.dma_copy(dst, src)
    return dst


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Write an SBUF tile into an HBM view."""
    dma.dma_copy(_need_tile(dst, "store"), _need_tile(value, "store"))


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with a 2-d HBM view transposed by the DMA engines."""
    rows, columns = _need_tile(src, "load_transpose2d").shape
    dst = _tile((columns, rows), src.dtype)
    dma.dma_transpose(dst, src)
    return dst if dtype is None or as_dtype(dtype) == src.dtype else copy(dst, dtype)


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view with a new dimension of size 1 before `axis`."""
    return x.expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """x repeated along its dimensions of size 1, partitions included; x itself when nothing changes."""
    shape = tuple(shape)
    if len(shape) != _need_tile(x, "broadcast_to").ndim or builtins.any(
        n != m and n != 1 for n, m in zip(x.shape, shape)
    ):
        raise NkiValidationError(f"nl.broadcast_to: {x!r} cannot become {list(shape)}: equal rank, and size 1 or equal")
    if x.shape == shape:
        return x if dtype is None or as_dtype(dtype) == x.dtype else copy(x, dtype)
    view = x
    for dim, (n, m) in enumerate(zip(x.shape, shape)):
        if dim and n != m:
            view = view.broadcast(dim, m)
    if x.shape[0] == shape[0]:
        return copy(view, dtype)
    row = copy(view, dtype)
    dst = _tile(shape, row.dtype)
    for start in range(0, shape[0], gather.QUADRANT):
        stop = builtins.min(start + gather.QUADRANT, shape[0])
        gather.nc_stream_shuffle(dst[start:stop], row, (0,) * gather.QUADRANT)
    return dst


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A 2-d tile transposed on TensorE, in PSUM (in SBUF when dtype differs from x's)."""
    rows, columns = _need_tile(x, "transpose").shape
    dst = _tile((columns, rows), x.dtype, MemoryRegion.psum)
    tensor_engine.nc_transpose(dst, x)
    return dst if dtype is None or as_dtype(dtype) == x.dtype else copy(dst, dtype)


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """x @ y, or x.T @ y with transpose_x (faster: no extra transpose); float32 in PSUM."""
    stationary = _need_tile(x, "matmul") if transpose_x else copy(transpose(x))
    columns = stationary.size // stationary.shape[0]
    dst = _tile((columns, y.size // y.shape[0]), dtypes.float32, MemoryRegion.psum)
    tensor_engine.nc_matmul(dst, stationary, y)
    return dst


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """data[p, indices[p, ...]] with data's free dimensions flattened; on GpSimd."""
    where_to = indices if indices.dtype == dtypes.uint32 else copy(indices, dtypes.uint32)
    dst = _tile(indices.shape, data.dtype)
    gather.nc_n_gather(dst, data, where_to)
    return dst if dtype is None or as_dtype(dtype) == data.dtype else copy(dst, dtype)


def bypass(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A copy: as an operator, no operation."""
    return copy(x, dtype)
