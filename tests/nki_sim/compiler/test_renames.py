"""A tile that is written anew as a whole is a new one; one that keeps something of what it held is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nki_sim.execution.executor import execute
from nki_sim.machine import TRN2, compiled_by_beta1
from nki_sim.program.program import Program
from nki_sim.timing.compiler.renames import with_a_tile_for_each_content
from nki_sim.timing.schedule import schedule
from tests.nki_sim.compiler.random_kernels import shared_tiles, source
from tests.nki_sim.machine.timeline_audit import audit
from tests.nki_sim.machine.traced_kernels import nisa, nl, stream, tile, traced


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
