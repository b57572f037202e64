"""How often the bodies of device loops ran: what an execution counts, and what timing a program needs to know.

A loop whose bound is a register runs as often as a value on the device says. No trace knows that, so such a program
is timed with the counts of executions on real inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from nki_sim.errors import NotSupported, ProgramFormatError
from nki_sim.program.program import Edge, Loop, Program

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


# --- device loops written out, for timing ---------------------------------------------------------


def unrolled(program: Program, passes: CorePasses | None = None) -> Program:
    """The same program without loops; itself when it has none.

    `passes`: how often the loops ran whose bounds are registers, as an execution counted it. Whatever comes after
    such a bound waits until its register is loaded, since no engine knows before what it is to do. Raises NotSupported
    for such a loop without `passes`, and when the result would not fit in memory.
    """
    if not program.loops:
        return program
    counted = [in_order(entries) for entries in passes] if passes is not None else None
    writer = _Writer(program, counted)
    writer.block(0, len(program), nested(program.loops))
    order = np.concatenate(writer.pieces)
    written_out = program.with_rows(order)
    return replace(written_out, edges=written_out.edges + _waits(program, order, writer.decisions))


class _Writer:
    """Puts the rows in the order in which they run."""

    def __init__(self, program: Program, counted: Sequence[Iterator[int]] | None) -> None:
        self._program = program
        self._counted = counted
        self.pieces: list[np.ndarray] = []
        """Of rows of the program, int64."""
        self.decisions: list[tuple[int, int]] = []
        """(rows written before it, the register that says what comes next)."""
        self._length = 0

    def block(self, start: int, end: int, loops: Sequence[Nested]) -> None:
        """Write the rows [start, end)."""
        at = start
        for each in loops:
            self._write(np.arange(at, each.loop.start, dtype=np.int64), each.loop)
            self._loop(each)
            at = each.loop.end
        self._write(np.arange(at, end, dtype=np.int64), None)

    def _loop(self, found: Nested) -> None:
        loop, inner = found.loop, found.inner
        trips = self._trips(found.number, loop)
        for bound in (loop.lower, loop.upper):
            self._decide(bound.register)
        if loop.kind == "for" and all(map(_constant, inner)):
            body = self._one_pass(found) if trips else np.zeros(0, np.int64)
            self._fits(len(body) * trips, loop)
            self._write(np.tile(body, trips if len(body) else 0), loop)
            return
        self._fits(trips, loop)
        for _ in range(trips):
            self.block(loop.start, loop.end, inner)
            self._decide(loop.next if loop.kind == "while" else None)

    def _one_pass(self, found: Nested) -> np.ndarray:
        """Of a loop in which nothing depends on registers."""
        pieces: list[np.ndarray] = []
        at = found.loop.start
        for each in found.inner:
            loop, trips = each.loop, each.loop.trips or 0
            body = self._one_pass(each) if trips else np.zeros(0, np.int64)
            self._fits(len(body) * trips, loop)
            pieces += [np.arange(at, loop.start, dtype=np.int64), np.tile(body, trips if len(body) else 0)]
            at = loop.end
        return np.concatenate([*pieces, np.arange(at, found.loop.end, dtype=np.int64)])

    def _write(self, rows: np.ndarray, loop: Loop | None) -> None:
        self._length += len(rows)
        if loop is not None:
            self._fits(self._length, loop)
        self.pieces.append(rows)

    def _decide(self, register: int | None) -> None:
        if register is not None:
            self.decisions.append((self._length, register))

    def _trips(self, number: int, loop: Loop) -> int:
        if loop.trips is not None:
            return loop.trips
        if self._counted is None:
            raise NotSupported(
                f"the device loop at {self._place(loop)} runs as often as a register says, which no trace knows: time "
                "it with what an execution counted (executor.execute_counting), or give it constant bounds"
            )
        return next(self._counted[number])

    def _fits(self, rows: int, loop: Loop) -> None:
        most = MOST_DECIDED_ROWS if self._counted is not None and self.decisions else MOST_ROWS
        if rows > most:
            raise NotSupported(
                f"the device loop at {self._place(loop)} makes the kernel longer than {most:,} instructions: too long "
                "to time"
            )

    def _place(self, loop: Loop) -> str:
        """Where its body begins, in the kernel's source."""
        program = self._program
        return (
            f"line {program.templates[program.template_ids[loop.start]].line}" if loop.end > loop.start else "no line"
        )


def _constant(found: Nested) -> bool:
    """Nothing in it depends on registers."""
    return found.loop.trips is not None and all(map(_constant, found.inner))


def _waits(program: Program, order: np.ndarray, decisions: Sequence[tuple[int, int]]) -> tuple[Edge, ...]:
    """From the latest register that decided something, to every row after the decision."""
    if not decisions:
        return ()
    loads: dict[int, np.ndarray] = {}
    for register in {register for _, register in decisions}:
        writes = [
            row
            for row in np.flatnonzero(_touches(program, register)).tolist()
            if program.templates[program.template_ids[row]].operands[0].access != "r"
        ]
        loads[register] = np.flatnonzero(np.isin(order, writes))
    waits_for = np.full(len(order) + 1, -1, np.int64)
    for at, register in decisions:
        before = loads[register]
        found = int(np.searchsorted(before, at)) - 1
        if found >= 0:
            waits_for[at] = max(waits_for[at], before[found])
    waits_for = np.maximum.accumulate(waits_for)[: len(order)]
    return tuple(Edge(int(waits_for[row]), int(row)) for row in np.flatnonzero(waits_for >= 0))


def _touches(program: Program, register: int) -> np.ndarray:
    """By row: is the register its first operand, as it is of whatever loads it?"""
    has = np.diff(program.operand_starts) > 0
    first = np.minimum(program.operand_starts[:-1], max(0, len(program.operand_data) - 1))
    return has & (program.operand_data[first, 0] == register)
