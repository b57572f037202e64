"""Sixteen DMA engines shared by all transfers: nobody gets more than there is, nobody waits without need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nki_sim.timing.list_scheduler import (
    ALL,
    CALENDARS,
    FULL_NS,
    GAPS_KEPT,
    booked_all,
    booked_some,
    written_descriptors,
)

ENGINES = 16


class Backfilling:
    """Booked time of the DMA engines, as the walk keeps it."""

    def __init__(self, engines: int, slice_ns: float) -> None:
        count = int(200_000 / slice_ns) + 2
        self._slices, self._each = np.zeros((count, 6)), np.zeros((count, engines))
        self._skips = np.zeros((count, 2), np.int64)
        self._engines, self._width, self._until = engines, slice_ns, 0.0

    def book(self, at: float, first: int, last: int, duration: float, outward: bool) -> tuple[float, float]:
        if last - first + 1 != self._engines:
            return booked_some(at, first, last, duration, self._width, self._slices, self._each)
        given = self._width, self._slices, self._skips
        start, end, put_off = booked_all(at, duration, int(outward), 0.5, *given)
        if put_off > FULL_NS:
            self._until = max(self._until, booked_all(end, put_off, 1 - outward, 0.0, *given)[1])
        return start, end

    @property
    def put_off_until(self) -> float:
        index = int(self._until / self._width) - (self._until == int(self._until / self._width) * self._width)
        return max(self._until, index * self._width + float(self._slices[max(0, index), ALL]))


class DescriptorWriter:
    """The two rings of software that writes descriptors."""

    def __init__(self) -> None:
        self._ends, self._tails = np.zeros(2), np.zeros(CALENDARS)
        self._low, self._high = np.zeros((2, CALENDARS, 4 * GAPS_KEPT))
        self._gaps = np.zeros(CALENDARS, np.int64)

    def write(self, earliest: float, busy: float, outward: bool) -> tuple[float, float]:
        return written_descriptors(
            earliest, busy, int(outward), self._ends, self._low, self._high, self._gaps, self._tails
        )


@st.composite
def transfers(draw: st.DrawFn) -> list[tuple[float, int, int, float, bool]]:
    """(earliest start, first engine, last engine, duration, outward), full width or not."""
    found = []
    for _ in range(draw(st.integers(1, 30))):
        first = draw(st.sampled_from([0, 0, 0, 4, 8, 15]))
        last = draw(st.sampled_from([15, first, min(15, first + 3)]))
        found.append((draw(st.floats(0, 5000)), first, last, draw(st.floats(1, 3000)), draw(st.booleans())))
    return found


AFTER_IT_GAVE_WAY = [(0.0, 0, 15, 319.0, True), *[(0.0, 0, 15, 1.0, False)] * 6, (0.0, 0, 15, 197.0, False)]
AFTER_IT_GAVE_WAY += [(0.0, 0, 15, 1.0, False)] * 4


@settings(max_examples=60, deadline=None)
@given(transfers(), st.floats(100, 2000))
@example(AFTER_IT_GAVE_WAY, 178.0)
def test_a_transfer_never_starts_early_nor_outruns_its_engines(requests, slice_ns) -> None:
    pool = Backfilling(ENGINES, slice_ns)
    work = [0.0] * ENGINES
    latest = 0.0
    for earliest, first, last, duration, outward in requests:
        start, end = pool.book(earliest, first, last, duration, outward)
        assert start >= earliest
        assert end - start >= duration - 1e-3
        for engine in range(first, last + 1):
            work[engine] += duration
        latest = max(latest, end)
    assert max(latest, pool.put_off_until) >= max(work) - 1e-3 * len(requests)


@settings(max_examples=60, deadline=None)
@given(transfers(), st.floats(100, 2000))
def test_with_full_width_transfers_filling_gaps_is_never_later(requests, slice_ns) -> None:
    filled, in_order = Backfilling(ENGINES, slice_ns), 0.0
    for earliest, _, _, duration, outward in requests:
        in_order = max(in_order, earliest) + duration
        _, early = filled.book(earliest, 0, ENGINES - 1, duration, outward)
        assert max(early, filled.put_off_until) <= in_order + 1e-3


def test_a_load_does_not_wait_for_all_the_stores_that_were_asked_for_before() -> None:
    pool = Backfilling(ENGINES, 100.0)
    for _ in range(10):
        pool.book(0.0, 0, 15, 1000.0, True)
    assert pool.book(2000.0, 0, 15, 500.0, False) == pytest.approx((2050.0, 3000.0))  # every other turn
    assert pool.put_off_until == pytest.approx(10_500.0)  # no time is made of nothing
    assert pool.book(2000.0, 0, 15, 500.0, False)[1] == pytest.approx(4000.0)  # loads follow each other


def test_stores_do_not_wait_for_all_the_loads_either_but_for_stores() -> None:
    pool = Backfilling(ENGINES, 100.0)
    pool.book(0.0, 0, 15, 2000.0, False)
    assert pool.book(0.0, 0, 15, 200.0, True)[1] == pytest.approx(400.0)
    assert pool.book(0.0, 0, 15, 200.0, True)[1] == pytest.approx(800.0)
    assert pool.book(0.0, 0, 15, 100.0, True)[1] == pytest.approx(1000.0)
    assert pool.put_off_until == pytest.approx(2500.0)


WRITES = st.lists(st.tuples(st.floats(0, 5000), st.floats(1, 700), st.booleans()), min_size=1, max_size=30)
"""(earliest, work, outward)."""


@settings(max_examples=100, deadline=None)
@given(WRITES)
def test_rings_are_in_order_and_software_never_writes_two_at_once(requests: list[tuple[float, float, bool]]) -> None:
    writer = DescriptorWriter()
    ring_ends = [0.0, 0.0]
    written = []
    for earliest, busy, outward in requests:
        begin, end = writer.write(earliest, busy, outward)
        assert begin >= max(earliest, ring_ends[outward])
        assert end - begin >= busy - 1e-6
        ring_ends[outward] = end
        written.append((begin, end, busy))
    for begin, _, _ in written:
        for _, end, _ in written:
            inside = sum(busy for b, e, busy in written if b >= begin and e <= end)
            assert inside <= max(0.0, end - begin) + 1e-6


def test_a_ring_that_waits_leaves_the_software_to_the_other() -> None:
    writer = DescriptorWriter()
    assert writer.write(1000.0, 100.0, True) == (1000.0, 1100.0)
    assert writer.write(0.0, 300.0, False) == (0.0, 300.0)
    assert writer.write(900.0, 200.0, False) == (900.0, 1200.0)  # in two pieces, around the other ring's
    assert writer.write(0.0, 50.0, True) == (1200.0, 1250.0)  # after the one before in its ring
