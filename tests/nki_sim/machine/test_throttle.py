"""TensorE at half its clock while its array has been too little active: which products, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
import pytest
from traced_kernels import P, nisa, nl, tile, traced

from nki_sim import dtypes
from nki_sim.machine import TRN2, Machine
from nki_sim.program.program import Program
from nki_sim.timing.list_scheduler import cold_products
from nki_sim.timing.schedule import Timeline, schedule

FULL_NS = 512 / TRN2.tensor_clock_ghz + TRN2.tensor_pass_ns
"""A bf16 product of 512 columns at full clock."""
COLD_NS = TRN2.throttle_factor * FULL_NS


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
    rows = [row for row, n in enumerate(timeline.program.template_ids) if timeline.costs[n].resource == "tensor"]
    rows.sort(key=lambda row: timeline.start_ns[row])
    return timeline, timeline.start_ns[rows], (timeline.end_ns - timeline.start_ns)[rows]


def test_a_stream_over_all_rows_is_at_full_speed_once_it_has_worked_for_a_window() -> None:
    timeline, _, durations = runs(products([P] * 100))
    cold = ceil(TRN2.throttle_window_ns / COLD_NS)
    assert durations == pytest.approx([COLD_NS] * cold + [FULL_NS] * (100 - cold))
    assert timeline.throttled_us == pytest.approx(cold * (COLD_NS - FULL_NS) / 1e3)


def test_a_stream_over_half_of_the_rows_never_warms_up_but_stays_warm_for_long() -> None:
    timeline, _, cold = runs(products([P // 2] * 200))
    assert cold == pytest.approx(COLD_NS)
    assert timeline.throttled_us == pytest.approx(200 * (COLD_NS - FULL_NS) / 1e3)
    lasts = ceil(TRN2.throttle_lacking_ns / ((TRN2.throttle_utilization - 0.5) * FULL_NS))
    _, _, warmed = runs(products([P] * 40 + [P // 2] * (lasts + 100)))
    assert warmed[40:] == pytest.approx([FULL_NS] * lasts + [COLD_NS] * 100)


def test_it_waits_no_longer_for_a_transfer_while_it_is_cold() -> None:
    def body(source: Any, result: Any) -> None:
        values, total = tile(512, nl.bfloat16), tile(buffer=nl.psum)
        nisa.dma_copy(dst=values, src=source)
        for _ in range(2):
            product(values, total)
        nisa.dma_copy(dst=result, src=source)

    _, _, durations = runs(traced(body, dtype=dtypes.bfloat16))
    assert durations == pytest.approx([COLD_NS + TRN2.tensor_wait_ns, COLD_NS])


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
    for rows, after in ((int(enough) - 4, COLD_NS), (int(enough) + 4, FULL_NS)):
        assert runs(products([P] * 50 + [rows] * 400))[2][[49, -1]] == pytest.approx([FULL_NS, after])
    from_cold = TRN2.throttle_warming * TRN2.tensor_rows
    for rows, after in ((int(from_cold) - 4, COLD_NS), (int(from_cold) + 4, FULL_NS)):
        assert runs(products([rows] * 400))[2][-1] == pytest.approx(after)


def test_a_pause_cools_it_down_once_enough_work_is_lacking() -> None:
    def paused(adds: int) -> tuple[float, float]:
        """(ns for which TensorE stands still, ns of the product after it). What it lost before while it warmed up has
        the pause to catch up in."""

        def body(values: Any, total: Any) -> None:
            for _ in range(40):
                product(values, total)
            slow = tile(512, nl.bfloat16)
            nisa.tensor_copy(dst=slow, src=total)
            for _ in range(adds):
                nisa.tensor_tensor(dst=slow, data1=slow, data2=slow, op=nl.add)
            product(slow, total)

        timeline, starts, durations = runs(on_tensor(body))
        assert durations[-2] == pytest.approx(FULL_NS)
        assert timeline.throttled_us <= most_lost_ns / 1e3
        return float(starts[-1] - starts[-2] - durations[-2]), float(durations[-1])

    enough_ns = TRN2.throttle_lacking_ns / TRN2.throttle_utilization
    most_lost_ns = TRN2.throttle_window_ns
    pauses = [paused(adds) for adds in range(0, 28, 3)]
    assert pauses[0][0] < enough_ns and enough_ns + most_lost_ns < pauses[-1][0]
    for pause_ns, after in pauses:
        if not enough_ns <= pause_ns < enough_ns + most_lost_ns:
            assert after == pytest.approx(COLD_NS if pause_ns >= enough_ns else FULL_NS), pause_ns


@pytest.mark.parametrize(("duty", "gets_warm"), [(0.6, True), (0.45, False)])
def test_short_pauses_put_off_that_it_gets_warm_and_do_not_prevent_it(duty: float, gets_warm: bool) -> None:
    """Products of all rows, each followed by a pause: chunks of heads (row N038) work 0.6 of the time."""
    count = 200
    starts, busy = np.arange(count) * COLD_NS / duty, np.full(count, FULL_NS)
    is_cold = np.zeros(count, np.bool_)
    cold = cold_products(
        np.arange(count), starts, busy, busy, TRN2.throttle_warming, TRN2.throttle_utilization,
        TRN2.throttle_window_ns * (1.0 - TRN2.throttle_warming), TRN2.throttle_lacking_ns, TRN2.throttle_factor,
        is_cold, np.zeros(3),
    )  # fmt: skip
    assert cold == int(is_cold.sum()) and is_cold[:10].all()
    assert (cold < count) == gets_warm
