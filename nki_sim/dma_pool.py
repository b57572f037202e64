"""What transfers share: when does software write the descriptors of one, and when does its data move?

`Backfilling` lets a later request use time that earlier ones left idle on the DMA engines; it books in slices of time,
in which capacity is interchangeable. `DescriptorWriter` is the software that generates descriptors.
"""

from __future__ import annotations

from bisect import bisect_right

_FULL = 1e-6
"""ns of a slice too short to be worth booking."""


class Backfilling:
    """Each engine takes turns between what comes in and what goes out, so that a load does not wait for all the stores
    that were asked for before it, nor a store for all the loads (rows B008, B012, B040: with one queue for both they
    would take 12 to 16 % longer than they did).
    """

    def __init__(self, engines: int, slice_ns: float) -> None:
        self._engines = engines
        self._slice = slice_ns
        self._all: list[float] = []
        """Time that all engines are booked for, by slice."""
        self._of: tuple[list[float], list[float]] = ([], [])
        """The part of it that transfers inward and outward have."""
        self._most: list[float] = []
        """Time that the busiest single engine is booked for on top, by slice."""
        self._each: list[list[float]] = [[] for _ in range(engines)]
        self._skip: tuple[list[int], list[int]] = ([], [])
        """A slice at or before the first one in which there is time for a transfer inward, outward; by slice."""
        inward, outward = self._of
        self._seen_from = (
            (slice_ns, self._all, self._most, inward, outward, self._skip[0]),
            (slice_ns, self._all, self._most, outward, inward, self._skip[1]),
        )
        """By direction, what `book` looks at: together, since every transfer needs it all."""
        self._put_off_until = 0.0
        """As booked: what came into the same slice afterwards is not counted."""

    @property
    def put_off_until(self) -> float:
        """ns: when the last of the work ends that gave way to the other direction. The transfers that it belongs to
        keep the end that they were given; nothing is over before this."""
        index = int(self._put_off_until / self._slice)
        if self._put_off_until == index * self._slice:
            index -= 1
        if index < 0 or index >= len(self._all):
            return self._put_off_until
        return max(self._put_off_until, index * self._slice + self._all[index])

    def _grow(self, upto: int) -> int:
        """How many slices there are then; slice `upto` is one of them."""
        count = len(self._all)
        more = upto + 64 - count
        if more > 0:
            for skip in self._skip:
                skip.extend(range(count, upto + 64))
            for booked in (self._all, self._most, *self._of):
                booked.extend([0.0] * more)
        return len(self._all)

    def book(
        self, at: float, first: int, last: int, duration: float, outward: bool, share: float = 0.5
    ) -> tuple[float, float]:
        """(start, end) of a transfer that keeps engines first..last busy for `duration` ns, not before `at`.

        `share` of a slice is its direction's in any case, where it takes all engines.
        """
        if last - first + 1 != self._engines:
            return self._book_some(at, first, last, duration)
        width, booked, most, mine, other, skip = self._seen_from[outward]
        count = len(booked)
        index = int(at / width)
        begun, put_off = -1.0, 0.0
        while True:
            if index >= count:
                count = self._grow(index)
            ahead = skip[index]
            while ahead != index:  # find the first slice with time left, halving the path for the next search
                skip[index] = skip[ahead]
                index = ahead
                ahead = skip[index]
            here = width - most[index]
            taken, ours = booked[index], mine[index]
            idle = here - taken
            free = share * here - ours
            if idle > free:
                free = idle
            end = (index + 1) * width
            start = end - free
            if start < at:
                start = at
                free = end - at
            if free > _FULL:
                if begun < 0.0:
                    begun = start
                take = duration if duration <= free else free
                if take > idle:
                    taken_over = take - idle
                    if taken_over > other[index]:
                        taken_over = other[index]
                        take = idle + taken_over
                    other[index] -= taken_over
                    put_off += taken_over
                    taken += idle
                else:
                    taken += take
                ours += take
                booked[index] = taken
                mine[index] = ours
                if duration <= take + _FULL:
                    break
                duration -= take
            if here - taken < _FULL and ours >= 0.5 * here - _FULL:
                if index + 1 >= count:
                    count = self._grow(index + 1)
                skip[index] = index + 1
            index += 1
            at = end
        end = start + take
        if put_off > _FULL and share:  # what gave way takes only time that is idle
            until = self.book(end, first, last, put_off, not outward, 0.0)[1]
            self._put_off_until = max(self._put_off_until, until)
        return begun, end

    def _book_some(self, at: float, first: int, last: int, duration: float) -> tuple[float, float]:
        width, booked, most = self._slice, self._all, self._most
        mine = self._each[first : last + 1]
        index = int(at / width)
        begun = -1.0
        while True:
            if index >= len(booked):
                self._grow(index)
            for each in mine:
                if index >= len(each):
                    each.extend([0.0] * (len(booked) - len(each)))
            end = (index + 1) * width
            free = width - booked[index] - max([each[index] for each in mine])
            if free > _FULL:
                start = max(at, end - free)
                take = min(duration, end - start)
                if begun < 0.0:
                    begun = start
                for each in mine:
                    each[index] += take
                most[index] = max(most[index], *[each[index] for each in mine])
                duration -= take
                if duration <= _FULL:
                    return begun, start + take
            index += 1
            at = max(at, end)


_GAPS_KEPT = 64


class DescriptorWriter:
    """Software on GpSimd that writes the descriptors of transfers into two rings: what comes in, and what goes out.

    Each ring is in order. The software goes on with the other ring where one has nothing ready, and comes back, so
    that a transfer's descriptors may be written in pieces; it never writes two at once.
    """

    def __init__(self) -> None:
        self._ends = [0.0, 0.0]
        """When the last transfer of each ring has all its descriptors."""
        self._tail = 0.0
        self._low: list[float] = []
        """Beginnings of the idle stretches before `_tail`, ascending."""
        self._high: list[float] = []

    def write(self, earliest: float, busy: float, outward: bool) -> tuple[float, float]:
        """(begin, end) of `busy` ns of work from `earliest` on; times in ns."""
        if self._ends[outward] > earliest:
            earliest = self._ends[outward]
        low, high = self._low, self._high
        if earliest > self._tail:
            low.append(self._tail)
            high.append(earliest)
            if len(low) > 2 * _GAPS_KEPT:
                del low[:_GAPS_KEPT], high[:_GAPS_KEPT]
            self._tail = earliest
        begin = -1.0
        k = bisect_right(high, earliest)
        while k < len(high):
            at = low[k] if low[k] > earliest else earliest
            if begin < 0.0:
                begin = at
            end = at + busy
            if end <= high[k]:
                if at > low[k]:
                    low.insert(k, low[k])
                    high.insert(k, at)
                    k += 1
                if end < high[k]:
                    low[k] = end
                else:
                    del low[k], high[k]
                self._ends[outward] = end
                return begin, end
            busy -= high[k] - at
            if at > low[k]:
                high[k] = at
                k += 1
            else:
                del low[k], high[k]
        if begin < 0.0:
            begin = self._tail
        end = self._tail + busy
        self._tail = self._ends[outward] = end
        return begin, end
