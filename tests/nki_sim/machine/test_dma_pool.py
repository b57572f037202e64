"""What transfers share: nobody gets more of it than there is, and nobody waits without need."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.dma_pool import Backfilling, DescriptorWriter

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
    pool = Backfilling(ENGINES, slice_ns)
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
def test_with_full_width_transfers_filling_gaps_is_never_later_than_first_come_first_served(
    requests: list[tuple[float, int, int, float]], slice_ns: float
) -> None:
    pool, free = Backfilling(ENGINES, slice_ns), 0.0
    for earliest, _, _, duration in requests:
        free = max(free, earliest) + duration
        _, end = pool.book(earliest, 0, ENGINES - 1, duration)
        assert end <= free + 1e-3


def test_a_late_transfer_leaves_the_time_before_it_to_others() -> None:
    pool = Backfilling(ENGINES, 200.0)
    assert pool.book(1000.0, 0, 15, 100.0) == (1000.0, 1100.0)
    assert pool.book(0.0, 0, 15, 100.0) == (0.0, 100.0)


def test_transfers_on_different_engines_run_side_by_side() -> None:
    pool = Backfilling(ENGINES, 200.0)
    assert pool.book(0.0, 0, 3, 500.0) == (0.0, 500.0)
    assert pool.book(0.0, 4, 7, 500.0) == (0.0, 500.0)
    assert pool.book(0.0, 0, 15, 100.0) == pytest.approx((500.0, 600.0))


# --- software that writes descriptors -------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5000), st.floats(1, 700), st.booleans()), min_size=1, max_size=40))
def test_descriptors_of_one_transfer_at_a_time_each_ring_in_order(requests: list[tuple[float, float, bool]]) -> None:
    writer = DescriptorWriter()
    written: list[tuple[float, float, float]] = []
    ring_end = {False: 0.0, True: 0.0}
    for earliest, busy, outward in requests:
        begin, end = writer.write(earliest, busy, outward)
        assert begin >= max(earliest, ring_end[outward]) - 1e-6
        assert end >= begin + busy - 1e-6
        ring_end[outward] = end
        written.append((begin, end, busy))
    for low, _, _ in written:
        for _, high, _ in written:
            inside = sum(busy for begin, end, busy in written if low <= begin and end <= high)
            assert inside <= max(0.0, high - low) + 1e-6, "more was written than there was time for"
    first, last = min(begin for begin, _, _ in written), max(end for _, end, _ in written)
    assert last - first <= max(e for e, _, _ in requests) + sum(b for _, b, _ in requests)


def test_what_goes_out_takes_its_time_from_what_comes_in_and_the_other_way_round() -> None:
    writer = DescriptorWriter()
    assert writer.write(0.0, 600.0, False) == (0.0, 600.0)
    assert writer.write(1000.0, 600.0, True) == (1000.0, 1600.0)
    assert writer.write(0.0, 600.0, False) == (600.0, 1800.0)  # 400 ns before the store's descriptors, 200 after
    assert writer.write(0.0, 600.0, False) == (1800.0, 2400.0)
    assert writer.write(1700.0, 600.0, True) == (2400.0, 3000.0)  # no time was left before


def test_a_ring_stays_in_order_although_the_other_left_it_time() -> None:
    writer = DescriptorWriter()
    writer.write(5000.0, 100.0, False)
    assert writer.write(0.0, 100.0, False) == (5100.0, 5200.0)
    assert writer.write(0.0, 100.0, True) == (0.0, 100.0)
