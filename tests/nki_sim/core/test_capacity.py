"""What is live at once in PSUM and in one instruction must fit; what does not fit in SBUF otherwise is spilled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nki_sim
from nki_sim.capacity import check_capacity, peak, usable_bytes
from nki_sim.compiler.spills import Spill, most_live, with_spills
from nki_sim.dtypes import float32, uint8
from nki_sim.errors import CapacityExceeded, NkiValidationError
from nki_sim.executor import execute
from nki_sim.machine import ISA, TRN2
from nki_sim.memory import MemoryRegion
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.schedule import compiled
from nki_sim.session import TensorSpec
from nki_sim.unroll import unrolled

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


def spills(program: Any) -> bool:
    return with_spills(program, TRN2) is not program


def test_one_tile_too_many_is_spilled_and_computes_the_same() -> None:
    program = traced(held_tiles(FITS + 1))
    assert peak(program, MemoryRegion.sbuf).live_bytes == (FITS + 1) * TILE_BYTES
    assert not spills(traced(held_tiles(FITS))) and spills(program)
    (result,) = execute(with_spills(program, TRN2), [np.zeros(1, np.float32)])
    assert (result == 1.0).all()
    check_capacity(program)


def test_a_tile_larger_than_a_partition_is_refused_by_name() -> None:
    def kernel(columns: int) -> Any:
        def inner(a: Any) -> Any:
            out = nl.ndarray((128, columns), nl.uint8, buffer=nl.shared_hbm)
            wide = nl.ndarray((128, columns), nl.uint8, name="wide")
            nisa.dma_copy(dst=wide, src=a)
            nisa.dma_copy(dst=out, src=wide)
            return out

        return inner

    partition = usable_bytes("trn2", MemoryRegion.sbuf)
    nki_sim.trace(kernel(partition), TensorSpec((128, partition), uint8))
    with pytest.raises(CapacityExceeded, match="NCC_INLA001") as caught:
        nki_sim.trace(kernel(partition + 1), TensorSpec((128, partition + 1), uint8))
    assert f"wide[128, {partition + 1}] uint8 in sbuf" in str(caught.value) and f"{partition:,}" in str(caught.value)
    assert caught.value.line is not None


def added(columns: int) -> Any:
    """A kernel with one instruction that touches three tiles of that many float32."""

    def kernel(a: Any) -> Any:
        out = nl.ndarray((128, columns), nl.float32, buffer=nl.shared_hbm)
        one, two, both = (nl.ndarray((128, columns), nl.float32, name=name) for name in ("one", "two", "both"))
        nisa.memset(dst=one, value=1.0)
        nisa.memset(dst=two, value=2.0)
        nisa.tensor_tensor(dst=both, data1=one, data2=two, op=nl.add)
        nisa.dma_copy(dst=out, src=both)
        return out

    return kernel


def test_the_tiles_of_one_instruction_must_fit_together() -> None:
    columns = usable_bytes("trn2", MemoryRegion.sbuf) // 3 // 4
    traced(added(columns))
    with pytest.raises(CapacityExceeded, match="NCC_IBIR229") as caught:
        traced(added(columns + 1))
    assert all(name in str(caught.value) for name in ("tensor_tensor", "one[", "two[", "both["))
    with pytest.raises(CapacityExceeded, match="NCC_IBIR229"):
        nki_sim.simulate(added(columns + 1))(np.zeros(1, np.float32))


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
    assert not spills(traced(held_tiles(4 * FITS, partitions=32)))
    assert not spills(traced(held_tiles(2 * FITS, partitions=64)))
    assert spills(traced(held_tiles(4 * FITS + 4, partitions=1)))
    assert spills(traced(held_tiles(FITS + 1, partitions=96)))  # three adjacent quarters cannot be had


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
    with pytest.raises(CapacityExceeded, match=r"PSUM is full \(NCC_EGCA111\)") as caught:
        traced(kernel_with(9))
    assert "18,432 bytes per partition are live" in str(caught.value) and "2,048 B" in str(caught.value)


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

    fits, too_many = traced(kernel_with(FITS - 1)), traced(kernel_with(FITS))
    assert peak(fits, MemoryRegion.sbuf).live_bytes == FITS * TILE_BYTES
    assert peak(too_many, MemoryRegion.sbuf).live_bytes == (FITS + 1) * TILE_BYTES
    assert not spills(unrolled(fits)) and spills(unrolled(too_many))


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


def test_what_mirrors_an_input_is_loaded_when_it_is_wanted() -> None:
    program = nki_sim.trace(loaded_tiles(FITS + 2), TensorSpec((128, COLUMNS), float32))
    assert peak(program, MemoryRegion.sbuf).live_bytes == (FITS + 2) * TILE_BYTES
    ready, _ = compiled(program, TRN2)
    assert most_live(ready) == ISA.quadrants * TILE_BYTES
    assert not any(isinstance(template.attrs, Spill) for template in ready.templates)
