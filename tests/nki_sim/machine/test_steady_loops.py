"""Long loops are timed from a few iterations, and agree with timing all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from traced_kernels import P, filled, matmul, nisa, nl, stream, tile, traced

from benchmarks import calibration_kernels as calibration
from nki_sim import schedule as scheduling
from nki_sim.machine import TRN2
from nki_sim.profile import measure
from nki_sim.program import Program
from nki_sim.schedule import schedule
from nki_sim.steady import Extrapolation, find_repetition, shorten

COUNTERS = ("hbm_read_bytes", "hbm_write_bytes", "hardware_flops", "dma_transfer_count", "matmul_instruction_count")


@pytest.mark.parametrize(
    ("ids", "start", "period", "count"),
    [
        ([0, 1, 2] * 40, 0, 3, 40),
        ([9, 9] + [0, 1, 2, 2] * 40 + [7], 2, 4, 40),
        ([0] + [1, 2, 1, 2, 3] * 40, 1, 5, 40),
    ],
    ids=["whole", "with a prologue and an epilogue", "outer of two loops"],
)
def test_the_main_loop_is_found(ids: list[int], start: int, period: int, count: int) -> None:
    found = find_repetition(np.array(ids))
    assert found is not None
    assert (found.start, found.period, found.count) == (start, period, count)


def test_a_stream_without_a_loop_has_none() -> None:
    assert find_repetition(np.arange(50)) is None


def products(rows: int, each: int, dtype: Any, full: int = 0, count: int = 24_000) -> Program:
    """Sums of `each` products of `rows` rows, of which `full` take all rows; the array is warm before."""

    def body(source: Any, result: Any) -> None:
        weights, values, kept = filled(tile(P, dtype)), filled(tile(512, dtype)), tile()
        for _ in range(64):
            nisa.nc_matmul(dst=tile(buffer=nl.psum), stationary=weights, moving=values)
        for _ in range(count // each):
            total = tile(buffer=nl.psum)
            for at in range(each):
                here = slice(0, P if at < full else rows)
                nisa.nc_matmul(dst=total, stationary=weights[here], moving=values[here])
            nisa.tensor_copy(dst=kept, src=total)
        nisa.dma_copy(dst=result, src=source)

    return traced(body)


STEADY: dict[str, Callable[[], Program]] = {
    "matmul": lambda: matmul(1024, 4096, 8192),
    "blocked matmul": lambda: calibration.matmul_blocked(256, 131072, 1024, 1, 1),
    "loads inside": lambda: calibration.matmul_loads_inside(4096, 2048, 8192),
    "adamw, 64": lambda: calibration.adamw(64),
    "adamw, 128": lambda: calibration.adamw(128),
    **{
        f"stream of {columns}{', hoisted' if hoisted else ''}": partial(stream, columns, 3000, hoisted)
        for columns in (64, 128, 512, 1024)
        for hoisted in (False, True)
    },
    **{
        f"products of {rows} rows, {each} a sum, {dtype}": partial(products, rows, each, getattr(nl, dtype))
        for rows in (32, 60, 62, 63, 64, 65, 66, 68, 72, 96, 128)
        for each in (4, 16)
        for dtype in ("bfloat16", "float32")
    },
}
"""Some fifty programs whose loop repeats exactly."""


@pytest.mark.parametrize("name", STEADY)
def test_extrapolated_and_exact_times_agree_within_the_stated_error(name: str) -> None:
    program = STEADY[name]()
    assert shorten(program, TRN2) is not None, "the shortcut must apply for this test to mean anything"
    exact, quick = schedule(program, TRN2, exact=True), schedule(program, TRN2, exact=False)
    assert exact.exact and exact.error_percent == 0
    assert not quick.exact and quick.error_percent < 1
    assert quick.latency_us == pytest.approx(exact.latency_us, rel=quick.error_percent / 100)
    assert quick.resource_bound_us == exact.resource_bound_us


@pytest.mark.parametrize("each", [104, 110, 120])
def test_a_throttle_that_turns_after_what_is_timed_is_seen(each: int) -> None:
    """Each sum lacks so little of half the array's work that thousands of products go by before it is cold."""
    program = products(64, each, nl.bfloat16, full=1, count=48_000)
    assert shorten(program, TRN2) is not None
    exact, quick = schedule(program, TRN2, exact=True), schedule(program, TRN2, exact=False)
    assert exact.throttled_us > 0.2 * exact.latency_us
    assert quick.latency_us == exact.latency_us and quick.exact


def test_counters_are_never_extrapolated() -> None:
    program = matmul(1024, 4096, 8192)
    exact, quick = measure(program, exact=True), measure(program, exact=False)
    assert not quick.exact
    assert {name: quick.fields[name] for name in COUNTERS} == {name: exact.fields[name] for name in COUNTERS}
    assert quick.fields["tensor_engine_active_time"] == pytest.approx(
        exact.fields["tensor_engine_active_time"], rel=0.02
    )
    assert quick.lines == exact.lines


def test_long_programs_are_extrapolated_unless_that_cannot_be_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    program = stream(128, 3000)
    assert schedule(program, TRN2).exact  # short enough to look at every instruction
    monkeypatch.setattr(scheduling, "EXACT_UP_TO", 1000)
    assert not schedule(program, TRN2).exact
    assert schedule(program, TRN2, exact=True).exact
    monkeypatch.setattr(scheduling, "extrapolation", lambda *_: Extrapolation(1e6, 0.5))  # two estimates that disagree
    assert schedule(program, TRN2).exact
    doubtful = schedule(program, TRN2, exact=False)
    assert not doubtful.exact and doubtful.error_percent > 1


def test_explicit_edges_are_timed_exactly() -> None:
    def body(source: object, result: object) -> None:
        before = None
        for _ in range(4000):
            now = nisa.memset(dst=tile(8), value=0.0)
            if before is not None:
                now.depends_on(before)
            before = now
        nisa.dma_copy(dst=result, src=source)

    timeline = schedule(traced(body, 8), TRN2, exact=False)
    assert timeline.exact


def test_a_device_loop_counts_with_all_its_passes() -> None:
    def looped(trips: int) -> Program:
        def body(source: object, result: object) -> None:
            values = tile(512)

            def once(_: object) -> None:
                nisa.tensor_tensor(dst=values, data1=values, data2=values, op=nl.add)

            nisa.memset(dst=values, value=0.0)
            nl.fori_loop(0, trips, once)
            nisa.dma_copy(dst=result, src=values)

        return traced(body)

    ten, twenty = measure(looped(10)), measure(looped(20))
    assert twenty.fields["vector_engine_instruction_count"] - ten.fields["vector_engine_instruction_count"] == 10
    each = (
        512 + TRN2.vector_issue_cycles
    ) / TRN2.vector_clock_ghz + TRN2.vector_latency_ns  # every pass waits for the one before
    assert twenty.latency_us - ten.latency_us == pytest.approx(10 * each / 1e3)
