"""Device loops written out, for timing: every pass of a loop with constant bounds becomes rows of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nki_sim.errors import NotSupported
from nki_sim.program import Loop, Program

_MOST_ROWS = 20_000_000


def unrolled(program: Program) -> Program:
    """The same program without loops; itself when it has none.

    A loop whose trip count is only known on the device is taken to run once. Raises NotSupported when the
    result would not fit in memory.
    """
    if not program.loops:
        return program
    return program.with_rows(_order(0, len(program), program.loops))


def _order(start: int, end: int, loops: Sequence[Loop]) -> np.ndarray:
    """The rows [start, end) in the order in which they run, int64."""
    pieces: list[np.ndarray] = []
    at = start
    waiting = list(loops)
    while waiting:
        loop = waiting.pop(0)
        inner = [other for other in waiting if other.start >= loop.start and other.end <= loop.end]
        waiting = [other for other in waiting if other not in inner]
        pieces.append(np.arange(at, loop.start, dtype=np.int64))
        body = _order(loop.start, loop.end, inner)
        trips = 1 if loop.trips is None else loop.trips
        if len(body) * trips > _MOST_ROWS:
            raise NotSupported(f"a device loop of {trips:,} passes over {len(body):,} instructions is too long to time")
        pieces.append(np.tile(body, trips))
        at = loop.end
    pieces.append(np.arange(at, end, dtype=np.int64))
    return np.concatenate(pieces)
