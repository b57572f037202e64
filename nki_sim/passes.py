"""How often the bodies of device loops ran: what an execution counts, and what timing a program needs to know.

A loop whose bound is a register runs as often as a value on the device says. No trace knows that, so such a program
is timed with the counts of executions on real inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from nki_sim.errors import ProgramFormatError
from nki_sim.program import Loop, Program

MOST_ROWS = 20_000_000
"""Instructions of one execution, passes of loops included: more are neither executed nor timed."""
MOST_DECIDED_ROWS = 500_000
"""The same where registers decide what comes next, and every row has an edge to what it waits for."""
LOOPS_DEEP = 32
"""Loops inside each other, at most."""

LoopPasses = tuple[int, ...]
"""Of one loop, in order: passes each time the device came to it. Empty where the bounds are constants."""
CorePasses = tuple[LoopPasses, ...]
"""By loop, as in `Program.loops`."""


@dataclass(frozen=True)
class Passes:
    """What one execution did, or at most what several did."""

    cores: tuple[CorePasses, ...]
    """Core 0 first."""

    def most(self, other: Passes) -> Passes:
        """Every loop as often as in whichever of the two runs it more often, each time it is entered."""
        pairs = zip(self.cores, other.cores)
        return Passes(tuple(tuple(_most(a, b) for a, b in zip(mine, theirs)) for mine, theirs in pairs))


def _most(one: LoopPasses, other: LoopPasses) -> LoopPasses:
    return tuple(max(a, b) for a, b in zip_longest(one, other, fillvalue=0))


def must_be_counted(program: Program) -> bool:
    """Does a loop of any core run as often as a register says?"""
    return any(loop.trips is None for each in (program, *program.peers) for loop in each.loops)


def in_order(passes: LoopPasses) -> Iterator[int]:
    """Passes, entry by entry; after those that were counted, the most that ever were (see `Passes.most`)."""
    yield from passes
    while True:
        yield max(passes, default=0)


class PassCounter:
    """Filled by one core's execution."""

    def __init__(self, program: Program) -> None:
        self._counted: list[list[int]] = [[] for _ in program.loops]
        self._unknown = [loop.trips is None for loop in program.loops]

    def enter(self, loop: int) -> None:
        """The device comes to loop number `loop`."""
        if self._unknown[loop]:
            self._counted[loop].append(0)

    def step(self, loop: int) -> None:
        """One more pass of it."""
        if self._unknown[loop]:
            self._counted[loop][-1] += 1

    @property
    def passes(self) -> CorePasses:
        return tuple(tuple(entries) for entries in self._counted)


def together(counters: Sequence[PassCounter]) -> Passes:
    return Passes(tuple(counter.passes for counter in counters))


@dataclass(frozen=True)
class Nested:
    """A loop in its place among the others."""

    number: int
    """In `Program.loops`."""
    loop: Loop
    inner: tuple[Nested, ...]
    """Those directly inside it, in order."""


def nested(loops: Sequence[Loop]) -> tuple[Nested, ...]:
    """The outermost loops, each with those inside it. They must be in order, as `loops_inside` checks."""
    found: list[Nested] = []
    open_loops: list[tuple[int, Loop, list[Nested]]] = []

    def close() -> None:
        number, loop, inner = open_loops.pop()
        (open_loops[-1][2] if open_loops else found).append(Nested(number, loop, tuple(inner)))

    for number, loop in enumerate(loops):
        while open_loops and not _contains(open_loops[-1][1], loop):
            close()
        open_loops.append((number, loop, []))
    while open_loops:
        close()
    return tuple(found)


def loops_inside(loops: Sequence[Loop]) -> int:
    """How many are inside each other at most. Raises ProgramFormatError where two cross, or are out of order."""
    deepest = 0
    open_loops: list[Loop] = []
    start = 0
    for loop in loops:
        if loop.start < start:
            raise ProgramFormatError("loops are out of order")
        start = loop.start
        while open_loops and not _contains(open_loops[-1], loop):
            if loop.start < open_loops.pop().end:
                raise ProgramFormatError("loops cross each other")
        open_loops.append(loop)
        deepest = max(deepest, len(open_loops))
    return deepest


def _contains(outer: Loop, loop: Loop) -> bool:
    return outer.start <= loop.start and loop.end <= outer.end


def executed_rows(program: Program) -> int:
    """Instructions that one execution of one core runs, each pass of a loop counted as one more.

    A loop that runs as often as a register says counts as one pass: the execution itself counts those.
    """

    def rows(start: int, end: int, loops: Sequence[Nested]) -> int:
        total = end - start
        for each in loops:
            body = rows(each.loop.start, each.loop.end, each.inner)
            trips = 1 if each.loop.trips is None else each.loop.trips
            total += (body + 1) * trips - (each.loop.end - each.loop.start)
        return total

    return rows(0, len(program), nested(program.loops))
