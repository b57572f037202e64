"""An engine's instructions in another order than written: which, how far, and never before what they wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.device_mamba import mamba
from nki_sim.machine import TRN2, Machine
from nki_sim.program.program import Program
from nki_sim.program.regions import Lists, find_regions
from nki_sim.timing.compiler.places import find_waits
from nki_sim.timing.compiler.queues import engine_that_waits, order_of_work
from nki_sim.timing.compiler.spills import with_spills
from nki_sim.timing.cost import RESOURCES, cost
from nki_sim.timing.schedule import Timeline, schedule
from nki_sim.timing.schedule_pass import timed
from tests.nki_sim.compiler.random_kernels import TILE_BYTES, rotating_tiles, shared_tiles
from tests.nki_sim.machine.traced_kernels import filled, nisa, nl, tile, traced

VECTOR = RESOURCES.index("vector")
AS_WRITTEN = replace(TRN2, reorder_reach=1)


def ordered(program: Program, machine: Machine, engine: int = VECTOR) -> np.ndarray:
    regions = find_regions(program)
    waits = find_waits(program, machine, regions)
    costs = [cost(template, machine) for template in program.templates]
    return order_of_work(program, machine, costs, regions, waits, engine)


def sets(lists: Lists) -> list[set[int]]:
    return [set(each.tolist()) for each in np.split(lists.values, lists.starts[1:-1])]


def waited_for(program: Program, machine: Machine) -> list[set[int]]:
    """By row: every row before it that touches what it touches, or that it waits for besides."""
    regions = find_regions(program)
    waits = find_waits(program, machine, regions)
    reads, writes, overlaps = sets(regions.reads), sets(regions.writes), sets(regions.overlapping)
    closed_by, groups, ends, members = map(sets, (waits.closed, waits.groups, waits.ends, waits.members))
    found: list[set[int]] = []
    for row in range(len(program)):
        changed = writes[row].union(*[overlaps[each] for each in writes[row]])
        mine = changed | reads[row].union(*[overlaps[each] for each in reads[row]])
        closed = closed_by[row].union(*[members[group] for group in groups[row]])
        found.append(
            {before for before in range(row) if writes[before] & (mine | closed) or reads[before] & (changed | closed)}
            | ends[row]
        )
    return found


WIDE = 512
"""Columns that keep Vector busy for longer than a result of it takes to be there: such waits no whole instruction of
another tile fits into."""


def chains(count: int, length: int) -> Program:
    """`count` tiles, one after the other, each changed by Vector `length` times."""

    def body(source: Any, result: Any) -> None:
        for _ in range(count):
            values = filled(tile(WIDE))
            for _ in range(length):
                nisa.tensor_tensor(dst=values, data1=values, data2=values, op=nl.add)
            nisa.dma_copy(dst=result, src=values)

    return traced(body, WIDE)


def vector_rows(timeline: Timeline) -> np.ndarray:
    """In the order of time."""
    mine = [timeline.costs[number].resource == "vector" for number in timeline.program.template_ids.tolist()]
    rows = np.flatnonzero(mine)
    found: np.ndarray = rows[np.argsort(timeline.start_ns[rows], kind="stable")]
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([4, 6, 14]), st.sampled_from([2, 8, 64]))
def test_nothing_comes_before_what_it_waits_for_and_other_queues_keep_their_order(seed, rotating, space, reach) -> None:
    machine = replace(TRN2, sbuf_partition_bytes=space * TILE_BYTES, reorder_reach=reach)
    program = rotating_tiles(seed) if rotating else shared_tiles(seed, 40, 0.4)
    program = with_spills(program, machine)
    waits = waited_for(program, machine)
    costs = [cost(template, machine) for template in program.templates]
    for engine in (VECTOR, RESOURCES.index("scalar")):
        order = ordered(program, machine, engine)
        assert sorted(order.tolist()) == list(range(len(program)))
        place = np.argsort(order)
        for row, befores in enumerate(waits):
            assert all(place[before] < place[row] for before in befores)
        queues = np.array([2 * RESOURCES.index(c.resource) + bool(c.transfer and c.transfer.outward) for c in costs])
        queue = queues[program.template_ids[order]]
        for number in set(queue.tolist()) - {2 * engine}:
            assert (np.diff(order[queue == number]) > 0).all()
        for at, row in enumerate(order.tolist()):
            passed = [other for other in order[at + 1 :].tolist() if other < row]
            assert all(row - other < reach for other in passed)


def test_independent_tiles_take_turns_on_an_engine_that_would_wait() -> None:
    program = chains(12, 6)
    written, moved = schedule(program, AS_WRITTEN), schedule(program, TRN2)
    assert (np.diff(vector_rows(written)) > 0).all() and (np.diff(vector_rows(moved)) < 0).any()
    busy_us = moved.resource_us["vector"]
    assert written.latency_us - busy_us > 1.5 * (moved.latency_us - busy_us)
    rows = vector_rows(moved)
    assert (moved.start_ns[rows[1:]] >= moved.end_ns[rows[:-1]] - 1e-6).all(), "one at a time"
    assert (moved.start_ns >= moved.ready_ns - 1e-6).all()


def test_the_order_is_looked_at_only_where_the_engine_decides_the_latency() -> None:
    def waiting(program: Program) -> int | None:
        costs = [cost(template, AS_WRITTEN) for template in program.templates]
        return engine_that_waits(program, costs, timed(program, AS_WRITTEN, costs, {}, 0.0))

    def with_transfers(source: Any, result: Any) -> None:
        for _ in range(12):
            values = tile(WIDE)
            for _ in range(6):
                nisa.dma_copy(dst=values, src=source)
                nisa.tensor_tensor(dst=values, data1=values, data2=values, op=nl.add)
            nisa.dma_copy(dst=result, src=values)

    assert waiting(chains(12, 6)) == VECTOR
    assert waiting(traced(with_transfers, WIDE)) is None


@pytest.mark.parametrize("reach", [16, 64, 256])
def test_states_of_mamba_fill_each_others_waits_on_vector(reach: int) -> None:
    program = mamba(128, 1024, 8, 256)
    moved = schedule(program, replace(TRN2, reorder_reach=reach))
    assert moved.latency_us < 0.9 * schedule(program, AS_WRITTEN).latency_us
