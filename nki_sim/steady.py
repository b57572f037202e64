"""Loops that repeat themselves: time a few iterations, and know the rest.

A program whose instructions, and what they wait for, repeat with a fixed period reaches a steady state: each further
iteration adds the same time. Such a program is cut to its first iterations and whatever follows the loop; the rest is
extrapolated, and two estimates of the time per iteration tell how far to trust it. What changes slowly is carried over
what is left out: where TensorE would become cold or warm there, or transfers would be put off further, all is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nki_sim.cost import Cost
from nki_sim.machine import Machine
from nki_sim.memory import MemoryRegion
from nki_sim.program import Program
from nki_sim.schedule_pass import Pass, cooled, is_product
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
    data = np.concatenate((program.operand_data[:a], program.operand_data[b:]))
    shorter = replace(program, template_ids=program.template_ids[rows], operand_starts=starts, operand_data=data)
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


@dataclass(frozen=True)
class Extrapolation:
    more_ns: float
    """All that the iterations take that are left out."""
    error: float
    """How far that may be off, as a fraction of it."""


_LEAST_ERROR = 2e-3
"""What two estimates that agree may both be off."""
_SAME_SHARE = 0.01
"""Of TensorE's products: how many more may be cold in what is left out than in what was timed."""


def extrapolation(shortened: Shortened, machine: Machine, costs: Sequence[Cost], found: Pass) -> Extrapolation | None:
    """What the iterations add that are left out; None where they are not like those that were timed (`found`).

    An iteration ends when its last instruction does.
    """
    first, kept = shortened.start, shortened.kept
    last = first + kept * shortened.period
    finished = np.maximum.accumulate(found.end[first:last].reshape(kept, shortened.period).max(axis=1))
    half, quarter = kept // 2, max(1, kept // 4)
    late = float(finished[-1] - finished[half - 1]) / (kept - half)
    early = float(finished[half - 1 + quarter] - finished[half - 1]) / quarter
    put_off = found.latency_ns - float((found.end + _latencies(shortened, costs)).max(initial=0.0))
    if late <= 0.0 or put_off > late or not _stays_as_warm(shortened, machine, costs, found, late):
        return None
    return Extrapolation(shortened.left_out * late, abs(late - early) / late + _LEAST_ERROR)


def _latencies(shortened: Shortened, costs: Sequence[Cost]) -> np.ndarray:
    return np.array([price.latency_ns for price in costs])[shortened.program.template_ids]


def _stays_as_warm(
    shortened: Shortened, machine: Machine, costs: Sequence[Cost], found: Pass, iteration_ns: float
) -> bool:
    """Whether TensorE's array is as often cold in the iterations left out as in the last quarter of those timed, which
    they repeat: its throttle adds up what an iteration lacks, and may need any number of them to tell."""
    program, period, kept = shortened.program, shortened.period, shortened.kept
    rows = np.flatnonzero(is_product(costs)[program.template_ids])
    rows = rows[np.argsort(found.start[rows], kind="stable")]
    quarter = max(1, kept // 4)
    end = shortened.start + kept * period
    timed, repeated = rows[rows < end], rows[(rows >= end - quarter * period) & (rows < end)]
    if not len(repeated):
        return True
    is_cold, state = np.zeros(len(program), np.bool_), np.zeros(3)
    cooled(program, machine, costs, timed, found.start[timed], is_cold, state)
    expected, total, blocks = int(is_cold[repeated].sum()), 0, -(-shortened.left_out // quarter)
    for block in range(1, blocks + 1):
        before = state[1:].copy()
        starts = found.start[repeated] + block * quarter * iteration_ns
        cold = cooled(program, machine, costs, repeated, starts, is_cold, state)
        total += cold
        if np.array_equal(before, state[1:]):  # from here on all are alike
            total += (blocks - block) * cold
            break
    return abs(total - blocks * expected) <= _SAME_SHARE * blocks * len(repeated)
