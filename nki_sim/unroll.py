"""Device loops written out, for timing: every pass of a loop with constant bounds becomes rows of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

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
    order = _order(0, len(program), program.loops)
    counts = np.diff(program.operand_starts)[order]
    starts = np.zeros(len(order) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    rows = np.repeat(program.operand_starts[:-1][order] - starts[:-1], counts) + np.arange(starts[-1])
    first_pass = np.full(len(program) + 1, len(order), np.int64)
    first_pass[order[::-1]] = np.arange(len(order))[::-1]
    changed = {
        "template_ids": program.template_ids[order],
        "operand_starts": starts,
        "operand_data": program.operand_data[rows],
        "edges": tuple(type(edge)(int(first_pass[edge.before]), int(first_pass[edge.after])) for edge in program.edges),
        "loops": (),
    }
    return Program(**{f.name: changed.get(f.name, getattr(program, f.name)) for f in fields(Program)})


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
