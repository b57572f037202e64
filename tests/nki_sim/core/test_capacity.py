"""What is live at once must fit on the chip; what is not live does not count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nki_sim
from nki_sim.capacity import check_capacity, peak, usable_bytes
from nki_sim.dtypes import float32
from nki_sim.errors import CapacityExceeded, NkiValidationError
from nki_sim.memory import MemoryRegion
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.session import TensorSpec

COLUMNS = 8192
TILE_BYTES = COLUMNS * 4
FITS = usable_bytes("trn2", MemoryRegion.sbuf) // TILE_BYTES
"""How many [128, COLUMNS] float32 tiles SBUF holds."""


def held_tiles(count: int, partitions: int = 128) -> Any:
    """A kernel that keeps `count` tiles until all are made."""

    def kernel(a: Any) -> Any:
        out = nl.ndarray((partitions, COLUMNS), nl.float32, buffer=nl.shared_hbm)
        tiles = []
        for i in range(count):
            tiles.append(nl.ndarray((partitions, COLUMNS), nl.float32, name=f"tile{i}"))
            nisa.memset(dst=tiles[-1], value=1.0)
        for tile in tiles:
            nisa.dma_copy(dst=out, src=tile)
        return out

    return kernel


def traced(kernel: Any) -> Any:
    return nki_sim.trace(kernel, TensorSpec((1,), float32))


def test_tiles_that_fit_are_accepted_to_the_last_one() -> None:
    assert peak(traced(held_tiles(FITS)), MemoryRegion.sbuf).live_bytes == FITS * TILE_BYTES


def test_one_tile_too_many_is_reported_with_what_is_live() -> None:
    kernel = held_tiles(FITS + 1)
    with pytest.raises(CapacityExceeded, match="NCC_EGCA111") as caught:
        traced(kernel)
    text = str(caught.value)
    assert "tile0[128, 8192] float32 in sbuf" in text and f"{TILE_BYTES:,} B" in text and "212,984" in text
    assert caught.value.line is not None and caught.value.line > kernel.__code__.co_firstlineno
    with pytest.raises(CapacityExceeded):
        nki_sim.simulate(kernel)(np.zeros(1, np.float32))


def test_tiles_of_a_loop_that_are_dead_after_it_do_not_add_up() -> None:
    def kernel(a: Any) -> Any:
        out = nl.ndarray((128, COLUMNS), nl.float32, buffer=nl.shared_hbm)
        for _ in range(4 * FITS):
            tile = nl.ndarray((128, COLUMNS), nl.float32)
            nisa.memset(dst=tile, value=1.0)
            nisa.dma_copy(dst=out, src=tile)
        return out

    assert peak(traced(kernel), MemoryRegion.sbuf).live_bytes == TILE_BYTES


def test_a_tensor_that_nothing_touches_takes_no_room() -> None:
    def kernel(a: Any) -> Any:
        for _ in range(10):
            nl.ndarray((128, 50_000), nl.float32)
        return held_tiles(1)(a)

    traced(kernel)


def test_tensors_of_few_partitions_can_lie_side_by_side() -> None:
    traced(held_tiles(4 * FITS, partitions=32))
    traced(held_tiles(2 * FITS, partitions=64))
    with pytest.raises(CapacityExceeded):
        traced(held_tiles(4 * FITS + 4, partitions=1))


def test_psum_holds_eight_banks() -> None:
    def kernel_with(count: int) -> Any:
        def kernel(a: Any) -> Any:
            out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
            left = nl.zeros((128, 128), nl.float32)
            right = nl.zeros((128, 512), nl.float32)
            banks = [nl.ndarray((128, 512), nl.float32, buffer=nl.psum) for _ in range(count)]
            for bank in banks:
                nisa.nc_matmul(dst=bank, stationary=left, moving=right)
            for bank in banks:
                tile = nl.ndarray((128, 512), nl.float32)
                nisa.tensor_copy(dst=tile, src=bank)
                nisa.dma_copy(dst=out, src=tile)
            return out

        return kernel

    assert (
        peak(traced(kernel_with(8)), MemoryRegion.psum).live_bytes
        == usable_bytes("trn2", MemoryRegion.psum)
        == 16 * 1024
    )
    with pytest.raises(CapacityExceeded, match="PSUM is full"):
        traced(kernel_with(9))


def test_what_a_device_loop_uses_from_before_it_lives_to_its_end() -> None:
    def kernel_with(count: int) -> Any:
        def kernel(a: Any) -> Any:
            out = nl.ndarray((128, COLUMNS), nl.float32, buffer=nl.shared_hbm)
            outside = [nl.zeros((128, COLUMNS), nl.float32) for _ in range(count)]

            def body(i: Any) -> None:
                for tile in outside:
                    nisa.dma_copy(dst=out, src=tile)
                inside = nl.ndarray((128, COLUMNS), nl.float32)
                nisa.memset(dst=inside, value=0.0)
                nisa.dma_copy(dst=out, src=inside)

            nl.fori_loop(0, 4, body)
            return out

        return kernel

    traced(kernel_with(FITS - 1))
    with pytest.raises(CapacityExceeded):
        traced(kernel_with(FITS))


def placed(*addresses: Any) -> Any:
    def kernel(a: Any) -> Any:
        out = nl.ndarray((128, COLUMNS), nl.float32, buffer=nl.shared_hbm)
        for address in addresses:
            tile = nl.ndarray((128, COLUMNS), nl.float32, address=address)
            nisa.memset(dst=tile, value=1.0)
            nisa.dma_copy(dst=out, src=tile)
        return out

    return kernel


def test_manual_addresses_are_all_or_nothing_and_inside_the_memory() -> None:
    traced(placed((0, 0), (0, TILE_BYTES)))
    with pytest.raises(NkiValidationError, match="cannot mix manual and automatic"):
        traced(placed((0, 0), None))
    for outside in ((0, 212_984 - TILE_BYTES + 4), (1, 0)):
        with pytest.raises(CapacityExceeded, match="outside"):
            traced(placed(outside))
    with pytest.raises(NkiValidationError, match="partition, byte"):
        traced(placed((0,)))


def two_at(second: Any, *, in_turns: bool = False, shape: tuple[int, int] = (128, COLUMNS)) -> Any:
    """One tile at address 0 and another at `second`, both filled and then stored, or one after the other."""

    def kernel(a: Any) -> Any:
        out = nl.ndarray((128, COLUMNS), nl.float32, buffer=nl.shared_hbm)
        tiles = [
            nl.ndarray(shape, nl.float32, name=name, address=at) for name, at in (("old", (0, 0)), ("new", second))
        ]

        def stored(tile: Any) -> None:
            nisa.dma_copy(dst=out[: shape[0]], src=tile)

        for tile in tiles:
            nisa.memset(dst=tile, value=1.0)
            if in_turns:
                stored(tile)
        for tile in tiles if not in_turns else ():
            stored(tile)
        return out

    return kernel


def test_two_live_tensors_do_not_share_an_address() -> None:
    """Given one address for two tiles, when both hold values at once, then it is refused, on the newer one's line."""
    traced(two_at((0, 0), in_turns=True))
    traced(two_at((0, TILE_BYTES)))
    traced(two_at((64, 0), shape=(64, COLUMNS)))
    for second in ((0, 0), (0, TILE_BYTES - 4)):
        with pytest.raises(NkiValidationError, match=r"new.*takes bytes of old.*still used") as raised:
            traced(two_at(second))
        assert raised.value.line is not None
    with pytest.raises(NkiValidationError, match="takes bytes of old"):
        traced(two_at((32, 0), shape=(64, COLUMNS)))


def test_what_a_loop_on_the_device_needs_again_keeps_its_address() -> None:
    def kernel_with(second: Any) -> Any:
        def kernel(a: Any) -> Any:
            out = nl.ndarray((128, COLUMNS), nl.float32, buffer=nl.shared_hbm)
            old = nl.ndarray((128, COLUMNS), nl.float32, address=(0, 0))
            nisa.memset(dst=old, value=0.0)

            def body(i: Any) -> None:
                nisa.dma_copy(dst=out, src=old)
                new = nl.ndarray((128, COLUMNS), nl.float32, address=second)
                nisa.memset(dst=new, value=1.0)
                nisa.dma_copy(dst=out, src=new)

            nl.fori_loop(0, 4, body)
            return out

        return kernel

    traced(kernel_with((0, TILE_BYTES)))
    with pytest.raises(NkiValidationError, match="takes bytes of"):
        traced(kernel_with((0, 0)))


def test_a_result_may_replace_what_it_was_made_of_on_the_engine_that_made_it() -> None:
    def kernel_with(instruction: Any) -> Any:
        def kernel(a: Any) -> Any:
            out = nl.ndarray((128, COLUMNS), nl.float32, buffer=nl.shared_hbm)
            old = nl.ndarray((128, COLUMNS), nl.float32, address=(0, 0))
            nisa.memset(dst=old, value=0.0)
            new = nl.ndarray((128, COLUMNS), nl.float32, address=(0, 0))
            instruction(new, old)
            nisa.dma_copy(dst=out, src=new)
            return out

        return kernel

    traced(kernel_with(lambda new, old: nisa.tensor_copy(dst=new, src=old)))
    with pytest.raises(NkiValidationError, match="takes bytes of"):
        traced(kernel_with(lambda new, old: nisa.dma_copy(dst=new, src=old)))


def test_a_placed_psum_tensor_starts_with_a_bank() -> None:
    def kernel_with(byte: int) -> Any:
        def kernel(a: Any) -> Any:
            out = nl.ndarray((128, 256), nl.float32, buffer=nl.shared_hbm)
            tile, copy = (nl.ndarray((128, 256), nl.float32, buffer=b, address=(0, byte)) for b in (nl.psum, nl.sbuf))
            nisa.memset(dst=tile, value=0.0)
            nisa.tensor_copy(dst=copy, src=tile)
            nisa.dma_copy(dst=out, src=copy)
            return out

        return kernel

    traced(kernel_with(4096))
    with pytest.raises(NkiValidationError, match="beginning of a bank"):
        traced(kernel_with(1024))


def loaded_tiles(count: int) -> Any:
    """A kernel that loads `count` tiles of its input, and then reads each."""

    def kernel(a: Any) -> Any:
        out = nl.ndarray((128, COLUMNS), nl.float32, buffer=nl.shared_hbm)
        tiles = []
        for i in range(count):
            tiles.append(nl.ndarray((128, COLUMNS), nl.float32, name=f"tile{i}"))
            nisa.dma_copy(dst=tiles[-1], src=a)
        for tile in tiles:
            nisa.dma_copy(dst=out, src=tile)
        return out

    return kernel


def test_what_mirrors_an_input_can_be_loaded_when_it_is_wanted() -> None:
    program = nki_sim.trace(loaded_tiles(FITS + 2), TensorSpec((128, COLUMNS), float32))
    assert peak(program, MemoryRegion.sbuf).live_bytes == (FITS + 2) * TILE_BYTES
    assert peak(program, MemoryRegion.sbuf, in_order=False).live_bytes == TILE_BYTES
    with pytest.raises(CapacityExceeded, match="NCC_EGCA111"):
        check_capacity(program, in_order=True)


def test_what_the_kernel_computed_must_be_held() -> None:
    with pytest.raises(CapacityExceeded, match="NCC_EGCA111"):
        nki_sim.trace(held_tiles(FITS + 1), TensorSpec((128, COLUMNS), float32))
