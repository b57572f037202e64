"""Sixteen DMA engines shared by all transfers: nobody gets more than there is, nobody waits without need."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.dma_pool import Backfilling, FirstComeFirstServed

ENGINES = 16


@st.composite
def transfers(draw: st.DrawFn) -> list[tuple[float, int, int, float]]:
    """(earliest start, first engine, last engine, duration), full width or not."""
    found = []
    for _ in range(draw(st.integers(1, 30))):
        first = draw(st.sampled_from([0, 0, 0, 4, 8, 15]))
        last = draw(st.sampled_from([15, first, min(15, first + 3)]))
        found.append((draw(st.floats(0, 5000)), first, last, draw(st.floats(1, 3000))))
    return found


@settings(max_examples=60, deadline=None)
@given(transfers(), st.floats(100, 2000))
def test_a_transfer_never_starts_early_nor_outruns_its_engines(
    requests: list[tuple[float, int, int, float]], slice_ns: float
) -> None:
    for pool in (FirstComeFirstServed(ENGINES), Backfilling(ENGINES, slice_ns)):
        work = [0.0] * ENGINES
        latest = 0.0
        for earliest, first, last, duration in requests:
            start, end = pool.book(earliest, first, last, duration)
            assert start >= earliest
            assert end - start >= duration - 1e-3
            for engine in range(first, last + 1):
                work[engine] += duration
            latest = max(latest, end)
        assert latest >= max(work) - 1e-3 * len(requests)


@settings(max_examples=60, deadline=None)
@given(transfers(), st.floats(100, 2000))
def test_with_full_width_transfers_filling_gaps_is_never_later(
    requests: list[tuple[float, int, int, float]], slice_ns: float
) -> None:
    in_order, filled = FirstComeFirstServed(ENGINES), Backfilling(ENGINES, slice_ns)
    for earliest, _, _, duration in requests:
        _, late = in_order.book(earliest, 0, ENGINES - 1, duration)
        _, early = filled.book(earliest, 0, ENGINES - 1, duration)
        assert early <= late + 1e-3


def test_a_late_transfer_leaves_the_time_before_it_to_others() -> None:
    for pool, second_start in ((FirstComeFirstServed(ENGINES), 1100.0), (Backfilling(ENGINES, 200.0), 0.0)):
        assert pool.book(1000.0, 0, 15, 100.0) == (1000.0, 1100.0)
        assert pool.book(0.0, 0, 15, 100.0) == (second_start, second_start + 100.0)


def test_transfers_on_different_engines_run_side_by_side() -> None:
    for pool in (FirstComeFirstServed(ENGINES), Backfilling(ENGINES, 200.0)):
        assert pool.book(0.0, 0, 3, 500.0) == (0.0, 500.0)
        assert pool.book(0.0, 4, 7, 500.0) == (0.0, 500.0)
        start, end = pool.book(0.0, 0, 15, 100.0)
        assert (start, end) == pytest.approx((500.0, 600.0))
