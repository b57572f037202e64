"""What is moved out to HBM and back, and which tiles are new ones: counted by hand, and computing the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.execution.executor import execute
from nki_sim.machine import ISA, TRN2, Machine, compiled_by_beta1
from nki_sim.program.program import Edge, Program
from nki_sim.timing.compiler import spills
from nki_sim.timing.compiler.renames import with_a_tile_for_each_content
from nki_sim.timing.compiler.spills import Spill, most_live, with_spills
from nki_sim.timing.schedule import compiled, schedule
from tests.nki_sim.compiler.random_kernels import TILE_BYTES, shared_tiles, source
from tests.nki_sim.machine.timeline_audit import audit
from tests.nki_sim.machine.traced_kernels import P, nisa, nl, stream, tile, traced

COLUMNS = 512
TILE = P * COLUMNS * 4
"""Bytes of a whole tile."""


def space_for(tiles: int, partition_bytes: int = 4 * COLUMNS) -> Machine:
    return replace(TRN2, sbuf_partition_bytes=tiles * partition_bytes)


def moved(program: Program, machine: Machine) -> tuple[int, int]:
    """(bytes saved, bytes reloaded), by the profile of what is scheduled."""
    timeline = schedule(program, machine)
    total = {False: 0, True: 0}
    for number in timeline.program.template_ids.tolist():
        attrs, move = timeline.program.templates[number].attrs, timeline.costs[number].transfer
        if isinstance(attrs, Spill):
            assert move is not None
            total[attrs.reload] += move.nbytes
    return total[False], total[True]


def sums(count: int, columns: int = COLUMNS) -> Program:
    """Loads one tile, makes `count` others of it and keeps all until they are stored, in the order they were made."""

    def body(given: Any, result: Any) -> None:
        loaded = tile(columns)
        nisa.dma_copy(dst=loaded, src=given)
        kept = [tile(columns) for _ in range(count)]
        for each in kept:
            nisa.tensor_tensor(dst=each, data1=loaded, data2=loaded, op=nl.add)
        for each in kept:
            nisa.dma_copy(dst=result, src=each)

    return traced(body, columns)


@pytest.mark.parametrize(("count", "space", "out"), [(3, 3, 1), (5, 4, 2), (8, 3, 6)])
def test_as_many_tiles_are_moved_as_do_not_fit(count: int, space: int, out: int) -> None:
    # while they are made, the loaded tile and `space - 1` others are in SBUF; the rest is out once and comes back once
    assert count - (space - 1) == out
    assert moved(sums(count), space_for(space)) == (out * TILE, out * TILE)


def test_out_goes_the_tile_whose_next_use_lies_furthest_ahead() -> None:
    program = with_spills(sums(3), space_for(3))
    rows = [(program.templates[n].opcode, program.templates[n].attrs) for n in program.template_ids.tolist()]
    assert [opcode for opcode, _ in rows] == [
        "dma_copy",
        *["tensor_tensor"] * 2,
        "dma_copy",
        "tensor_tensor",
        *["dma_copy"] * 4,
    ]
    at = [row for row, (_, attrs) in enumerate(rows) if isinstance(attrs, Spill)]
    saved, back = (program.operand_data[program.operand_starts[row] :][:2, 0].tolist() for row in at)
    second = program.operand_data[program.operand_starts[2], 0]
    assert saved[1] == second and saved[0] == back[1], "the second is stored after the first"
    assert at == [3, 6], "it leaves for the third, and comes back when the first has been stored"


def test_spills_take_time_and_are_not_in_the_bound() -> None:
    program = sums(8)
    roomy, cramped = schedule(program, TRN2), schedule(program, space_for(3))
    assert cramped.latency_us > roomy.latency_us
    assert cramped.resource_bound_us == pytest.approx(roomy.resource_bound_us)
    assert cramped.resource_us == pytest.approx(roomy.resource_us)


def kept(fill: str) -> Program:
    """One tile that is used at the beginning and at the end of `sums(3)`, filled in different ways."""

    def body(given: Any, result: Any) -> None:
        scratch = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.private_hbm)
        first, loaded, others = tile(), tile(), [tile() for _ in range(3)]
        if fill == "of a written tensor":
            nisa.dma_copy(dst=scratch, src=given)
            nisa.dma_copy(dst=first, src=scratch)
        elif fill == "of the input":
            nisa.dma_copy(dst=first, src=given)
        else:
            nisa.memset(dst=first, value=1.0)
        if fill == "in parts":
            nisa.memset(dst=first[:, :8], value=2.0)
        nisa.dma_copy(dst=result, src=first)
        nisa.dma_copy(dst=loaded, src=given)
        for each in others:
            nisa.tensor_tensor(dst=each, data1=loaded, data2=loaded, op=nl.add)
        for each in others:
            nisa.dma_copy(dst=result, src=each)
        nisa.dma_copy(dst=result, src=first)

    return traced(body)


@pytest.mark.parametrize(
    ("fill", "saved", "reloaded", "memsets"),
    [("with a constant", 0, 0, 2), ("in parts", 1, 1, 2), ("of the input", 0, 1, 0), ("of a written tensor", 1, 1, 0)],
)
def test_only_what_is_nowhere_else_is_saved(fill: str, saved: int, reloaded: int, memsets: int) -> None:
    program, machine = kept(fill), replace(space_for(4), reload_window_bytes=0)
    assert moved(program, machine) == (saved * TILE, reloaded * TILE)
    ready = compiled(program, machine)
    assert [ready.templates[n].opcode for n in ready.template_ids.tolist()].count("memset") == memsets


def test_a_tile_that_comes_back_unchanged_is_not_saved_again() -> None:
    def body(given: Any, result: Any) -> None:
        lasting = tile()
        nisa.memset(dst=lasting, value=1.0)
        nisa.tensor_tensor(dst=lasting, data1=lasting, data2=lasting, op=nl.add)
        for _ in range(3):
            pair = [tile() for _ in range(2)]
            for each in pair:
                nisa.memset(dst=each[:, :8], value=1.0)
                nisa.memset(dst=each[:, 8:], value=1.0)
            nisa.tensor_tensor(dst=pair[0], data1=pair[0], data2=pair[1], op=nl.add)
            nisa.tensor_tensor(dst=pair[0], data1=pair[0], data2=lasting, op=nl.add)
            nisa.dma_copy(dst=result, src=pair[0])

    assert moved(traced(body), space_for(2)) == (TILE, 3 * TILE)


def test_a_tile_of_which_little_is_used_stays_outside_after_two_times() -> None:
    uses, part = 7, 64

    def body(given: Any, result: Any) -> None:
        wide, loaded = tile(), tile()
        nisa.dma_copy(dst=loaded, src=given)
        nisa.tensor_tensor(dst=wide, data1=loaded, data2=loaded, op=nl.add)
        nisa.dma_copy(dst=result, src=loaded)
        for at in range(uses):
            here = slice(at * part, (at + 1) * part)
            pair = [tile() for _ in range(2)]
            for each in pair:
                nisa.memset(dst=each[:, :8], value=float(at))
                nisa.memset(dst=each[:, 8:], value=1.0)
            nisa.tensor_tensor(dst=pair[0], data1=pair[0], data2=pair[1], op=nl.add)
            nisa.dma_copy(dst=result, src=pair[0])
            nisa.tensor_tensor(dst=wide[:, here], data1=wide[:, here], data2=wide[:, here], op=nl.add)
        nisa.dma_copy(dst=result, src=wide)

    program, machine = traced(body), space_for(2)
    sliced = TILE * part // COLUMNS
    # Saved when the first pair comes and after each of two uses, which change it; back whole for these and at the end.
    # After that an instruction's two slices are fetched one by one, and its result is put back.
    assert moved(program, machine) == (3 * TILE + (uses - 2) * sliced, 3 * TILE + 2 * (uses - 2) * sliced)
    values = np.random.default_rng(2).standard_normal((P, COLUMNS)).astype(np.float32)
    np.testing.assert_array_equal(execute(with_spills(program, machine), [values])[0], execute(program, [values])[0])


def test_explicit_edges_hold_between_the_same_instructions() -> None:
    program = replace(sums(5), edges=(Edge(1, 9), Edge(3, 5)))
    ready = with_spills(program, space_for(3))
    assert len(ready) > len(program)
    originals = [row for row, n in enumerate(ready.template_ids) if not isinstance(ready.templates[n].attrs, Spill)]
    assert ready.edges == (Edge(originals[1], originals[9]), Edge(originals[3], originals[5]))
    timeline = schedule(program, space_for(3))
    assert timeline.start_ns[originals[9]] >= timeline.end_ns[originals[1]]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.sampled_from([0.0, 0.1, 0.6]), st.sampled_from([5, 6, 8]))
def test_what_is_spilled_computes_the_same(seed: int, length: int, whole: float, space: int) -> None:
    """With the places in HBM of tiles that mirror the input filled as well: in earnest, the input is there."""
    program = shared_tiles(seed, length, whole)
    machine = space_for(space, TILE_BYTES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spills, "_mirrors", lambda given: np.zeros(len(given.allocations), np.bool_))
        ready = compiled(program, machine)
    np.testing.assert_array_equal(execute(ready, [source()])[0], execute(program, [source()])[0])
    assert most_live(ready) <= ISA.quadrants * machine.sbuf_partition_bytes
    for_input = compiled(program, machine)
    kinds = [[repr(p.templates[n].attrs) for n in p.template_ids.tolist()] for p in (ready, for_input)]
    reloads = [each.count(repr(Spill(True))) for each in kinds]
    saves = [each.count(repr(Spill(False))) for each in kinds]
    assert reloads[0] == reloads[1] and saves[1] <= saves[0]
    assert [k for k in kinds[0] if "Spill" not in k] == [k for k in kinds[1] if "Spill" not in k]


def renamed(program: Program) -> Program:
    return with_a_tile_for_each_content(program, TRN2)


def tiles_made(body: Callable[[Any, Any], None], columns: int = 64) -> int:
    """By renaming, of a kernel whose body it is."""
    program = traced(body, columns)
    return len(renamed(program).allocations) - len(program.allocations)


def filled_twice(again: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """A tile that is loaded and stored, filled again in this way, and stored."""

    def body(given: Any, result: Any) -> None:
        only = tile(64)
        nisa.dma_copy(dst=only, src=given)
        nisa.dma_copy(dst=result, src=only)
        again(only, given)
        nisa.dma_copy(dst=result, src=only)

    return body


def in_halves(only: Any, given: Any) -> None:
    for here in (slice(0, 32), slice(32, 64)):
        nisa.dma_copy(dst=only[:, here], src=given[:, here])


AGAIN: dict[str, tuple[Callable[[Any, Any], None], int]] = {
    "by a load": (lambda only, given: nisa.dma_copy(dst=only, src=given), 1),
    "with a constant": (lambda only, given: nisa.memset(dst=only, value=0.0), 1),
    "in part": (lambda only, given: nisa.dma_copy(dst=only[:, :32], src=given[:, :32]), 0),
    "on some partitions": (lambda only, given: nisa.dma_copy(dst=only[:64], src=given[:64]), 0),
    "in halves": (in_halves, 0),
    "out of itself": (lambda only, given: nisa.tensor_tensor(dst=only, data1=only, data2=only, op=nl.add), 0),
}


@pytest.mark.parametrize(("again", "made"), AGAIN.values(), ids=AGAIN)
def test_a_whole_overwrite_is_a_new_tile_and_nothing_less(again: Callable[[Any, Any], None], made: int) -> None:
    assert tiles_made(filled_twice(again)) == made


def test_psum_and_tiles_with_addresses_keep_their_names() -> None:
    def body(given: Any, result: Any) -> None:
        kept = [tile(64, buffer=nl.psum), nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, address=(0, 0))]
        for _ in range(3):
            for each in kept:
                nisa.memset(dst=each, value=0.0)
        nisa.dma_copy(dst=result, src=given)

    assert tiles_made(body) == 0


def test_a_tile_made_before_the_loop_is_as_fast_as_one_made_in_it_but_not_by_beta1() -> None:
    """Rows Q096 and Q099: 632.7 and 633.0 us."""
    hoisted, fresh = stream(512, 12, hoisted=True), stream(512, 12)
    assert schedule(hoisted, TRN2).latency_us == schedule(fresh, TRN2).latency_us
    old = compiled_by_beta1(TRN2)
    assert renamed(fresh) is fresh and with_a_tile_for_each_content(hoisted, old) is hoisted
    assert schedule(hoisted, old).latency_us > 1.5 * schedule(fresh, old).latency_us


@pytest.mark.parametrize("seed", range(12))
def test_what_is_computed_stays_the_same(seed: int) -> None:
    program = shared_tiles(seed, 60, 0.8)
    other = renamed(program)
    for one, its in zip(execute(program, [source()]), execute(other, [source()]), strict=True):
        assert np.array_equal(one, its)
    audit(schedule(program, replace(TRN2, sbuf_partition_bytes=4096)))


def test_readers_read_the_content_before_them() -> None:
    program = traced(filled_twice(AGAIN["by a load"][0]), 64)
    data = renamed(program).operand_data[:, 0]
    load, store, again, stored = (data[program.operand_starts[row]] for row in range(4))
    sources = [data[program.operand_starts[row] + 1] for row in (1, 3)]
    assert load == sources[0] and again == sources[1] and load != again and store == stored
