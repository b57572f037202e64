"""Device loops written out, for timing: every pass of a loop becomes rows of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nki_sim.errors import NotSupported
from nki_sim.passes import CorePasses, in_order
from nki_sim.program import Loop, Program

_MOST_ROWS = 20_000_000

_Numbered = tuple[int, Loop]
"""A loop with its place in `Program.loops`."""


def unrolled(program: Program, passes: CorePasses | None = None) -> Program:
    """The same program without loops; itself when it has none.

    `passes`: how often the loops ran whose bounds are registers, as an execution counted it. Raises NotSupported
    for such a loop without it, and when the result would not fit in memory.
    """
    if not program.loops:
        return program
    counted = [in_order(entries) for entries in passes] if passes is not None else None
    return program.with_rows(_Writer(program, counted).order(0, len(program), list(enumerate(program.loops))))


class _Writer:
    """Puts the rows in the order in which they run."""

    def __init__(self, program: Program, counted: Sequence[Iterator[int]] | None) -> None:
        self._program = program
        self._counted = counted

    def order(self, start: int, end: int, loops: list[_Numbered]) -> np.ndarray:
        """The rows [start, end), int64."""
        pieces: list[np.ndarray] = []
        rows, at = 0, start
        waiting = loops
        while waiting:
            number, loop = waiting[0]
            inner = [each for each in waiting[1:] if each[1].start >= loop.start and each[1].end <= loop.end]
            waiting = [each for each in waiting[1:] if each not in inner]
            pieces.append(np.arange(at, loop.start, dtype=np.int64))
            bodies = self._bodies(number, loop, inner)
            rows += len(pieces[-1]) + sum(map(len, bodies))
            if rows > _MOST_ROWS:
                raise self._too_long(loop)
            pieces += bodies
            at = loop.end
        pieces.append(np.arange(at, end, dtype=np.int64))
        return np.concatenate(pieces)

    def _bodies(self, number: int, loop: Loop, inner: list[_Numbered]) -> list[np.ndarray]:
        """Every pass of a loop. Only where a loop inside may run differently each time is each looked at."""
        trips = self._trips(number, loop)
        if all(each.trips is not None for _, each in inner):
            body = self.order(loop.start, loop.end, inner) if trips else np.zeros(0, np.int64)
            if len(body) * trips > _MOST_ROWS:
                raise self._too_long(loop)
            return [np.tile(body, trips if len(body) else 0)]
        bodies: list[np.ndarray] = []
        rows = 0
        for _ in range(trips):
            bodies.append(self.order(loop.start, loop.end, inner))
            rows += max(1, len(bodies[-1]))
            if rows > _MOST_ROWS:
                raise self._too_long(loop)
        return bodies

    def _trips(self, number: int, loop: Loop) -> int:
        if loop.trips is not None:
            return loop.trips
        if self._counted is None:
            raise NotSupported(
                f"the device loop at {self._place(loop)} runs as often as a register says, which no trace knows: time "
                "it with what an execution counted (nki_sim.executor.execute_counting), or give it constant bounds"
            )
        return next(self._counted[number])

    def _too_long(self, loop: Loop) -> NotSupported:
        return NotSupported(f"the device loop at {self._place(loop)} runs more than {_MOST_ROWS:,} instructions: too "
                            "long to time")  # fmt: skip

    def _place(self, loop: Loop) -> str:
        """Where its body begins, in the kernel's source."""
        program = self._program
        return (
            f"line {program.templates[program.template_ids[loop.start]].line}" if loop.end > loop.start else "no line"
        )
