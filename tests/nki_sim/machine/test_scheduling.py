"""When instructions run: dependences, memory, order, and two times that bound each other.

`audit` (timeline_audit.py) checks any timeline against the definition; everything else is a story.
"""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_audit import audit, rows_on
from traced_kernels import P, filled, instruction, matmul, nisa, nl, stream, tile, traced

from nki_sim import dtypes
from nki_sim.machine import TRN1, TRN2, TRN3, Machine, compiled_by_beta1
from nki_sim.program.program import Program
from nki_sim.timing.cost import Transfer
from nki_sim.timing.schedule import Timeline, resource_bound, schedule


def time(program: Program, machine: Machine = TRN2) -> Timeline:
    return schedule(program, machine)


def move(timeline: Timeline, row: int) -> Transfer:
    found = timeline.costs[timeline.program.template_ids[row]].transfer
    assert found is not None
    return found


def outward(timeline: Timeline, row: int) -> bool:
    return move(timeline, row).outward


@st.composite
def small_programs(draw: Any) -> Program:
    """Random traffic between HBM, SBUF and PSUM on overlapping tiles of a few buffers."""
    seed = draw(st.integers(0, 2**32 - 1))
    length = draw(st.integers(1, 40))

    def body(source: Any, result: Any) -> None:
        choose = random.Random(seed)
        shared = [tile(64) for _ in range(2)]
        sums = [tile(64, buffer=nl.psum) for _ in range(2)]

        def some() -> Any:
            buffer = choose.choice(shared) if choose.random() < 0.7 else tile(64)
            start = choose.choice((0, 16, 32))
            return buffer[:, start : start + 32]

        def others(written: Any) -> Any:
            """To read, at another place than what is written, or at the same."""
            while (read := some()).storage is written.storage and read.offset != written.offset:
                pass
            return read

        for _ in range(length):
            kind = choose.randrange(6)
            at = choose.choice((0, 16, 32))
            if kind == 0:
                nisa.dma_copy(dst=some(), src=source[:, at : at + 32])
            elif kind == 1:
                nisa.dma_copy(dst=result[:, at : at + 32], src=some())
            elif kind == 2:
                dst = some()
                nisa.tensor_tensor(dst=dst, data1=others(dst), data2=others(dst), op=nl.add)
            elif kind == 3:
                dst = some()
                nisa.activation(dst=dst, op=choose.choice((nl.exp, nl.square, nl.tanh)), data=others(dst))
            elif kind == 4:
                nisa.nc_matmul(dst=choose.choice(sums)[:32, :32], stationary=some(), moving=some())
            else:
                nisa.tensor_copy(dst=some(), src=choose.choice(sums)[:, at : at + 32])
        nisa.dma_copy(dst=result[:, :32], src=source[:, :32])

    return traced(body, 64)


@settings(max_examples=25, deadline=None)
@given(small_programs())
def test_every_schedule_respects_engines_and_memory(program: Program) -> None:
    audit(time(program))


@settings(max_examples=25, deadline=None)
@given(small_programs(), st.sampled_from([TRN1, TRN2, TRN3]))
def test_the_two_times_bound_each_other(program: Program, machine: Machine) -> None:
    timeline = time(program, machine)
    assert timeline.resource_bound_us <= timeline.latency_us
    prices = [timeline.costs[t] for t in timeline.program.template_ids.tolist()]
    one_by_one = sum(price.busy_ns + price.latency_ns for price in prices)
    one_by_one += sum(price.transfer.start_ns + price.transfer.engine_ns for price in prices if price.transfer)
    slow = machine.throttle_factor * (one_by_one + 2 * machine.tensor_wait_ns * len(prices))
    assert timeline.latency_us * 1e3 <= slow + machine.activation_table_load_ns * timeline.table_loads + 1e-6


FASTER = (
    "tensor_clock_ghz",
    "vector_clock_ghz",
    "scalar_clock_ghz",
    "gpsimd_clock_ghz",
    "dma_engine_bytes_per_ns",
    "stationary_columns_per_cycle",
)


@settings(max_examples=15, deadline=None)
@given(small_programs(), st.sampled_from(FASTER), st.floats(1.01, 8))
def test_a_higher_clock_or_bandwidth_never_raises_the_resource_bound(program, name, factor) -> None:
    faster = replace(TRN2, **{name: getattr(TRN2, name) * factor})
    assert time(program, faster).resource_bound_us <= time(program).resource_bound_us * (1 + 1e-12)


@settings(max_examples=15, deadline=None)
@given(small_programs(), st.randoms(use_true_random=False))
def test_removing_an_instruction_never_raises_the_resource_bound(program: Program, choose: random.Random) -> None:
    gone = choose.randrange(len(program))
    keep = np.arange(len(program)) != gone
    counts = np.diff(program.operand_starts)
    starts = np.concatenate(([0], np.cumsum(counts[keep])))
    changed = {
        "template_ids": program.template_ids[keep],
        "operand_starts": starts,
        "operand_data": program.operand_data[np.repeat(keep, counts)],
    }
    smaller = Program(**{f.name: changed.get(f.name, getattr(program, f.name)) for f in fields(Program)})
    costs = time(program).costs
    assert resource_bound(smaller, costs, TRN2)[0] <= resource_bound(program, costs, TRN2)[0]


TILES = 8


def fetched_and_squared_us(timeline: Timeline) -> float:
    """What the stream's tiles take when each is fetched only after the one before has been squared."""
    load, square = (timeline.costs[t] for t in timeline.program.template_ids[:2])
    assert load.transfer is not None and square.resource == "scalar"
    fetched_ns = load.busy_ns + load.transfer.start_ns + load.transfer.engine_ns + load.latency_ns
    return TILES * (fetched_ns + square.busy_ns) / 1e3


def test_fresh_tiles_overlap_and_where_nothing_is_renamed_a_hoisted_tile_serialises() -> None:
    hoisted, fresh = time(stream(512, TILES, hoisted=True), compiled_by_beta1(TRN2)), time(stream(512, TILES))
    assert hoisted.latency_us > fetched_and_squared_us(hoisted)
    assert fresh.latency_us < fetched_and_squared_us(fresh)
    assert time(stream(512, TILES, hoisted=True)).latency_us == fresh.latency_us


@pytest.mark.parametrize("room", [1, 2, 3])
def test_tiles_run_ahead_as_far_as_there_is_memory(room: int) -> None:
    """Squaring is slow here, so that loads would run ahead if they could. A tile and its square are of one size."""
    machine = replace(TRN2, sbuf_partition_bytes=2 * room * 4 * 512, scalar_clock_ghz=0.05)
    timeline = time(stream(512, TILES), machine)
    resources = [timeline.costs[t].resource for t in timeline.program.template_ids.tolist()]
    squares = [i for i, resource in enumerate(resources) if resource == "scalar"]
    loads = [i for i, resource in enumerate(resources) if resource != "scalar" and not outward(timeline, i)]
    assert len(loads) == len(squares) == TILES
    for at in range(room, TILES):
        freed = timeline.end_ns[squares[at - room]]
        assert freed <= timeline.issued_ns[loads[at]] < timeline.end_ns[squares[at - room + 1]]
    audit(timeline)


def test_disjoint_tiles_of_one_hbm_tensor_do_not_wait_for_each_other() -> None:
    def body(source: Any, result: Any) -> None:
        for at in range(4):
            here = slice(128 * at, 128 * at + 128)
            nisa.dma_copy(dst=result[:, here], src=source[:, here])
            nisa.dma_copy(dst=result[:, here], src=source[:, here])  # overwrites: must wait for the first

    timeline = time(traced(body))
    assert timeline.cause.tolist() == [-1, 0, -1, 2, -1, 4, -1, 6]
    audit(timeline)


def test_accumulating_matmuls_follow_each_other_without_a_pause() -> None:
    def body(source: Any, result: Any) -> None:
        values, total = tile(), tile(buffer=nl.psum)
        nisa.memset(dst=values, value=0.0)
        for _ in range(8):
            nisa.nc_matmul(dst=total, stationary=values[:, :P], moving=values)
        nisa.dma_copy(dst=result, src=source)

    timeline = time(traced(body), replace(TRN2, throttle_factor=1.0))
    each = TRN2.tensor_fp32_passes * (512 / TRN2.tensor_clock_ghz + TRN2.tensor_pass_ns)
    assert np.diff(timeline.start_ns[1:9]) == pytest.approx(each)


def test_a_product_that_overwrites_another_ones_sum_follows_it_without_a_pause() -> None:
    def body(source: Any, result: Any) -> None:
        values, turned = filled(tile(P)), tile(P, buffer=nl.psum)
        for _ in range(4):
            nisa.nc_transpose(dst=turned, data=values, engine=nisa.engine.tensor)
        out = tile()
        nisa.tensor_copy(dst=out[:, :P], src=turned)
        nisa.dma_copy(dst=result[:, :P], src=out[:, :P])

    timeline = time(traced(body))
    rows = rows_on(timeline, "tensor")
    assert len(rows) == 4
    assert timeline.start_ns[rows[1:]] == pytest.approx(timeline.end_ns[rows[:-1]])


def test_tensor_engine_waits_once_for_each_transfer_whose_data_it_reads() -> None:
    def body(source: Any, result: Any) -> None:
        weights, values = tile(P, nl.bfloat16), tile(dtype=nl.bfloat16)
        nisa.dma_copy(dst=weights, src=source[:, :P])
        nisa.dma_copy(dst=values, src=source)
        for _ in range(3):
            nisa.nc_matmul(dst=tile(buffer=nl.psum), stationary=weights, moving=values)
        nisa.dma_copy(dst=result, src=source)

    timeline = time(traced(body, dtype=dtypes.bfloat16), replace(TRN2, throttle_factor=1.0))
    durations = (timeline.end_ns - timeline.start_ns)[2:5]
    each = 512 / TRN2.tensor_clock_ghz + TRN2.tensor_pass_ns
    assert durations == pytest.approx([each + 2 * TRN2.tensor_wait_ns, each, each])


def test_an_explicit_edge_is_obeyed() -> None:
    def pair(edge: bool) -> Timeline:
        def body(source: Any, result: Any) -> None:
            slow = nisa.dma_copy(dst=tile(), src=source)
            quick = nisa.memset(dst=tile(), value=0.0)
            if edge:
                quick.depends_on(slow)
            nisa.dma_copy(dst=result, src=source)

        return time(traced(body))

    free, bound = pair(False), pair(True)
    assert free.start_ns[1] == 0
    assert bound.start_ns[1] >= bound.end_ns[0]


def test_switching_activation_functions_reloads_the_table() -> None:
    def body(functions: Any) -> Any:
        def inner() -> None:
            for function in functions:
                nisa.activation(dst=tile(), op=function, data=tile())

        return inner

    grouped = time(instruction(body([nl.exp] * 4 + [nl.tanh] * 4)))
    mixed = time(instruction(body([nl.exp, nl.tanh] * 4)))
    assert (grouped.table_loads, mixed.table_loads) == (2, 8)
    more = 6 * TRN2.activation_table_load_ns / 1e3
    assert mixed.latency_us - grouped.latency_us == pytest.approx(more, rel=0.01)
    assert time(instruction(body([nl.exp, nl.square] * 4))).table_loads == 1  # square is in every table


def halves(rows: tuple[int, ...], count: int = 20) -> Timeline:
    """Products of 64 rows, in turns on the halves of the array that start at these rows; no rows: untiled."""

    def body(source: Any, result: Any) -> None:
        weights, values = tile(P, nl.bfloat16), tile(dtype=nl.bfloat16)
        nisa.memset(dst=weights, value=1.0)
        nisa.memset(dst=values, value=1.0)
        for at in range(count):
            row = rows[at % len(rows)] if rows else 0
            where = {"tile_position": (row, 0), "tile_size": (64, P)} if rows else {}
            half = slice(row, row + 64)
            nisa.nc_matmul(dst=tile(buffer=nl.psum), stationary=weights[half], moving=values[half], **where)
        nisa.dma_copy(dst=result, src=source)

    return time(traced(body), replace(TRN2, throttle_factor=1.0))


def span_ns(timeline: Timeline) -> float:
    """From the first product's start to the last one's end."""
    products = [i for i, t in enumerate(timeline.program.template_ids) if timeline.costs[t].resource == "tensor"]
    return float(timeline.end_ns[products].max() - timeline.start_ns[products].min())


def test_products_on_two_halves_of_the_array_run_side_by_side() -> None:
    one = span_ns(halves((), count=1))
    assert span_ns(halves(())) == pytest.approx(20 * one)
    assert span_ns(halves((0, 64))) == pytest.approx(10.5 * one)  # the second half starts half a product later


def test_a_product_of_the_whole_array_waits_for_both_halves() -> None:
    def body() -> None:
        weights, values = tile(P, nl.bfloat16), tile(dtype=nl.bfloat16)
        for row in (0, 64):
            half = slice(row, row + 64)
            nisa.nc_matmul(
                dst=tile(buffer=nl.psum),
                stationary=weights[half],
                moving=values[half],
                tile_position=(row, 0),
                tile_size=(64, P),
            )
        nisa.nc_matmul(dst=tile(buffer=nl.psum), stationary=weights, moving=values)

    timeline = time(instruction(body), replace(TRN2, throttle_factor=1.0))
    assert timeline.start_ns[2] >= timeline.end_ns[:2].max()
    assert timeline.start_ns[1] < timeline.end_ns[0]


def test_on_trn1_vector_and_scalar_take_turns_in_psum() -> None:
    def body() -> None:
        nisa.tensor_copy(dst=tile(), src=tile(buffer=nl.psum), engine=nisa.engine.vector)
        nisa.activation(dst=tile(), op=nl.square, data=tile(buffer=nl.psum))

    program = instruction(body)
    assert time(program).start_ns[1] == 0
    together = schedule(program, TRN1)
    assert together.start_ns[1] >= together.end_ns[0]


def test_transfers_on_one_queue_are_issued_one_after_the_other_and_queues_in_parallel() -> None:
    def loads(queues: Any) -> Timeline:
        def body(source: Any, result: Any) -> None:
            for at in range(8):
                nisa.dma_copy(dst=tile(8), src=source[:, 8 * at : 8 * at + 8], engine=queues[at % len(queues)])
            nisa.dma_copy(dst=result, src=source)

        return time(traced(body))

    one = loads([nisa.engine.sync])
    assert np.diff(one.issued_ns[:8]) == pytest.approx(TRN2.dma_hardware_issue_ns)
    two = loads([nisa.engine.sync, nisa.engine.scalar])
    assert two.end_ns[:8].max() < one.end_ns[:8].max()


def test_software_writes_a_descriptor_per_partition_and_loads_follow_each_other() -> None:
    def body(source: Any, result: Any) -> None:
        buffer = tile(8)
        for at in range(0, P, 32):
            nisa.dma_copy(dst=buffer[at : at + 32], src=source[at : at + 32])
        nisa.dma_copy(dst=result, src=source)

    timeline = time(traced(body, 8))
    each = TRN2.dma_software_issue_ns + 32 * TRN2.dma_software_descriptor_ns
    assert np.diff(timeline.issued_ns[:4]) == pytest.approx(each)
    assert timeline.start_ns[0] == TRN2.dma_software_start_ns


def test_a_store_that_has_to_wait_does_not_hold_up_the_loads_behind_it() -> None:
    def body(source: Any, result: Any) -> None:
        first, squared, others = tile(), tile(), [tile() for _ in range(3)]
        nisa.dma_copy(dst=first, src=source)
        nisa.activation(dst=squared, op=nl.square, data=first)
        nisa.dma_copy(dst=result, src=squared)
        for at, other in enumerate(others):
            nisa.dma_copy(dst=other[:, at:], src=source[:, at:])

    timeline = time(traced(body))
    audit(timeline)
    store = next(i for i in range(6) if i != 1 and outward(timeline, i))
    loads = [i for i in range(6) if i not in (1, store)]
    each = TRN2.dma_software_issue_ns + P * TRN2.dma_software_descriptor_ns
    issued = timeline.issued_ns[loads]
    assert issued[:3] == pytest.approx([0, each, 2 * each])
    assert issued[2] < timeline.ready_ns[store]


def test_loads_that_overtake_stores_make_no_time_of_nothing() -> None:
    """Stores keep the end that they were given when loads take turns with them; the kernel lasts for all the work."""

    def body(source: Any, result: Any) -> None:
        kept = tile(4096)
        nisa.memset(dst=kept, value=0.0)
        for _ in range(16):
            nisa.dma_copy(dst=result, src=kept, engine=nisa.engine.sync)
        for _ in range(16):
            nisa.dma_copy(dst=tile(4096), src=source, engine=nisa.engine.scalar)

    timeline = time(traced(body, 4096), replace(TRN2, reload_window_bytes=0))
    moves = [move(timeline, row) for row, n in enumerate(timeline.program.template_ids) if timeline.costs[n].transfer]
    work_us = sum(each.engine_ns for each in moves) / 1e3
    assert len(moves) == 32 and timeline.latency_us >= work_us * (1 - 1e-9)


def chains() -> Program:
    """Of products through Scalar, one after the other."""

    def body(source: Any, result: Any) -> None:
        weights, values = filled(tile(P, nl.bfloat16)), [filled(tile(dtype=nl.bfloat16)) for _ in range(6)]
        for each in values:
            for _ in range(3):
                total = tile(buffer=nl.psum)
                nisa.nc_matmul(dst=total, stationary=weights, moving=each)
                nisa.activation(dst=each, op=nl.exp, data=total)
        nisa.dma_copy(dst=result, src=source)

    return traced(body)


def test_tensor_runs_ahead_only_while_it_waits_for_a_transfer() -> None:
    """Row N032 (attention of several heads): between products that wait for another engine there is no later one."""
    now, beta1 = schedule(chains(), TRN2), schedule(chains(), compiled_by_beta1(TRN2))
    assert now.latency_us > 1.2 * beta1.latency_us
    assert rows_on(now, "tensor") == sorted(rows_on(now, "tensor"))
    assert rows_on(beta1, "tensor") != sorted(rows_on(beta1, "tensor"))
    loads = matmul(1024, 256, 1024)
    assert schedule(loads, TRN2).latency_us == schedule(loads, compiled_by_beta1(TRN2)).latency_us
