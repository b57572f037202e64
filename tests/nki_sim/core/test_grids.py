"""Grids of tiles and blocks select what slices of NumPy select, on one allocation, and issue nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nki_sim
from nki_sim import dtypes
from nki_sim.errors import NkiError, NkiValidationError
from nki_sim.execution.executor import execute
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.nki.run import simulate
from nki_sim.tracing.session import TensorSpec

ROWS, COLUMNS = st.integers(1, 70), st.integers(1, 40)
TILES = st.tuples(st.sampled_from([16, 32]), st.integers(1, 16))
BLOCKS = st.tuples(st.integers(1, 3), st.integers(1, 3))


def numbered(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def both_ways(kernel: Callable[..., Any], array: np.ndarray) -> np.ndarray:
    result = simulate(kernel)(array)
    (executed,) = execute(nki_sim.trace(kernel, array), [array])
    np.testing.assert_array_equal(result, executed)
    return executed


def cells(grid: Any) -> list[tuple[int, ...]]:
    return list(np.ndindex(*grid.shape))


@given(ROWS, COLUMNS, TILES, st.sampled_from([nl.sbuf, nl.shared_hbm, nl.private_hbm]))
def test_a_tensor_goes_through_tiles_unchanged(rows: int, columns: int, tile: tuple[int, int], buffer: Any) -> None:
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        source, target = nl.tiles(a, tile_shape=tile), nl.tiles(out, tile_shape=tile)
        between = nl.alloc_tiles(tile_shape=tile, element_shape=a.shape, buffer=buffer, dtype=a.dtype, name="between")
        assert source.shape == target.shape == between.shape == (-(-rows // tile[0]), -(-columns // tile[1]))
        for at in cells(source):
            assert between[at].element_shape == source[at].element_shape == source[at].data.shape
            nisa.dma_copy(dst=between[at].data, src=source[at].data)
        for at in cells(source):
            nisa.dma_copy(dst=target[at].data, src=between[at].data)
        return out

    array = numbered(rows, columns)
    np.testing.assert_array_equal(both_ways(kernel, array), array)


@given(ROWS, COLUMNS, TILES, BLOCKS, st.data())
def test_a_selection_is_the_slice_of_its_elements(rows, columns, tile, block, data) -> None:
    step = (tile[0] * block[0], tile[1] * block[1])

    def kernel(a: Any) -> Any:
        out = nl.zeros(a.shape, a.dtype, buffer=nl.shared_hbm)
        grid = nl.blocks(a, tile_shape=tile, block_shape=block)
        at = tuple(data.draw(st.integers(0, n - 1)) for n in grid.shape)
        chosen.append(at)
        cell, target = grid[at], nl.blocks(out, tile_shape=tile, block_shape=block)[at]
        assert isinstance(cell, nl.NkiBlockGrid) and cell.shape == (1, 1) and cell.block_shape == block
        assert (cell.index_step_elements, cell.tile_shape) == (step, tile)
        inside, there = nl.tiles(cell), nl.tiles(target)
        assert inside.index_step_elements == tile and cell.is_data_representable
        assert cell.is_remainder == any(n < s for n, s in zip(cell.element_shape, step))
        assert cell.data.shape == cell.element_shape
        for inner in cells(inside):
            nisa.dma_copy(dst=there[inner].data, src=inside[inner].data)
        return out

    chosen: list[tuple[int, int]] = []
    array = numbered(rows, columns)
    result = simulate(kernel)(array)
    (i, j), wanted = chosen[0], np.zeros_like(array)
    where = np.s_[i * step[0] : (i + 1) * step[0], j * step[1] : (j + 1) * step[1]]
    wanted[where] = array[where]
    np.testing.assert_array_equal(result, wanted)


@given(ROWS, COLUMNS, TILES)
def test_a_row_of_tiles_on_chip_is_one_access_pattern_and_a_column_is_not(rows, columns, tile) -> None:
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        source, target = nl.tiles(a, tile_shape=tile), nl.tiles(out, tile_shape=tile)
        held = nl.alloc_tiles(tile_shape=tile, element_shape=a.shape, buffer=nl.sbuf, dtype=a.dtype)
        assert held[:, 0].is_data_representable == (held.shape[0] == 1)
        for i in range(source.shape[0]):
            assert held[i, :].shape == (1, source.shape[1])
            nisa.dma_copy(dst=held[i, :].data, src=source[i, :].data)
            nisa.dma_copy(dst=target[i, :].data, src=held[i, :].data)
        return out

    array = numbered(rows, columns)
    np.testing.assert_array_equal(both_ways(kernel, array), array)


@given(st.integers(1, 3), ROWS, COLUMNS, TILES, st.sampled_from([nl.sbuf, nl.shared_hbm]))
def test_leading_dimensions_stay_untiled(slabs, rows, columns, tile, buffer) -> None:
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        source, target = nl.tiles(a, tile_shape=tile), nl.tiles(out, tile_shape=tile)
        held = nl.alloc_tiles(tile_shape=tile, element_shape=a.shape, buffer=buffer, dtype=a.dtype)
        assert source.shape[0] == slabs and source.index_step_elements == (1, *tile)
        for at in cells(source):
            assert source[at].data.ndim == 2
            nisa.dma_copy(dst=held[at].data, src=source[at].data)
            nisa.dma_copy(dst=target[at].data, src=held[at].data)
        return out

    array = numbered(slabs, rows, columns)
    np.testing.assert_array_equal(both_ways(kernel, array), array)


def alloc(**changed: Any) -> Any:
    wanted = {"tile_shape": (128, 512), "element_shape": (256, 512), "buffer": nl.sbuf, "dtype": nl.float32}
    return nl.alloc_tiles(**{**wanted, **changed})


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a list as shape": (lambda a: alloc(tile_shape=[128, 512]), TypeError, "tuple of ints"),
    "a bool in a shape": (lambda a: alloc(element_shape=(True, 2)), TypeError, "tuple of ints"),
    "no memory": (lambda a: alloc(buffer="sbuf"), TypeError, "nl.sbuf"),
    "nothing in a tile": (lambda a: alloc(tile_shape=(128, 0)), ValueError, "all positive"),
    "one dimension": (lambda a: alloc(tile_shape=(128,)), ValueError, "at least 2 dimensions"),
    "more dimensions than elements": (lambda a: alloc(tile_shape=(1, 128, 4)), ValueError, "more dimensions"),
    "registers": (lambda a: alloc(buffer=nl.MemoryRegion.register), ValueError, "no tiles in register"),
    "too many partitions": (lambda a: alloc(tile_shape=(129, 512)), AssertionError, "more than 128"),
    "a positional argument": (lambda a: nl.tiles(a, (128, 512)), TypeError, "positional"),
    "no tile_shape": (lambda a: nl.tiles(a), TypeError, "needs a tile_shape"),
    "a number as source": (lambda a: nl.tiles(3, tile_shape=(1, 1)), TypeError, "not 3"),
    "blocks of another rank": (
        lambda a: nl.blocks(a, tile_shape=(1, 1), block_shape=(1, 1, 1)), ValueError, "as many dimensions",
    ),
    "cut again": (lambda a: nl.tiles(alloc(), tile_shape=(64, 512)), ValueError, "cut into tiles already"),
    "an index outside": (lambda a: nl.tiles(a, tile_shape=(2, 2))[2, 0], IndexError, "which has 2 cells"),
    "too many indices": (lambda a: nl.tiles(a, tile_shape=(2, 2))[0, 0, 0], IndexError, "3 indices"),
    "every other tile": (lambda a: nl.tiles(a, tile_shape=(2, 2))[::2], IndexError, "side by side"),
    "a device value as index": (
        lambda a: nl.tiles(a, tile_shape=(2, 2))[nisa.scalar_load(nl.ndarray((1, 1), nl.int32)), 0], TypeError,
        "as an index",
    ),
    "a whole column on chip": (lambda a: alloc()[:, 0].data, NkiValidationError, "is_data_representable"),
    "a grid for a tensor": (
        lambda a: nisa.dma_copy(dst=nl.ndarray((2, 2), nl.float32), src=nl.tiles(a, tile_shape=(2, 2))[0, 0]),
        NkiValidationError, r"append \.data",
    ),
}  # fmt: skip


@pytest.mark.parametrize("use, error, says", REFUSED.values(), ids=REFUSED)
def test_a_wrong_grid_is_refused_by_name(use: Callable[[Any], Any], error: type[Exception], says: str) -> None:
    def kernel(a: Any) -> Any:
        use(a)
        return nl.zeros((1, 1), nl.float32, buffer=nl.shared_hbm)

    with pytest.raises(error, match=says) as caught:
        nki_sim.trace(kernel, TensorSpec((4, 4), dtypes.float32))
    assert isinstance(caught.value, NkiError) or "positional" in says
