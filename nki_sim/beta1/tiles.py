"""Tensors and tiles of the old API: views of NumPy memory that know how they were indexed.

A subscript is resolved only when an operation reads or writes it, because the mask that keeps it inside the tensor
is an argument of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

import numpy as np

from nki_sim.beta1.indices import Grid, Mask
from nki_sim.dtypes import as_dtype
from nki_sim.errors import NkiValidationError, NotSupported, OutOfBounds

HBM, SBUF, PSUM = "hbm", "sbuf", "psum"
Extents = tuple[int, ...]
Valid = Extents | np.ndarray | None
"""What an operation covers: a box from 0, single elements, or everything (None)."""

_UNMARKED = 1 << 22
"""Elements from which on what was never written is 0 and not NaN: a buffer of many blocks may be gigabytes."""
_numbers = count(1)
_operator: Callable[..., Any] | None = None
"""What `a + b` does; the language's functions come after this file."""


class ParDim(int):
    """`nl.par_dim(n)`: the dimension of a shape that lies across partitions."""


class Buffer:
    """One allocation."""

    __slots__ = ("array", "bytes", "memory", "number", "site", "shape", "partition", "filled", "read", "written")

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        memory: str,
        partition: int = 0,
        array: np.ndarray | None = None,
        fill: Any = None,
    ) -> None:
        sizes = [int(n) for n in shape]
        numpy = as_dtype(dtype).numpy
        if array is None:
            if fill is None and prod(sizes) > _UNMARKED:
                array = np.zeros(sizes, numpy)  # memory that is never touched costs nothing
            elif fill is None:
                array = np.empty(sizes, numpy)
                array.fill(np.nan if as_dtype(dtype).is_float else 4)
            else:
                array = np.full(sizes, fill, numpy)
        self.array = array.reshape(-1) if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(-1)
        self.bytes = self.array.view(np.uint8)
        self.memory = memory
        self.number = next(_numbers)
        self.site = 0
        """The expression that made it (set by who watches)."""
        self.shape = tuple(shape)
        self.partition = partition
        self.filled = fill is not None
        self.read = self.written = False
        """Whether a load read it, or a store wrote it (in HBM)."""


@dataclass(frozen=True)
class Dim:
    """One dimension's index: base + sum of factors[axis] * position."""

    base: int
    factors: tuple[int, ...]
    size: int
    """Of the dimension that is indexed."""


class SharedOutputs:
    """What the programs of a grid allocate in HBM: the nth of each program is the same tile."""

    def __init__(self) -> None:
        self._tiles: list[Tile] = []
        self._next = 0

    def begin_program(self) -> None:
        self._next = 0

    def next(self, make: Callable[[], Tile]) -> Tile:
        if self._next == len(self._tiles):
            self._tiles.append(make())
        self._next += 1
        return self._tiles[self._next - 1]


shared_outputs: ContextVar[SharedOutputs | None] = ContextVar("shared_outputs", default=None)
"""Of the grid that runs, if one does."""


class Tile:
    """A view of a buffer; what `nl` and `nisa` take and give."""

    __slots__ = ("buffer", "shape", "strides", "offset", "dims", "parent", "valid", "numpy", "made", "kept")

    def __init__(
        self,
        buffer: Buffer,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int,
        dims: tuple[Dim, ...] | None = None,
        parent: Tile | None = None,
    ) -> None:
        self.buffer = buffer
        self.shape = tuple(shape)
        self.strides = tuple(strides)
        self.offset = offset
        self.dims = dims
        """How it was indexed in `parent`; None for a tensor itself."""
        self.parent = parent
        self.valid: Valid = None
        """What of it the operation that made it has computed."""
        self.made = ""
        self.kept: tuple[int, ...] | None = None
        """Which dimensions of the buffer a view has left, blocks among them; None for other views."""
        self.numpy = buffer.array.dtype

    @staticmethod
    def new(
        shape: Sequence[int],
        dtype: Any,
        memory: str = SBUF,
        partition: int = 0,
        array: np.ndarray | None = None,
        fill: Any = None,
    ) -> Tile:
        def made() -> Tile:
            buffer = Buffer(shape, dtype, memory, partition, array, fill)
            return Tile(buffer, buffer.shape, row_major(shape), 0)

        shared = shared_outputs.get()
        return made() if shared is None or memory != HBM else shared.next(made)

    @property
    def dtype(self) -> Any:
        return self.numpy

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def memory(self) -> str:
        return self.buffer.memory

    def view(self, extents: Extents | None = None, write: bool = False) -> np.ndarray:
        """The elements as an array on the buffer, all of them or a box of them. Raises OutOfBounds."""
        shape = [int(n) for n in (self.shape if extents is None else extents)]
        if 0 in shape:
            return np.empty(shape, self.numpy)
        if self.dims is not None:
            self._check(shape)
        item = self.numpy.itemsize
        return np.ndarray(
            shape, self.numpy, self.buffer.bytes, int(self.offset) * item, [int(s) * item for s in self.strides]
        )

    def _check(self, shape: Sequence[int]) -> None:
        assert self.dims is not None
        for number, dim in enumerate(self.dims):
            low = high = int(dim.base)
            for factor, size in zip(dim.factors, shape):
                reach = int(factor) * (size - 1)
                low, high = (low + reach, high) if reach < 0 else (low, high + reach)
            if low < 0 or high >= int(dim.size):
                raise OutOfBounds(
                    f"index {low}..{high} of dimension {number} (size {int(dim.size)}) is out of bounds and no mask "
                    "keeps it inside"
                )

    def elements(self, where: np.ndarray) -> np.ndarray:
        """All elements, with those outside the mask read from wherever their index is clipped to."""
        try:
            return self.view()
        except OutOfBounds:
            places = np.full([int(n) for n in self.shape], int(self.offset), np.int64)
            for axis, (size, stride) in enumerate(zip(self.shape, self.strides)):
                steps = np.arange(int(size)) * int(stride)
                places += steps.reshape([-1 if k == axis else 1 for k in range(self.ndim)])
            return self.buffer.array[np.clip(places, 0, self.buffer.array.size - 1)]

    # --- views ------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Tile:
        if isinstance(key, Mask):
            if not key.values(self.shape).all():
                raise NotSupported("a mask as an index, which leaves something out")
            return Tile(self.buffer, self.shape, self.strides, self.offset)
        if isinstance(key, (bool, np.bool_)):
            if not key:
                raise NotSupported("a condition as an index, which does not hold")
            return Tile(self.buffer, self.shape, self.strides, self.offset)
        keys = list(key) if isinstance(key, tuple) else [key]
        keys = _without_ellipsis(keys, self.ndim)
        if len(keys) > self.ndim:
            raise OutOfBounds(f"{len(keys)} indices for a tensor of {self.ndim} dimensions")
        keys += [slice(None)] * (self.ndim - len(keys))
        if any(isinstance(k, Tile) for k in keys):
            raise NotSupported("an index that is read on the device (a tile in a subscript)")
        grids = [k for k in keys if isinstance(k, Grid)]
        return self._by_grids(keys, grids) if grids else self._by_slices(keys)

    def _by_grids(self, keys: list[Any], grids: list[Grid]) -> Tile:
        rank = max(grid.ndim for grid in grids)
        slices = [k for k in keys if not isinstance(k, (Grid, int, np.integer))]
        if any(not isinstance(k, slice) or k != slice(None) for k in slices):
            raise NotSupported("index grids and slices in one subscript")
        if slices:  # whole dimensions after the grids are axes of their own
            rank += len(slices)
            grids = [grid[tuple([Ellipsis, *[None] * len(slices)])] for grid in grids]
        lowered = [grid._ranked(rank) for grid in grids]
        shape: list[int] = [1] * rank
        for grid in lowered:
            for axis, size in enumerate(grid.shape):
                if shape[axis] == 1:
                    shape[axis] = size
                elif int(size) not in (1, int(shape[axis])):
                    raise NkiValidationError(f"index grids of {int(shape[axis])} and {int(size)} do not broadcast")
        dims, strides, offset = [], [0] * rank, self.offset
        left, extra = list(lowered), rank - len(slices)
        for number, item in enumerate(keys):
            size, stride = self.shape[number], self.strides[number]
            if isinstance(item, Grid):
                grid = left.pop(0)
                factors, base = grid.factors, grid.base
            elif isinstance(item, slice):
                factors, base = tuple(int(k == extra) for k in range(rank)), 0
                shape[extra] = size
                extra += 1
            else:
                factors, base = (0,) * rank, _index(item, size)
            dims.append(Dim(base, factors, size))
            offset = int(offset) + int(base) * int(stride)
            for axis in range(rank):
                strides[axis] += int(factors[axis]) * int(stride)
        return Tile(self.buffer, shape, strides, offset, tuple(dims), self)

    def _by_slices(self, keys: list[Any]) -> Tile:
        rank = sum(not isinstance(k, (int, np.integer)) for k in keys)
        dims: list[Dim] = []
        shape: list[int] = []
        strides: list[int] = []
        offset = int(self.offset)
        for number, item in enumerate(keys):
            size, stride = self.shape[number], self.strides[number]
            if isinstance(item, (int, np.integer)):
                base = _index(item, size)
                dims.append(Dim(base, (0,) * rank, size))
                offset += int(base) * int(stride)
                continue
            if isinstance(item, DynamicSlice):
                start, length, step = item.start, item.size, 1
            elif isinstance(item, slice):
                start, stop, step = item.start, item.stop, int(item.step or 1)
                start = 0 if start is None else start if int(start) >= 0 else size + start
                stop = size if stop is None else stop if int(stop) >= 0 else size + stop
                length = stop - start if step == 1 else -(-(int(stop) - int(start)) // step)
            else:
                raise NotSupported(f"{type(item).__name__} as an index")
            dims.append(Dim(start, tuple(step * (k == len(shape)) for k in range(rank)), size))
            offset += int(start) * int(stride)
            strides.append(step * int(stride))
            shape.append(length)
        if self.memory != HBM and len(shape) == 1:  # a tile keeps two dimensions
            shape.append(1)
            strides.append(0)
            dims = [Dim(dim.base, (*dim.factors, 0), dim.size) for dim in dims]
        tile = Tile(self.buffer, shape, strides, offset, tuple(dims), self)
        tile.kept = self._blocks_left(keys)
        return tile

    def _blocks_left(self, keys: list[Any]) -> tuple[int, ...] | None:
        """The buffer's dimensions that are left where a subscript takes some of its blocks, whole ones."""
        partition = self.buffer.partition
        mine = self.kept
        if mine is None and self.dims is None and self.shape == self.buffer.shape:
            mine = tuple(range(self.ndim))
        if mine is None or not partition:
            return None
        left = tuple(k for k, key in zip(mine, keys) if not isinstance(key, (int, np.integer)))
        plain = all(isinstance(key, (int, np.integer)) or key == slice(None) for key in keys)
        return left if plain and partition in left and left[0] < partition else None

    def reshape(self, *sizes_given: Any, shape: Any = None) -> Tile:
        """A tensor of another shape on the same memory."""
        given = sizes_given if shape is None else (shape,)
        sizes = list(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else list(given)
        total = prod(int(n) for n in self.shape)
        if -1 in sizes:
            sizes[sizes.index(-1)] = total // -prod(int(n) for n in sizes)
        if prod(int(n) for n in sizes) != total:
            raise NkiValidationError(f"reshape of {list(self.shape)} to {sizes}")
        if self.strides != row_major(self.shape):
            raise NotSupported("reshape of a view")
        return Tile(self.buffer, sizes, row_major(sizes), self.offset)

    def broadcast_to(self, shape: Sequence[int]) -> Tile:
        """Dimensions of size 1 repeated."""
        strides = []
        for size, stride, wanted in zip(self.shape, self.strides, shape):
            if int(size) != int(wanted) and int(size) != 1:
                raise NkiValidationError(f"broadcast of {list(self.shape)} to {list(shape)}")
            strides.append(stride if int(size) == int(wanted) else 0)
        tile = Tile(self.buffer, tuple(shape), strides, self.offset)
        tile.made = "broadcast_to"
        return tile

    def astype(self, dtype: Any) -> Tile:
        return operate("copy", self, dtype=dtype)

    # --- arithmetic ---------------------------------------------------------------------------------

    def __neg__(self) -> Tile:
        return operate("negative", self)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        """Not Python's: two tiles are one, or compared by elements."""
        if other is None or other is self:
            return other is self
        raise NotSupported("a tile compared with ==, which Python answers for it: nl.equal compares elements")

    def __iter__(self) -> Any:
        raise NotSupported("iterating over a tensor")

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class DynamicSlice:
    """`nl.ds(start, size)`."""

    start: Any
    size: Any


def _operator_of(name: str, swapped: bool) -> Callable[[Tile, Any], Tile]:
    return lambda self, other: operate(name, *((other, self) if swapped else (self, other)))


for _sign, _name in (("add", "add"), ("sub", "subtract"), ("mul", "multiply"), ("truediv", "divide")):
    setattr(Tile, f"__{_sign}__", _operator_of(_name, False))
    setattr(Tile, f"__r{_sign}__", _operator_of(_name, True))


def operate(name: str, *operands: Any, **options: Any) -> Tile:
    assert _operator is not None
    result = _operator(name, *operands, **options)
    assert isinstance(result, Tile)
    return result


def set_operator(function: Callable[..., Any]) -> None:
    global _operator
    _operator = function


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= int(size)
    return tuple(reversed(strides))


def covered(mask: Any, shape: Sequence[int]) -> Valid:
    """What a mask lets through of an operation over `shape`."""
    if mask is None:
        return None
    if isinstance(mask, (bool, np.bool_)):
        return None if mask else (0,) * len(shape)
    if not isinstance(mask, Mask):
        raise NotSupported(f"mask={type(mask).__name__}")
    sizes = tuple(shape)
    box = mask.extents(sizes)
    if box is None:
        return mask.values(sizes)
    return None if all(int(a) == int(b) for a, b in zip(box, sizes)) else box


def write(target: Tile, values: np.ndarray, valid: Valid) -> None:
    """Put values into a view: all, a box of them, or those of a mask."""
    target.buffer.written = True
    with np.errstate(all="ignore"):
        if isinstance(valid, np.ndarray):
            out = target.view()
            np.copyto(out, values.astype(target.numpy).reshape(out.shape), where=valid.reshape(out.shape))
        else:
            out = target.view(None if valid is None else _fitting(valid, target))
            if out.size:
                out[...] = values.astype(target.numpy).reshape(out.shape)


def _fitting(valid: Extents, target: Tile) -> Extents:
    """The box in the target's own rank, which may leave out axes of size 1."""
    if len(valid) == target.ndim:
        return valid
    sizes = [n for n in valid if int(n) != 1]
    return tuple(sizes.pop(0) if int(n) != 1 and sizes else 1 for n in target.shape)


def _index(item: Any, size: int) -> int:
    return item if int(item) >= 0 else size + item


def _without_ellipsis(keys: list[Any], rank: int) -> list[Any]:
    for at, item in enumerate(keys):
        if item is Ellipsis:
            return [*keys[:at], *[slice(None)] * (rank - len(keys) + 1), *keys[at + 1 :]]
    return keys
