"""Which earlier buffer each one takes the place of, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.compiler.rotation import Waits, find_waits
from nki_sim.machine import ISA, TRN2, Machine
from nki_sim.program import Program
from nki_sim.regions import Lists, Regions, find_regions
from nki_sim.schedule import schedule
from tests.nki_sim.compiler.random_kernels import TILE_BYTES, rotating_tiles
from tests.nki_sim.machine.timeline_audit import audit
from tests.nki_sim.machine.traced_kernels import P, nisa, nl, stream, tile
from tests.nki_sim.machine.traced_kernels import traced as traced_as_is

DEPTH = TRN2.rotation_depth


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


@pytest.mark.parametrize("depth", [1, 2, DEPTH, 5])
def test_a_tile_waits_for_the_one_whose_place_it_takes(depth: int) -> None:
    places = Places(stream(64, 8), replace(TRN2, rotation_depth=depth))
    rows, tiles = loaded_tiles(places)
    assert [places.of_row(row) for row in rows] == [
        set() if k < depth else {tiles[k - depth]} for k in range(len(tiles))
    ]


def test_in_time_the_wait_is_for_the_last_reader() -> None:
    def slow_readers(depth: int) -> float:
        def body(given: Any, result: Any) -> None:
            for _ in range(DEPTH + 1):
                loaded = tile(64)
                nisa.dma_copy(dst=loaded[:, :], src=given)
                for _ in range(40):
                    nisa.activation(dst=tile(64, nl.bfloat16), op=nl.square, data=loaded)

        machine = replace(TRN2, rotation_depth=depth, reload_window_bytes=0)
        timeline = schedule(traced(body, 64), machine)
        numbers = timeline.shown.template_ids.tolist()
        loads = [row for row, n in enumerate(numbers) if timeline.costs[n].transfer is not None]
        reads = [row for row, n in enumerate(numbers) if timeline.costs[n].resource == "scalar"]
        return float(timeline.issued_ns[loads[DEPTH]] - timeline.end_ns[reads[39]])

    assert slow_readers(DEPTH) >= 0.0, "the fourth tile takes the place of the first"
    assert slow_readers(DEPTH + 1) < 0.0, "there is a place for every tile"


def test_a_line_that_makes_several_tiles_at_once_has_places_for_each() -> None:
    def pair(given: Any) -> list[Any]:
        found = []
        for _ in range(2):
            found.append(tile(64))
            nisa.memset(dst=found[-1], value=0.0)
        return found

    def body(given: Any, result: Any) -> None:
        for _ in range(2 * DEPTH):
            one, other = pair(given)
            nisa.tensor_tensor(dst=one, data1=one, data2=other, op=nl.add)
            nisa.dma_copy(dst=result, src=one)

    places = Places(traced(body, 64))
    rows = places.rows("memset")
    tiles = [places.written_by(row) for row in rows]
    assert [places.of_row(row) for row in rows] == [
        set() if k < 2 * DEPTH else {tiles[k - 2 * DEPTH]} for k in range(len(tiles))
    ]


def test_tiles_of_other_lines_shapes_or_dtypes_have_places_of_their_own() -> None:
    def body(given: Any, result: Any) -> None:
        for k in range(3 * DEPTH):
            made = [lambda: tile(64), lambda: tile(32), lambda: tile(64, nl.bfloat16)][k % 3]()
            nisa.memset(dst=made, value=0.0)
            nisa.activation(dst=made, op=nl.square, data=made)

    places = Places(traced(body, 64))
    assert all(not places.of_row(row) for row in places.rows("memset"))


def test_whatever_writes_a_tile_first_waits_not_only_the_first_row() -> None:
    def body(given: Any, result: Any) -> None:
        for _ in range(2):
            halves = tile(64)
            nisa.memset(dst=halves[:, :32], value=0.0, engine=nisa.engine.vector)
            nisa.memset(dst=halves[:, 32:], value=0.0, engine=nisa.engine.gpsimd)
            nisa.activation(dst=halves, op=nl.square, data=halves)

    places = Places(traced(body, 64), replace(TRN2, rotation_depth=1))
    rows = places.rows("memset")
    first = places.written_by(rows[0])
    assert [places.of_row(row) for row in rows] == [set(), set(), {first}, {first}]


# --- where SBUF is short --------------------------------------------------------------------------


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
    """SBUF for one tile of 256 and two of 64 columns, although every line might have more."""
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
    numbers = timeline.shown.template_ids.tolist()
    loads = [row for row, n in enumerate(numbers) if timeline.costs[n].transfer is not None][:8]
    reads = [row for row, n in enumerate(numbers) if timeline.costs[n].resource == "scalar"]
    assert timeline.issued_ns[loads[4:]].min() < timeline.end_ns[reads[:4]].max()


def test_slices_that_lie_otherwise_wait_for_the_whole_tile() -> None:
    def body(given: Any, result: Any) -> None:
        for parts in (4, 2):
            loaded = tile(256)
            for k in range(parts):
                here = slice(256 // parts * k, 256 // parts * (k + 1))
                nisa.dma_copy(dst=loaded[:, here], src=given[:, here])
            nisa.activation(dst=loaded, op=nl.square, data=loaded)

    places = Places(traced(body, 256), replace(TRN2, sbuf_partition_bytes=4 * 256))
    rows, tiles = loaded_tiles(places)
    assert [places.of_row(row) for row in rows[4:]] == [{tiles[0]}, {tiles[0]}]


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


# --- placed tiles ---------------------------------------------------------------------------------


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


# --- any program ----------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([5, 6, 9, 14, 30]))
def test_no_more_memory_is_in_use_than_there_is(seed: int, space: int) -> None:
    machine = replace(TRN2, sbuf_partition_bytes=space * TILE_BYTES)
    audit(schedule(rotating_tiles(seed), machine))
    assert ISA.quadrants * ISA.quadrant_partitions == P
