"""How often the bodies of device loops ran: what an execution counts, and what timing a program needs to know.

A loop whose bound is a register runs as often as a value on the device says. No trace knows that, so such a program
is timed with the counts of executions on real inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from nki_sim.program import Program

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
