"""TensorE at half its clock while its array has been too little active: which products, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from traced_kernels import P, nisa, nl, tile, traced

from nki_sim import dtypes
from nki_sim.machine import TRN1, TRN2, Machine
from nki_sim.program import Program
from nki_sim.schedule import Timeline, schedule

FULL_NS = 512 / TRN2.tensor_clock_ghz + TRN2.tensor_pass_ns
"""A bf16 product of 512 columns at full clock."""
TRANSPOSE_NS = P / TRN2.tensor_clock_ghz + TRN2.tensor_pass_ns
WINDOW_NS = TRN2.throttle_window_ns


def on_tensor(body: Callable[[Any, Any], None]) -> Program:
    """body(values, total): bf16 [128, 512] in SBUF, float32 [128, 512] in PSUM."""

    def whole(source: Any, result: Any) -> None:
        values, total = tile(512, nl.bfloat16), tile(buffer=nl.psum)
        nisa.memset(dst=values, value=0.0)
        body(values, total)
        nisa.dma_copy(dst=result, src=source)

    return traced(whole)


def product(values: Any, total: Any, rows: int = P) -> None:
    nisa.nc_matmul(dst=total, stationary=values[:rows, :P], moving=values[:rows])


def products(rows: list[int]) -> Program:
    def body(values: Any, total: Any) -> None:
        for count in rows:
            product(values, total, count)

    return on_tensor(body)


def runs(program: Program, machine: Machine = TRN2) -> tuple[Timeline, np.ndarray, np.ndarray]:
    """(timeline, starts, durations) of what TensorE does, in the order of time."""
    timeline = schedule(program, machine)
    rows = [row for row, n in enumerate(timeline.shown.template_ids) if timeline.costs[n].resource == "tensor"]
    rows.sort(key=lambda row: timeline.start_ns[row])
    return timeline, timeline.start_ns[rows], (timeline.end_ns - timeline.start_ns)[rows]


def test_a_stream_over_all_rows_is_at_full_speed_once_a_window_has_been_active() -> None:
    timeline, starts, durations = runs(products([P] * 100))
    factors = durations / FULL_NS
    windows = (starts // WINDOW_NS).astype(int)
    assert factors[windows == windows[0]] == pytest.approx(TRN2.throttle_factor)
    assert factors[windows >= windows[0] + 2] == pytest.approx(1.0)  # cold, it is half active: enough, not at once
    assert timeline.throttled_us == pytest.approx((factors - 1.0).sum() * FULL_NS / 1e3)


def test_a_stream_over_half_of_the_rows_never_warms_up_but_stays_warm() -> None:
    assert 0.5 / TRN2.throttle_factor < TRN2.throttle_utilization < 0.5
    timeline, _, cold = runs(products([P // 2] * 200))
    assert cold == pytest.approx(TRN2.throttle_factor * FULL_NS)
    assert timeline.throttled_us == pytest.approx(200 * (TRN2.throttle_factor - 1.0) * FULL_NS / 1e3)
    _, _, warmed = runs(products([P] * 40 + [P // 2] * 200))
    assert warmed[-200:] == pytest.approx(FULL_NS)


def test_it_waits_no_longer_for_a_transfer_while_it_is_cold() -> None:
    def body(source: Any, result: Any) -> None:
        values, total = tile(512, nl.bfloat16), tile(buffer=nl.psum)
        nisa.dma_copy(dst=values, src=source)
        for _ in range(2):
            product(values, total)
        nisa.dma_copy(dst=result, src=source)

    _, _, durations = runs(traced(body, dtype=dtypes.bfloat16))
    cold = TRN2.throttle_factor * FULL_NS
    assert durations == pytest.approx([cold + TRN2.tensor_wait_ns, cold])


def test_halves_of_the_array_side_by_side_are_as_active_as_the_whole() -> None:
    def body(values: Any, total: Any) -> None:
        for at in range(400):
            row = 64 * (at % 2)
            half = values[row : row + 64]
            nisa.nc_matmul(
                dst=tile(512, buffer=nl.psum),
                stationary=half[:, :P],
                moving=half,
                tile_position=(row, 0),
                tile_size=(64, P),
            )

    _, starts, _ = runs(on_tensor(body))
    assert np.diff(starts)[-100:] == pytest.approx(FULL_NS / 2), "two at once, at full clock"


def test_how_many_rows_keep_it_warm_and_how_many_warm_it_up() -> None:
    enough = TRN2.throttle_utilization * TRN2.tensor_rows
    half_speed = TRN2.throttle_factor * FULL_NS
    for rows, after in ((int(enough) - 4, half_speed), (int(enough) + 4, FULL_NS)):
        assert runs(products([P] * 50 + [rows] * 50))[2][[49, -1]] == pytest.approx([FULL_NS, after])
    from_cold = TRN2.throttle_factor * enough  # at the slower clock it takes more
    for rows, after in ((int(from_cold) - 4, half_speed), (int(from_cold) + 4, FULL_NS)):
        assert runs(products([rows] * 100))[2][-1] == pytest.approx(after)


def test_single_transposes_between_products_over_half_of_the_rows_do_not_warm_it_up() -> None:
    def body(values: Any, total: Any) -> None:
        turned = tile(P, nl.bfloat16, nl.psum)
        for _ in range(150):
            product(values, total, P // 2)
            nisa.nc_transpose(dst=turned, data=values[:, :P], engine=nisa.engine.tensor)

    _, _, durations = runs(on_tensor(body))
    halves, turns = np.sort(durations)[150:], np.sort(durations)[:150]
    assert halves == pytest.approx(TRN2.throttle_factor * FULL_NS)
    assert turns == pytest.approx(TRN2.throttle_factor * TRANSPOSE_NS)


def test_a_pause_of_two_windows_cools_it_down() -> None:
    def paused(pause: int) -> np.ndarray:
        def body(values: Any, total: Any) -> None:
            for _ in range(40):
                product(values, total)
            slow = tile(512, nl.bfloat16)
            nisa.tensor_copy(dst=slow, src=total)
            for _ in range(pause):
                nisa.tensor_tensor(dst=slow, data1=slow, data2=slow, op=nl.add)
            product(slow, total)

        return runs(on_tensor(body))[2]

    each_ns = (512 / TRN2.vector_perf_tensor_16bit + TRN2.vector_issue_cycles) / TRN2.vector_clock_ghz
    assert paused(0)[-2:] == pytest.approx(FULL_NS)
    after = paused(int(2 * WINDOW_NS / each_ns) + 1)
    assert after[-2] == pytest.approx(FULL_NS)
    assert after[-1] == pytest.approx(TRN2.throttle_factor * FULL_NS)


def test_a_generation_without_a_throttle_loses_nothing() -> None:
    assert TRN1.throttle_factor == 1.0
    assert runs(products([P // 2] * 20), TRN1)[0].throttled_us == 0
