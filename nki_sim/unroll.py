"""Device loops written out, for timing: every pass of a loop becomes rows of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from nki_sim.errors import NotSupported
from nki_sim.passes import MOST_DECIDED_ROWS, MOST_ROWS, CorePasses, Nested, in_order, nested
from nki_sim.program import Edge, Loop, Program


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
                "it with what an execution counted (nki_sim.executor.execute_counting), or give it constant bounds"
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
