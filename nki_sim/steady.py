"""Loops that repeat themselves: time a few iterations, and know the rest.

A program whose instructions, and what they wait for, repeat with a fixed period reaches a steady state: each further
iteration adds the same time. Such a program is cut to its first iterations and whatever follows the loop; the rest is
extrapolated, and two estimates of the time per iteration tell how far to trust it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from nki_sim.machine import Machine
from nki_sim.memory import MemoryRegion
from nki_sim.program import Program
from nki_sim.structure import dependence_structure

_FEWEST_KEPT = 12
"""Iterations that are always timed."""
_ROWS_KEPT = 4000
"""Instructions that are always timed: enough for queues and throttles to settle."""
_FILLS = 3
"""How many times over the kept iterations must fill SBUF, so that waiting for memory is seen."""
_CANDIDATES = 48


@dataclass(frozen=True)
class Repetition:
    """Rows [start, start + period * count) repeat the same templates, waiting for each other alike, `count` times."""

    start: int
    period: int
    count: int


@dataclass(frozen=True)
class Shortened:
    program: Program
    start: int
    period: int
    kept: int
    left_out: int
    """Iterations not in `program`."""


def find_repetition(template_ids: np.ndarray, structure: np.ndarray | None = None) -> Repetition | None:
    """The loop that covers most of the stream, if there is one.

    `structure`: what has to repeat, by row (nki_sim.structure); without it, only the templates.
    """
    structure = template_ids if structure is None else structure
    n = len(template_ids)
    best: Repetition | None = None
    for period in _candidate_periods(template_ids):
        if 2 * period > n:
            continue
        same = structure[:-period] == structure[period:]
        start, length = _longest_run(same)
        found = Repetition(start, period, (length + period) // period)
        if found.count >= 2 and (best is None or _worth(found) > 1.01 * _worth(best)):
            best = found
    return best


def _worth(found: Repetition) -> float:
    """Rows that need not be looked at one by one when a few iterations are; then, rows in the loop."""
    return max(0, found.count - _FEWEST_KEPT) * found.period + 1e-3 * found.count * found.period


def _candidate_periods(template_ids: np.ndarray) -> list[int]:
    """Distances between occurrences of the rarer templates: a loop's period is among them."""
    counts = np.bincount(template_ids)
    rare = [t for t in np.argsort(counts, kind="stable").tolist() if counts[t] > 1]
    periods: dict[int, None] = {}
    for template in rare[:_CANDIDATES]:
        at = np.flatnonzero(template_ids == template)
        middle = len(at) // 2
        step = 1
        while step < len(at) - middle and len(periods) < 4 * _CANDIDATES:
            periods[int(at[middle + step] - at[middle])] = None
            step *= 2
        distances = np.diff(at)
        periods[int(np.bincount(distances).argmax())] = None
    return sorted(periods)


def _longest_run(flags: np.ndarray) -> tuple[int, int]:
    """(start, length) of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    starts, ends = edges[0::2], edges[1::2]
    if not len(starts):
        return 0, 0
    k = int(np.argmax(ends - starts))
    return int(starts[k]), int(ends[k] - starts[k])


def shorten(program: Program, machine: Machine) -> Shortened | None:
    """The program without most iterations of its main loop; None when nothing is gained."""
    if program.edges or program.loops or not len(program):
        return None
    found = find_repetition(program.kinds, dependence_structure(program))
    if found is None:
        return None
    kept = max(_FEWEST_KEPT, -(-_ROWS_KEPT // found.period), _FILLS * _iterations_that_fill(program, found, machine))
    kept += kept % 2
    if found.count < 2 * kept:
        return None
    cut_from = found.start + kept * found.period
    cut_to = found.start + found.count * found.period
    rows = np.concatenate((np.arange(cut_from), np.arange(cut_to, len(program))))
    counts = np.diff(program.operand_starts)[rows]
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    a, b = int(program.operand_starts[cut_from]), int(program.operand_starts[cut_to])
    changed = {
        "template_ids": program.template_ids[rows],
        "operand_starts": starts,
        "operand_data": np.concatenate((program.operand_data[:a], program.operand_data[b:])),
    }
    shorter = Program(**{f.name: changed.get(f.name, getattr(program, f.name)) for f in fields(Program)})
    shorter.__dict__["sites"] = program.sites  # of the same buffers
    return Shortened(shorter, found.start, found.period, kept, found.count - kept)


def _iterations_that_fill(program: Program, found: Repetition, machine: Machine) -> int:
    """Iterations until the tiles they allocate have taken all of SBUF (or of PSUM) once."""
    start, end = found.start + found.period, found.start + 2 * found.period
    first = program.first_use
    most = 1
    for region, capacity in (
        (MemoryRegion.sbuf, machine.sbuf_partition_bytes),
        (MemoryRegion.psum, machine.psum_banks * machine.psum_bank_bytes),
    ):
        sizes = program.sites.each(lambda a: a.partition_bytes if a.region is region else 0)  # noqa: B023  # asked here
        new = int(sizes[(start <= first) & (first < end)].sum())
        if new:
            most = max(most, -(-capacity // new))
    return most


def per_iteration_ns(shortened: Shortened, ends: np.ndarray) -> tuple[float, float]:
    """(ns that one more iteration takes, how far two estimates of it differ as a fraction).

    `ends` are the instructions' end times; an iteration ends when its last instruction does.
    """
    first, last = shortened.start, shortened.start + shortened.kept * shortened.period
    finished = np.maximum.accumulate(ends[first:last].reshape(shortened.kept, shortened.period).max(axis=1))
    half, quarter = shortened.kept // 2, max(1, shortened.kept // 4)
    late = (finished[-1] - finished[half - 1]) / (shortened.kept - half)
    early = (finished[half - 1 + quarter] - finished[half - 1]) / quarter
    return float(late), float(abs(late - early) / late) if late > 0 else 0.0
