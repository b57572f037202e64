"""When instructions run: dependences, memory, engines, and the two times that bound each other."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_audit import audit, rows_on
from traced_kernels import P, instruction, matmul, nisa, nl, stream, tile, traced

from nki_sim.compiler.spills import most_live
from nki_sim.machine import ISA, TRN1, TRN2, TRN3, Machine
from nki_sim.program import Program
from nki_sim.schedule import Timeline, resource_bound, schedule


def time(program: Program, machine: Machine = TRN2) -> Timeline:
    return schedule(program, machine)


# --- any program --------------------------------------------------------------------------------


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

        for _ in range(length):
            kind = choose.randrange(6)
            at = choose.choice((0, 16, 32))
            if kind == 0:
                nisa.dma_copy(dst=some(), src=source[:, at : at + 32])
            elif kind == 1:
                nisa.dma_copy(dst=result[:, at : at + 32], src=some())
            elif kind == 2:
                nisa.tensor_tensor(dst=some(), data1=some(), data2=some(), op=nl.add)
            elif kind == 3:
                nisa.activation(dst=some(), op=choose.choice((nl.exp, nl.square, nl.tanh)), data=some())
            elif kind == 4:
                nisa.nc_matmul(dst=choose.choice(sums)[:32, :32], stationary=some(), moving=some())
            else:
                nisa.tensor_copy(dst=some(), src=choose.choice(sums)[:, at : at + 32])
        nisa.dma_copy(dst=result[:, :32], src=source[:, :32])

    return traced(body, 64)


@settings(max_examples=25, deadline=None)
@given(small_programs(), st.sampled_from([TRN1, TRN2, TRN3]))
def test_every_schedule_respects_engines_and_memory(program: Program, machine: Machine) -> None:
    audit(time(program, machine))


@settings(max_examples=15, deadline=None)
@given(small_programs())
def test_every_schedule_of_what_is_spilled_does_too(program: Program) -> None:
    cramped = replace(TRN2, sbuf_partition_bytes=3 * 64 * 4)
    timeline = time(program, cramped)
    assert most_live(timeline.program) <= ISA.quadrants * cramped.sbuf_partition_bytes
    audit(timeline)


@settings(max_examples=25, deadline=None)
@given(small_programs(), st.sampled_from([TRN1, TRN2, TRN3]))
def test_the_two_times_bound_each_other(program: Program, machine: Machine) -> None:
    timeline = time(program, machine)
    assert timeline.resource_bound_us <= timeline.latency_us * (1 + 1e-12)
    latencies = np.array([price.latency_ns for price in timeline.costs])[timeline.shown.template_ids]
    assert timeline.latency_us == pytest.approx((timeline.end_ns + latencies).max() / 1e3), "not raised to the bound"


def test_the_audit_finds_faults() -> None:
    timeline = time(stream(64, 6), replace(TRN2, sbuf_partition_bytes=2 * 4 * 64))
    audit(timeline)
    functions, loads = rows_on(timeline, "scalar"), rows_on(timeline, "dma.gpsimd")
    early = timeline.start_ns.copy(), timeline.issued_ns.copy(), timeline.end_ns.copy()
    for fault in (functions[3], loads[4], loads[-1]):
        start, issued, end = (times.copy() for times in early)
        start[fault], issued[fault], end[fault] = 0.0, 0.0, end[fault] - start[fault]
        with pytest.raises(AssertionError):
            audit(replace(timeline, start_ns=start, issued_ns=issued, end_ns=end))
    with pytest.raises(AssertionError, match="bytes of sbuf in use"):
        audit(replace(timeline, machine=replace(TRN2, sbuf_partition_bytes=2 * 4 * 64 - 1)))


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
def test_a_higher_clock_or_bandwidth_never_raises_the_resource_bound(
    program: Program, name: str, factor: float
) -> None:
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


def test_the_same_program_always_takes_the_same_time() -> None:
    first, second = time(stream(512, 8)), time(stream(512, 8))
    assert first.latency_us == second.latency_us
    assert np.array_equal(first.start_ns, second.start_ns)


# --- memory handed on -----------------------------------------------------------------------------


def test_fresh_tiles_overlap_and_a_hoisted_tile_serialises() -> None:
    assert time(stream(512, 8, hoisted=True)).latency_us > 1.5 * time(stream(512, 8)).latency_us


def test_fresh_tiles_with_space_or_places_for_one_only_are_a_hoisted_tile() -> None:
    hoisted = time(stream(512, 8, hoisted=True))
    for narrow in (replace(TRN2, sbuf_partition_bytes=2 * 4 * 512), replace(TRN2, rotation_depth=1)):
        timeline = time(stream(512, 8), narrow)
        assert timeline.latency_us == pytest.approx(hoisted.latency_us)
        audit(timeline)


def test_the_next_accumulator_does_not_wait_while_psum_has_a_bank_for_it() -> None:
    def products(accumulators: int) -> Program:
        def body(source: Any, result: Any) -> None:
            weights, values = tile(P), tile()
            nisa.dma_copy(dst=weights, src=source[:, :P])
            nisa.dma_copy(dst=values, src=source)
            for _ in range(accumulators):
                total = tile(buffer=nl.psum)
                nisa.nc_matmul(dst=total, stationary=weights, moving=values)
                kept = tile()
                nisa.tensor_copy(dst=kept, src=total)
                nisa.dma_copy(dst=result, src=kept)

        return traced(body)

    def second_start(machine: Machine) -> float:
        timeline = time(products(2), machine)
        starts = [
            timeline.start_ns[i]
            for i, t in enumerate(timeline.shown.template_ids.tolist())
            if timeline.costs[t].resource == "tensor"
        ]
        return float(starts[1])

    assert second_start(TRN2) < second_start(replace(TRN2, psum_banks=1))


# --- dependences ----------------------------------------------------------------------------------


def test_disjoint_tiles_of_one_hbm_tensor_do_not_wait_for_each_other() -> None:
    def body(source: Any, result: Any) -> None:
        for at in range(4):
            here = slice(128 * at, 128 * at + 128)
            nisa.dma_copy(dst=result[:, here], src=source[:, here])
            nisa.dma_copy(dst=result[:, here], src=source[:, here])  # overwrites: must wait for the first

    timeline = time(traced(body))
    assert timeline.cause.tolist() == [-1, 0, -1, 2, -1, 4, -1, 6]
    audit(timeline)


def test_a_tile_that_straddles_two_others_waits_for_both() -> None:
    def body(source: Any, result: Any) -> None:
        buffer = tile(256)
        nisa.dma_copy(dst=buffer[:, :128], src=source[:, :128])
        nisa.dma_copy(dst=buffer[:, 128:], src=source[:, 128:256])
        nisa.dma_copy(dst=result[:, 64:192], src=buffer[:, 64:192])

    timeline = time(traced(body))
    assert timeline.ready_ns[2] >= max(timeline.end_ns[0], timeline.end_ns[1])


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


# --- what engines remember ------------------------------------------------------------------------


def test_switching_activation_functions_reloads_the_table() -> None:
    def body(functions: Any) -> Any:
        def inner() -> None:
            for function in functions:
                nisa.activation(dst=tile(), op=function, data=tile())

        return inner

    grouped = time(instruction(body([nl.exp] * 4 + [nl.tanh] * 4)))
    mixed = time(instruction(body([nl.exp, nl.tanh] * 4)))
    assert (grouped.table_loads, mixed.table_loads) == (2, 8)
    assert mixed.latency_us - grouped.latency_us == pytest.approx(6 * 1.283, rel=0.01)
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


def test_products_on_the_same_half_of_the_array_take_turns_and_gain_nothing() -> None:
    assert span_ns(halves((0,))) == pytest.approx(span_ns(halves(())))
    assert span_ns(halves((64,))) == pytest.approx(span_ns(halves(())))


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


def test_vector_in_a_performance_mode_and_gpsimd_take_turns() -> None:
    def body() -> None:
        nisa.tensor_copy(dst=tile(2048, nl.bfloat16), src=tile(2048, nl.bfloat16))
        nisa.tensor_tensor(tile(), tile(), tile(), nl.add, engine=nisa.engine.gpsimd)

    timeline = time(instruction(body))
    assert timeline.start_ns[1] >= timeline.end_ns[0]

    def apart() -> None:
        nisa.tensor_tensor(tile(), tile(), tile(), nl.add)
        nisa.tensor_tensor(tile(), tile(), tile(), nl.add, engine=nisa.engine.gpsimd)

    assert time(instruction(apart)).start_ns[1] == 0
    trn1 = schedule(instruction(apart), TRN1)
    assert trn1.start_ns[1] >= trn1.end_ns[0]  # there they always share


def test_on_trn1_vector_and_scalar_take_turns_in_psum() -> None:
    def body() -> None:
        nisa.tensor_copy(dst=tile(), src=tile(buffer=nl.psum), engine=nisa.engine.vector)
        nisa.activation(dst=tile(), op=nl.square, data=tile(buffer=nl.psum))

    program = instruction(body)
    assert time(program).start_ns[1] == 0
    together = schedule(program, TRN1)
    assert together.start_ns[1] >= together.end_ns[0]


# --- DMA ------------------------------------------------------------------------------------------


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


def test_transfers_over_different_partitions_use_different_engines() -> None:
    def loads(partitions: int) -> Timeline:
        def body(source: Any, result: Any) -> None:
            buffer = tile(4096)
            for at in range(0, P, partitions):
                nisa.dma_copy(dst=buffer[at : at + partitions], src=source[at : at + partitions])
            nisa.dma_copy(dst=result, src=source)

        return time(traced(body, 4096), replace(TRN2, dma_software_issue_ns=1.0, dma_software_descriptor_ns=0.0))

    quarters = loads(32)
    starts = quarters.start_ns[:4]
    assert starts.max() - starts.min() < 10  # all at once, each on four engines of its own


def test_the_loads_of_a_matmul_hide_behind_its_products() -> None:
    program = matmul(2048, P, 512)  # no tile is loaded twice
    one_place = time(program, replace(TRN2, rotation_depth=1))
    timeline = time(program)
    audit(timeline)
    assert timeline.latency_us < 0.6 * one_place.latency_us
