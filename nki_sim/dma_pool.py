"""The DMA engines as a shared resource: when does a transfer's data move, given what is already booked?

`Backfilling` lets a later request use time that earlier ones left idle; it books in slices of time, in which
capacity is interchangeable.
"""

from __future__ import annotations

_FULL = 1e-6
"""ns of a slice too short to be worth booking."""


class Backfilling:
    def __init__(self, engines: int, slice_ns: float) -> None:
        self._engines = engines
        self._slice = slice_ns
        self._all: list[float] = []
        """Time that all engines are booked for, by slice."""
        self._most: list[float] = []
        """Time that the busiest single engine is booked for on top, by slice."""
        self._each: list[list[float]] = [[] for _ in range(engines)]
        self._skip: list[int] = []
        """A slice at or before the first one in which all engines have time, by slice."""

    def _grow(self, upto: int) -> None:
        more = upto + 64 - len(self._all)
        if more > 0:
            self._skip.extend(range(len(self._all), upto + 64))
            self._all.extend([0.0] * more)
            self._most.extend([0.0] * more)

    def book(self, earliest: float, first: int, last: int, duration: float) -> tuple[float, float]:
        """(start, end) of a transfer that keeps engines first..last busy for `duration` ns."""
        if last - first + 1 == self._engines:
            return self._book_all(earliest, duration)
        return self._book_some(earliest, first, last, duration)

    def _book_all(self, at: float, duration: float) -> tuple[float, float]:
        width, booked, most, skip = self._slice, self._all, self._most, self._skip
        index = int(at / width)
        begun = -1.0
        while True:
            if index >= len(booked):
                self._grow(index)
            ahead = skip[index]
            while ahead != index:  # find the first slice with time left, halving the path for the next search
                skip[index] = skip[ahead]
                index = ahead
                ahead = skip[index]
            end = (index + 1) * width
            free = width - booked[index] - most[index]
            start = end - free
            if start < at:
                start = at
                free = end - at
            if free > _FULL:
                if begun < 0.0:
                    begun = start
                if duration <= free:
                    booked[index] += duration
                    return begun, start + duration
                booked[index] += free
                duration -= free
            if width - booked[index] - most[index] < _FULL:
                if index + 1 >= len(booked):
                    self._grow(index + 1)
                skip[index] = index + 1
            index += 1
            at = end

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
