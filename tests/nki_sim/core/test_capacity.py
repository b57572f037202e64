"""What the compiler refuses for its size, and what it spills to HBM; what is not live does not count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nki_sim
from nki_sim.dtypes import float32
from nki_sim.errors import CapacityExceeded, NkiValidationError
from nki_sim.machine import TRN2
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.profile.profile import measure
from nki_sim.program.memory import MemoryRegion
from nki_sim.timing.capacity import peak, usable_bytes
from nki_sim.timing.compiler.spills import with_spills
from nki_sim.tracing.session import TensorSpec

COLUMNS = 8192
TILE_BYTES = COLUMNS * 4
FITS = usable_bytes("trn2", MemoryRegion.sbuf) // TILE_BYTES
"""How many [128, COLUMNS] float32 tiles SBUF holds."""
LOOPS = 4


def held_tiles(count: int, partitions: int = 128) -> Any:
    """A kernel that keeps `count` tiles that it computed until all are made."""

    def kernel(a: Any) -> Any:
        out = nl.ndarray((partitions, COLUMNS), nl.float32, buffer=nl.shared_hbm)
        tiles = []
        for i in range(count):
            tiles.append(nl.ndarray((partitions, COLUMNS), nl.float32, name=f"tile{i}"))
            nisa.iota(dst=tiles[-1], pattern=[[1, COLUMNS]], offset=i)
        for tile in tiles:
            nisa.dma_copy(dst=out, src=tile)
        return out

    return kernel


def traced(kernel: Any) -> Any:
    return nki_sim.trace(kernel, TensorSpec((1,), float32))


def spilled(program: Any) -> tuple[float, float]:
    """Bytes moved out, and back."""
    fields = measure(program).fields
    return fields["spill_save_bytes"], fields["spill_reload_bytes"]


@pytest.mark.parametrize("more", [1, 2])
def test_a_tile_too_many_is_moved_out_and_back(more: int) -> None:
    kernel = held_tiles(FITS + more)
    program = traced(kernel)
    at = peak(program, MemoryRegion.sbuf)
    assert at.live_bytes == (FITS + more) * TILE_BYTES > at.limit_bytes == TRN2.sbuf_partition_bytes
    assert spilled(program) == (more * TRN2.partitions * TILE_BYTES,) * 2
    assert len(with_spills(program, TRN2)) == len(program) + 2 * more
    result = nki_sim.simulate(kernel)(np.zeros(1, np.float32))
    np.testing.assert_array_equal(result[0], np.arange(COLUMNS) + FITS + more - 1)


def one_tile(columns: int) -> Any:
    def kernel(a: Any) -> Any:
        out = nl.ndarray((128, columns), nl.uint8, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, columns), nl.uint8, name="wide")
        nisa.memset(dst=tile[:, :COLUMNS], value=1)
        nisa.dma_copy(dst=out, src=tile)
        return out

    return kernel


def test_a_tile_larger_than_a_partition_is_refused() -> None:
    traced(one_tile(TRN2.sbuf_partition_bytes))
    kernel = one_tile(TRN2.sbuf_partition_bytes + 1)
    with pytest.raises(CapacityExceeded, match="NCC_INLA001") as caught:
        traced(kernel)
    text = str(caught.value)
    assert "wide" in text and f"{TRN2.sbuf_partition_bytes + 1:,} bytes" in text
    assert f"{TRN2.sbuf_partition_bytes:,} are usable" in text
    assert caught.value.line is not None and caught.value.line > kernel.__code__.co_firstlineno
    with pytest.raises(CapacityExceeded, match="NCC_INLA001"):
        nki_sim.simulate(kernel)(np.zeros(1, np.float32))


def copied(columns: int) -> Any:
    """A kernel that copies a tile of `columns` bytes to another."""

    def kernel(a: Any) -> Any:
        out = nl.ndarray((128, columns), nl.uint8, buffer=nl.shared_hbm)
        old, new = (nl.ndarray((128, columns), nl.uint8, name=name) for name in ("old", "new"))
        nisa.memset(dst=old[:, :COLUMNS], value=1)
        nisa.tensor_copy(dst=new[:, :COLUMNS], src=old[:, :COLUMNS])
        nisa.dma_copy(dst=out, src=new)
        return out

    return kernel


def test_the_tiles_of_one_instruction_must_fit_together() -> None:
    half = TRN2.sbuf_partition_bytes // 2
    traced(copied(half))
    kernel = copied(half + 1)
    with pytest.raises(CapacityExceeded, match="NCC_IBIR229") as caught:
        traced(kernel)
    text = str(caught.value)
    assert "tensor_copy" in text and "old" in text and "new" in text and f"{half + 1:,} B" in text
    assert caught.value.line is not None and caught.value.line > kernel.__code__.co_firstlineno


def test_tensors_of_few_partitions_can_lie_side_by_side() -> None:
    for partitions, side_by_side in ((64, 2), (32, 4), (1, 4)):
        fit = side_by_side * TRN2.sbuf_partition_bytes // TILE_BYTES
        assert spilled(traced(held_tiles(fit, partitions))) == (0, 0)
        assert spilled(traced(held_tiles(fit + 1, partitions))) == (partitions * TILE_BYTES,) * 2


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
            outside = [nl.ndarray((128, COLUMNS), nl.float32) for _ in range(count)]
            for i, tile in enumerate(outside):
                nisa.iota(dst=tile, pattern=[[1, COLUMNS]], offset=i)

            def body(i: Any) -> None:
                for tile in outside:
                    nisa.dma_copy(dst=out, src=tile)
                inside = nl.ndarray((128, COLUMNS), nl.float32)
                nisa.memset(dst=inside, value=0.0)
                nisa.dma_copy(dst=out, src=inside)

            nl.fori_loop(0, LOOPS, body)
            return out

        return kernel

    kept, short = traced(kernel_with(FITS - 1)), traced(kernel_with(FITS))
    assert peak(kept, MemoryRegion.sbuf).live_bytes == FITS * TILE_BYTES
    assert spilled(kept) == (0, 0)
    assert peak(short, MemoryRegion.sbuf).live_bytes == (FITS + 1) * TILE_BYTES
    saved = TRN2.partitions * TILE_BYTES
    assert spilled(short) == (saved, (LOOPS - 1) * saved), "the one used last leaves in each turn, and is saved once"


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
    for outside in ((0, TRN2.sbuf_partition_bytes - TILE_BYTES + 4), (1, 0)):
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


def loaded_tiles(count: int, readings: int) -> Any:
    """A kernel that loads `count` tiles, each of its own rows of the input, and then reads all, `readings` times."""

    def kernel(a: Any) -> Any:
        out = nl.ndarray((128, COLUMNS), nl.float32, buffer=nl.shared_hbm)
        tiles = []
        for i in range(count):
            tiles.append(nl.ndarray((128, COLUMNS), nl.float32, name=f"tile{i}"))
            nisa.dma_copy(dst=tiles[-1], src=a[128 * i : 128 * (i + 1)])
        for tile in tiles * readings:
            nisa.dma_copy(dst=out, src=tile)
        return out

    return nki_sim.trace(kernel, TensorSpec((128 * count, COLUMNS), float32))


def test_what_mirrors_an_input_is_moved_out_without_being_saved() -> None:
    assert spilled(loaded_tiles(FITS, readings=2)) == (0, 0)
    assert spilled(loaded_tiles(FITS + 2, readings=2)) == (0, 2 * TRN2.partitions * TILE_BYTES)
