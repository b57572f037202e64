"""Why engines stood idle: what each waited for, and the longest stretches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nki_sim.timing.cost import RESOURCES
from nki_sim.timing.schedule import Timeline

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")


@dataclass(frozen=True)
class Stall:
    """Time an engine stood idle before instructions that waited for a result of another."""

    engine: str
    waiting_on: str
    """An engine, or `dma`; `order` when nothing but its own queue held it."""
    us: float
    instructions: int


@dataclass(frozen=True)
class Idle:
    """One stretch in which the busiest compute engine stood still."""

    engine: str
    begin_us: float
    end_us: float
    line: int
    """Source line of the instruction that ended it."""
    waiting_on: str
    """As in Stall."""
    waiting_on_line: int
    """Of the instruction it waited for; 0 where its own queue held it."""


def resource_numbers(timeline: Timeline) -> np.ndarray:
    """Index into RESOURCES, by template."""
    return np.array([RESOURCES.index(price.resource) for price in timeline.costs], np.int64)


def stalls(timeline: Timeline) -> tuple[Stall, ...]:
    """Why engines were idle, from the first instruction to the last of each."""
    program = timeline.program
    if not len(program):
        return ()
    resources = resource_numbers(timeline)[program.template_ids]
    found: dict[tuple[str, str], Stall] = {}
    for number, engine in enumerate(ENGINES):
        _, idle, held = _idle_before(timeline, resources, number)
        for other in np.unique(held[idle > 0]).tolist():
            here, key = (held == other) & (idle > 0), (engine, _who(other))
            before = found.get(key, Stall(*key, 0.0, 0))
            found[key] = Stall(*key, before.us + float(idle[here].sum()) / 1e3, before.instructions + int(here.sum()))
    return tuple(sorted(found.values(), key=lambda stall: (-stall.us, stall.engine, stall.waiting_on)))


LONGEST_IDLE = 8
LEAST_IDLE_NS = 48.0


def longest_idle(timeline: Timeline) -> tuple[Idle, ...]:
    """Of the compute engine that works most."""
    program = timeline.program
    if not len(program):
        return ()
    resources = resource_numbers(timeline)[program.template_ids]
    spent = [float((timeline.end_ns - timeline.start_ns)[resources == number].sum()) for number in range(4)]
    busiest = spent.index(max(spent))
    chosen, idle, held = _idle_before(timeline, resources, busiest)
    longest = sorted(np.argsort(-idle, kind="stable")[:LONGEST_IDLE].tolist())

    def line(row: int) -> int:
        return program.templates[program.template_ids[row]].line

    return tuple(
        Idle(
            ENGINES[busiest],
            float(timeline.start_ns[chosen[k]] - idle[k]) / 1e3,
            float(timeline.start_ns[chosen[k]]) / 1e3,
            line(chosen[k]),
            _who(int(held[k])),
            line(timeline.cause[chosen[k]]) if held[k] >= 0 else 0,
        )
        for k in longest
        if idle[k] >= LEAST_IDLE_NS
    )


def _idle_before(timeline: Timeline, resources: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An engine's instructions in the order they run, how long it stood still before each, and what held each (-1:
    its own queue)."""
    chosen = np.flatnonzero(resources == number)
    chosen = chosen[np.argsort(timeline.start_ns[chosen], kind="stable")]
    start, end = timeline.start_ns[chosen], timeline.end_ns[chosen]
    idle = start.copy()
    if len(chosen):
        idle[1:] -= np.maximum.accumulate(end)[:-1]
    cause = timeline.cause[chosen]
    held = np.where(cause >= 0, resources[np.maximum(cause, 0)], -1)
    return chosen, np.maximum(idle, 0.0), np.where(timeline.ready_ns[chosen] >= start - 1e-6, held, -1)


def _who(number: int) -> str:
    return "order" if number < 0 else RESOURCES[number] if number < len(ENGINES) else "dma"
