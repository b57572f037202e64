"""Which earlier buffer each one takes the place of, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.machine import ISA, TRN2, Machine
from nki_sim.program.program import Program
from nki_sim.program.regions import Lists, Regions, find_regions
from nki_sim.timing.compiler.places import Waits, find_waits
from nki_sim.timing.schedule import schedule
from tests.nki_sim.compiler.random_kernels import TILE_BYTES, rotating_tiles
from tests.nki_sim.machine.timeline_audit import audit
from tests.nki_sim.machine.traced_kernels import P, nisa, nl, stream, tile
from tests.nki_sim.machine.traced_kernels import traced as traced_as_is


def traced(body: Callable[[Any, Any], None], columns: int = 512) -> Program:
    """With a store of the result at the end, without which there is no kernel."""

    def storing(given: Any, result: Any) -> None:
        body(given, result)
        nisa.dma_copy(dst=result, src=given)

    return traced_as_is(storing, columns)


def each(lists: Lists, number: int) -> list[int]:
    found: list[int] = lists.values[lists.starts[number] : lists.starts[number + 1]].tolist()
    return found


class Places:
    """Who waits for whom, in buffers."""

    def __init__(self, program: Program, machine: Machine = TRN2) -> None:
        self.program = program
        self.regions: Regions = find_regions(program)
        self.waits: Waits = find_waits(program, machine, self.regions)

    def of_row(self, row: int) -> set[int]:
        """The buffers that it waits for besides its operands."""
        closed = each(self.waits.closed, row)
        for group in each(self.waits.groups, row):
            closed += each(self.waits.members, group)
        return set(self.regions.buffers[closed].tolist())

    def rows(self, opcode: str) -> list[int]:
        return [row for row, n in enumerate(self.program.template_ids) if self.program.templates[n].opcode == opcode]

    def written_by(self, row: int) -> int:
        return int(self.program.operand_data[self.program.operand_starts[row], 0])


def loaded_tiles(places: Places) -> tuple[list[int], list[int]]:
    """(rows, buffers) of the loads into SBUF."""
    rows = [
        row
        for row in places.rows("dma_copy")
        if places.program.templates[places.program.template_ids[row]].operands[0].region.on_chip
    ]
    return rows, [places.written_by(row) for row in rows]


@pytest.mark.parametrize("room", [1, 2, 5])
def test_a_tile_waits_for_the_one_whose_place_it_takes(room: int) -> None:
    """A load and its square, of one size: there is room for so many of both."""
    places = Places(stream(64, 8), replace(TRN2, sbuf_partition_bytes=2 * room * 4 * 64))
    rows, tiles = loaded_tiles(places)
    assert [places.of_row(row) for row in rows] == [set() if k < room else {tiles[k - room]} for k in range(len(tiles))]


def test_as_long_as_there_is_memory_nothing_waits() -> None:
    def body(given: Any, result: Any) -> None:
        for k in range(9):
            made = [lambda: tile(64), lambda: tile(32), lambda: tile(64, nl.bfloat16)][k % 3]()
            nisa.memset(dst=made, value=0.0)
            nisa.activation(dst=made, op=nl.square, data=made)

    places = Places(traced(body, 64))
    assert all(not places.of_row(row) for row in places.rows("memset"))


def test_where_memory_is_short_a_tile_follows_the_one_of_its_size_that_has_been_dead_longest() -> None:
    """Of two sizes in turn, with room for two of each."""

    def body(given: Any, result: Any) -> None:
        for k in range(8):
            made = tile(64 if k % 2 else 48)
            nisa.memset(dst=made, value=0.0)
            nisa.activation(dst=made, op=nl.square, data=made)

    places = Places(traced(body, 64), replace(TRN2, sbuf_partition_bytes=2 * 4 * (64 + 48)))
    rows = places.rows("memset")
    tiles = [places.written_by(row) for row in rows]
    # the fifth is small, the first that is dead is as small; and so on: each takes what was made four before
    assert [places.of_row(row) for row in rows] == [set() if k < 4 else {tiles[k - 4]} for k in range(8)]


def slices(order: Sequence[int], products: bool = False) -> Program:
    """Two tiles after each other, loaded in four slices in this order; every slice has a reader of its own."""

    def body(given: Any, result: Any) -> None:
        for _ in range(2):
            loaded = tile(256)
            for k in order:
                nisa.dma_copy(dst=loaded[:, 64 * k : 64 * k + 64], src=given[:, 64 * k : 64 * k + 64])
            for k in range(4):
                here = loaded[:, 64 * k : 64 * k + 64]
                nisa.activation(dst=tile(64), op=nl.square, data=here)

    return traced(body, 256)


def one_place() -> Machine:
    """SBUF for one tile of 256 and two of 64 columns."""
    return replace(TRN2, sbuf_partition_bytes=4 * (256 + 2 * 64), reload_window_bytes=0)


def test_where_sbuf_is_short_every_slice_waits_for_the_same_slice() -> None:
    places = Places(slices((0, 1, 2, 3)), one_place())
    rows, tiles = loaded_tiles(places)
    regions = places.regions
    for k, row in enumerate(rows[4:]):
        (written,) = each(regions.writes, rows[k])
        assert written in each(places.waits.closed, row), "the slice that lies where this one goes"
        others = {each(regions.writes, rows[j])[0] for j in range(4) if j != k}
        assert not others & set(each(places.waits.closed, row))
    timeline = schedule(slices((3, 2, 1, 0)), one_place())
    numbers = timeline.program.template_ids.tolist()
    loads = [row for row, n in enumerate(numbers) if timeline.costs[n].transfer is not None][:8]
    reads = [row for row, n in enumerate(numbers) if timeline.costs[n].resource == "scalar"]
    assert timeline.issued_ns[loads[4:]].min() < timeline.end_ns[reads[:4]].max()


@pytest.mark.parametrize(
    ("sums", "shares"),
    [
        (1, (2 / 8, 4 / 8, 6 / 8, 7 / 8)),  # the sum is whole at the end: slices fall free one after the other
        (16, (10 / 16, 12 / 16, 14 / 16, 15 / 16)),  # eight banks, so that the second half takes slice after slice
    ],
)
def test_a_tile_that_only_products_read_falls_free_by_their_share(sums: int, shares: tuple[float, ...]) -> None:
    def body(given: Any, result: Any) -> None:
        for _ in range(2):
            loaded = tile(256)
            for k in range(4):
                here = slice(64 * k, 64 * k + 64)
                nisa.dma_copy(dst=loaded[:, here], src=given[:, here])
            totals = [tile(64, buffer=nl.psum, partitions=64) for _ in range(sums)]
            for at in range(max(8, sums)):
                nisa.nc_matmul(dst=totals[at % sums], stationary=loaded[:, :64], moving=loaded[:, 64:128])

    places = Places(traced(body, 256), replace(TRN2, sbuf_partition_bytes=4 * 256))
    rows, _ = loaded_tiles(places)
    products = places.rows("nc_matmul")[: max(8, sums)]
    waited = [each(places.waits.ends, row) for row in rows[4:]]
    assert waited == [[products[int(share * len(products))]] for share in shares]


def test_psum_takes_the_bank_that_fell_free_first() -> None:
    banks = TRN2.psum_banks

    def body(given: Any, result: Any) -> None:
        kept = [tile(512, buffer=nl.psum) for _ in range(banks)]
        for each in kept:
            nisa.memset(dst=each, value=0.0)
        for each in (*kept[2:], *kept[:2]):
            nisa.activation(dst=tile(512), op=nl.square, data=each)
        nisa.memset(dst=tile(512, buffer=nl.psum), value=0.0)

    places = Places(traced(body))
    rows = places.rows("memset")
    assert all(not places.of_row(row) for row in rows[:banks])
    assert places.of_row(rows[banks]) == {places.written_by(rows[2])}


def test_a_placed_tile_waits_for_all_whose_bytes_it_takes() -> None:
    addresses = ((0, 0, 128), (0, 0, 64), (0, 256, 64), (0, 512, 64))  # partition, byte, columns

    def body(given: Any, result: Any) -> None:
        for partition, byte, columns in addresses:
            placed = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.sbuf, address=(partition, byte))
            nisa.memset(dst=placed, value=0.0)
            nisa.activation(dst=placed, op=nl.square, data=placed)

    places = Places(traced(body, 64))
    rows = places.rows("memset")
    first = places.written_by(rows[0])
    assert [places.of_row(row) for row in rows] == [set(), {first}, {first}, set()]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([5, 6, 9, 14, 30]))
def test_no_more_memory_is_in_use_than_there_is(seed: int, space: int) -> None:
    machine = replace(TRN2, sbuf_partition_bytes=space * TILE_BYTES)
    audit(schedule(rotating_tiles(seed), machine))
    assert ISA.quadrants * ISA.quadrant_partitions == P
