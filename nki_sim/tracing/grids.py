"""Tiles and blocks (NKI 0.7): a tensor cut into cells that are indexed as a grid. Views: nothing moves.

Every dimension is a range of elements, cut into steps of one tile (or of the tiles of one block); the last cell of a
dimension is clamped to what is left. Where element e lies follows from two strides: between tiles, and inside one. A
grid over a tensor has the tensor's; a grid that was allocated on chip has its tiles side by side in the partitions.
Source: NKI's pages of tiles, blocks, alloc_tiles, alloc_blocks and the grid classes, SDK 2.33.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from nki_sim.dtypes import DType, as_dtype
from nki_sim.errors import AllocationRefused, NkiValidationError, OutOfBounds, WrongType, WrongValue
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.patterns import Pattern
from nki_sim.tracing.session import current
from nki_sim.tracing.tensor import NkiTensor

_LEAST_DIMENSIONS = 2


class _Dimension(NamedTuple):
    """A range of elements of one dimension."""

    low: int
    high: int
    tile: int
    """Elements of a tile; 1 where the dimension is not tiled."""
    step: int
    """Elements of a cell: a tile, or the tiles of a block."""
    stride: int
    """Buffer elements from one element to the next, inside a tile."""
    tile_stride: int
    """The same from one tile to the next."""

    @property
    def cells(self) -> int:
        return -(-(self.high - self.low) // self.step)

    @property
    def extent(self) -> int:
        return self.high - self.low

    @property
    def tiles(self) -> int:
        """That the range has a part of."""
        return -(-self.extent // self.tile)

    @property
    def start(self) -> int:
        """Of the first element, in the buffer; a range begins with a tile."""
        return self.low // self.tile * self.tile_stride

    @property
    def is_one_walk(self) -> bool:
        """Is the way from each element to the next the same?"""
        return self.tiles == 1 or self.tile_stride == self.tile * self.stride


@dataclass(frozen=True)
class _Selection:
    """Which elements of which buffer."""

    tensor: NkiTensor
    dimensions: tuple[_Dimension, ...]
    untiled: int
    """How many leading dimensions are not tiled."""


class NkiGrid:
    """What tile and block grids have in common. Kernels do not construct it.

    `g[i, j]`, `g[i, :]` and `g[:, j]` select cells; a selection is a grid too, of as many dimensions, also when it is
    one cell. Instructions take tensors: pass `g[i, j].data`.
    """

    __slots__ = ("_selection",)

    def __init__(self, selection: _Selection) -> None:
        self._selection = selection

    @property
    def buffer(self) -> MemoryRegion:
        return self._selection.tensor.buffer

    @property
    def dtype(self) -> DType:
        return self._selection.tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells by dimension; a leading dimension that is not tiled has one for each of its elements."""
        return tuple(each.cells for each in self._selection.dimensions)

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Elements of a whole tile, by tiled dimension."""
        return tuple(each.tile for each in self._tiled)

    @property
    def element_shape(self) -> tuple[int, ...]:
        """Elements selected, by dimension; at a border fewer than whole cells have."""
        return tuple(each.extent for each in self._selection.dimensions)

    @property
    def index_step_elements(self) -> tuple[int, ...]:
        """Elements from one index to the next, by dimension."""
        return tuple(each.step for each in self._selection.dimensions)

    @property
    def is_remainder(self) -> bool:
        """Is a cell of it cut off by a border?"""
        return any(each.extent % each.step for each in self._selection.dimensions)

    @property
    def is_data_representable(self) -> bool:
        """Can one access pattern walk the selection, dimension by dimension?"""
        chosen = self._selection
        slabs = prod(each.extent for each in chosen.dimensions[: chosen.untiled])
        return all(each.is_one_walk for each in self._tiled) and not (chosen.tensor.storage.on_chip and slabs > 1)

    @property
    def data(self) -> NkiTensor:
        """The selected elements as a tensor, of `element_shape` without untiled dimensions of one element.

        Raises NkiValidationError where one access pattern does not reach them: index single tiles then.
        """
        if not self.is_data_representable:
            raise NkiValidationError(
                f"{self!r} is no single access pattern (is_data_representable is False): take the .data of its tiles, "
                "one by one"
            )
        chosen = self._selection
        pattern: Pattern = tuple(
            (each.stride, each.extent)
            for at, each in enumerate(chosen.dimensions)
            if at >= chosen.untiled or each.extent > 1
        )
        tensor = chosen.tensor
        offset = tensor.offset + sum(each.start for each in chosen.dimensions)
        return NkiTensor(tensor.storage, offset, pattern, tensor.dtype)

    @property
    def _tiled(self) -> tuple[_Dimension, ...]:
        return self._selection.dimensions[self._selection.untiled :]

    def __getitem__(self, key: Any) -> Any:
        """The selected cells, as a grid of the same kind. Raises OutOfBounds."""
        keys = key if isinstance(key, tuple) else (key,)
        dimensions = list(self._selection.dimensions)
        if len(keys) > len(dimensions):
            raise OutOfBounds(f"{len(keys)} indices for {self!r}, which has {len(dimensions)} dimensions")
        for at, item in enumerate(keys):
            first, count = self._cells(item, at)
            each = dimensions[at]
            low = each.low + first * each.step
            dimensions[at] = each._replace(low=low, high=min(low + count * each.step, each.high))
        return type(self)(replace(self._selection, dimensions=tuple(dimensions)))

    def _cells(self, item: Any, at: int) -> tuple[int, int]:
        """(first, how many) cells of dimension `at`."""
        cells = self._selection.dimensions[at].cells
        if isinstance(item, slice):
            first, end, step = item.indices(cells)
            if step != 1 or first >= end:
                raise OutOfBounds(f"slice {item} of dimension {at} of {self!r}: cells side by side, at least one")
            return first, end - first
        index = operator.index(item)
        if not -cells <= index < cells:
            raise OutOfBounds(f"index {index} of dimension {at} of {self!r}, which has {cells} cells there")
        return index % cells, 1

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}{list(self.shape)} of {'x'.join(map(str, self.tile_shape))} tiles, "
            f"{list(self.element_shape)} {self.dtype} in {self.buffer.value}"
        )


class NkiTileGrid(NkiGrid):
    """A grid whose cells are tiles: of `nl.tiles` and `nl.alloc_tiles`."""

    __slots__ = ()


class NkiBlockGrid(NkiGrid):
    """A grid whose cells are blocks of tiles: of `nl.blocks` and `nl.alloc_blocks`."""

    __slots__ = ()

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Tiles of a whole block, by tiled dimension."""
        return tuple(each.step // each.tile for each in self._tiled)


# --- making them ------------------------------------------------------------------------------------


def tiles(source: Any, *, tile_shape: tuple[int, ...] | None = None) -> NkiTileGrid:
    """`source`, a tensor or a grid, as a grid of tiles: a view.

    `tile_shape`: elements of a tile in the trailing dimensions, at least two; the leading ones stay untiled. A grid has
    its own. Raises WrongType and WrongValue, which are TypeError and ValueError.
    """
    chosen = _selection(source, tile_shape, "tiles")
    return NkiTileGrid(_stepped(chosen, tuple(1 for _ in chosen.dimensions[chosen.untiled :])))


def blocks(source: Any, *, tile_shape: tuple[int, ...] | None = None, block_shape: tuple[int, ...]) -> NkiBlockGrid:
    """`source`, a tensor or a grid, as a grid of blocks of tiles: a view.

    `block_shape`: tiles of a block, by tiled dimension. `tile_shape` and errors as for `tiles`.
    """
    chosen = _selection(source, tile_shape, "blocks")
    return NkiBlockGrid(_stepped(chosen, _block_shape(chosen, block_shape, "blocks")))


def alloc_tiles(
    *,
    tile_shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    buffer: MemoryRegion,
    dtype: Any,
    address: tuple[int, int] | None = None,
    name: str = "",
) -> NkiTileGrid:
    """New memory for `element_shape` elements, not initialised, as a grid of tiles: one allocation for all of them.

    In HBM it is as compact as a tensor; on chip the tiles lie side by side in the partitions of the first, and a tile
    that a border cuts off takes the place of a whole one (NKI's pages leave that open). `address`: (partition, byte in
    the partition). Raises WrongType, WrongValue and AllocationRefused: TypeError, ValueError and AssertionError.
    """
    chosen = _allocated(tile_shape, element_shape, buffer, dtype, address, name, "alloc_tiles")
    return NkiTileGrid(chosen)


def alloc_blocks(
    *,
    tile_shape: tuple[int, ...],
    block_shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    buffer: MemoryRegion,
    dtype: Any,
    address: tuple[int, int] | None = None,
    name: str = "",
) -> NkiBlockGrid:
    """The memory of `alloc_tiles`, as a grid of blocks of `block_shape` tiles; tiles lie where they did."""
    chosen = _allocated(tile_shape, element_shape, buffer, dtype, address, name, "alloc_blocks")
    return NkiBlockGrid(_stepped(chosen, _block_shape(chosen, block_shape, "alloc_blocks")))


def _selection(source: Any, tile_shape: tuple[int, ...] | None, what: str) -> _Selection:
    if isinstance(source, NkiGrid):
        if tile_shape is not None and _sizes(tile_shape, "tile_shape", what) != source.tile_shape:
            raise WrongValue(f"{what}: {source!r} is cut into tiles already, and keeps them")
        return source._selection
    if not isinstance(source, NkiTensor):
        raise WrongType(f"{what}: source is a tensor or a grid, not {source!r}")
    if tile_shape is None:
        raise WrongType(f"{what}: a tensor needs a tile_shape")
    if source.indirection is not None:
        raise WrongValue(f"{what}: {source!r} has a place that only the device knows")
    sizes = _tile_shape(tile_shape, source.shape, what)
    untiled = source.ndim - len(sizes)
    if untiled and source.storage.on_chip:
        raise WrongValue(f"{what}: tile_shape {sizes} leaves out the partitions of {source!r}")
    wanted = (*(1 for _ in range(untiled)), *sizes)
    return _Selection(
        source,
        tuple(_Dimension(0, n, tile, tile, stride, tile * stride) for (stride, n), tile in zip(source.pattern, wanted)),
        untiled,
    )


def _stepped(chosen: _Selection, block_shape: tuple[int, ...]) -> _Selection:
    """The same elements in cells of so many tiles."""
    wanted = (*(1 for _ in range(chosen.untiled)), *block_shape)
    return replace(
        chosen,
        dimensions=tuple(each._replace(step=each.tile * count) for each, count in zip(chosen.dimensions, wanted)),
    )


def _allocated(
    tile_shape: Any, element_shape: Any, buffer: Any, dtype: Any, address: Any, name: str, what: str
) -> _Selection:
    elements = _sizes(element_shape, "element_shape", what)
    sizes = _tile_shape(tile_shape, elements, what)
    if not isinstance(buffer, MemoryRegion):
        raise WrongType(f"{what}: buffer is nl.sbuf, nl.psum or an HBM, not {buffer!r}")
    if buffer is MemoryRegion.register:
        raise WrongValue(f"{what}: no tiles in {buffer.value}")
    untiled = len(elements) - len(sizes)
    places = [min(tile, n) for tile, n in zip(sizes, elements[untiled:])]
    shape = elements
    if buffer.on_chip:
        counts = [*elements[:untiled], *(-(-n // tile) for tile, n in zip(sizes, elements[untiled:]))]
        shape = (places[0], prod(counts) * prod(places[1:]))
    placed = None if address is None else tuple(operator.index(n) for n in address)
    try:
        tensor = current().allocate(shape, as_dtype(dtype), buffer, name, address=placed)
    except NkiValidationError as error:
        raise AllocationRefused(f"{what}: {error}") from None
    if not buffer.on_chip:
        return _selection(tensor, sizes, what)
    return _Selection(tensor, _side_by_side(elements, sizes, places, shape[1]), untiled)


def _side_by_side(
    elements: tuple[int, ...], sizes: tuple[int, ...], places: list[int], row: int
) -> tuple[_Dimension, ...]:
    """Tiles one after the other in the partitions, the last dimension fastest. `places`: what one tile takes."""
    untiled = len(elements) - len(sizes)
    tiles_of = [1] * untiled + list(sizes)
    strides = [0] * untiled + [row] + [prod(places[at + 1 :]) for at in range(1, len(places))]
    tile_stride = prod(places[1:])
    found: list[_Dimension] = []
    for n, tile, stride in zip(reversed(elements), reversed(tiles_of), reversed(strides)):
        found.append(_Dimension(0, n, tile, tile, stride, tile_stride))
        tile_stride *= -(-n // tile)
    return tuple(reversed(found))


# --- their arguments --------------------------------------------------------------------------------


def _sizes(given: Any, role: str, what: str) -> tuple[int, ...]:
    if type(given) is not tuple or any(type(n) is not int for n in given):
        raise WrongType(f"{what}: {role} is a tuple of ints, not {given!r}")
    if len(given) < _LEAST_DIMENSIONS or any(n < 1 for n in given):
        raise WrongValue(f"{what}: {role} {given} has at least {_LEAST_DIMENSIONS} dimensions, all positive")
    sizes: tuple[int, ...] = given
    return sizes


def _tile_shape(given: Any, elements: tuple[int, ...], what: str) -> tuple[int, ...]:
    sizes = _sizes(given, "tile_shape", what)
    if len(sizes) > len(elements):
        raise WrongValue(f"{what}: tile_shape {sizes} has more dimensions than the elements {elements}")
    return sizes


def _block_shape(chosen: _Selection, given: Any, what: str) -> tuple[int, ...]:
    counts = _sizes(given, "block_shape", what)
    if len(counts) != len(chosen.dimensions) - chosen.untiled:
        raise WrongValue(f"{what}: block_shape {counts} has not as many dimensions as the tiles")
    return counts
