"""In which order an engine takes its instructions, where taking them as written would let it wait for its own results.

An instruction that reads what the one before it on the same engine wrote waits until that is written. The compiler
puts one in between that does not: mamba's 4,480 instructions on Vector (row K031) take at most 29 ns each besides
their elements, where waiting for the one before alone would take 136. Nothing is moved further than
`machine.reorder_reach` rows, and buffers keep their places: who hands on memory to whom is decided before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from nki_sim.contract.opcodes import meeting_rows
from nki_sim.machine import Machine
from nki_sim.program.program import Program
from nki_sim.program.regions import Regions
from nki_sim.timing.compiler.places import Waits
from nki_sim.timing.compiler.work_order import near_befores, ordered_work
from nki_sim.timing.cost import RESOURCES, Cost

_ELEMENTWISE = tuple(RESOURCES.index(name) for name in ("vector", "scalar", "gpsimd"))
_LEAST_WORK, _LEAST_WAITS, _LEAST_TOGETHER = 0.5, 0.02, 0.8
"""Of the latency: what the busiest of these engines works, what it waits for itself, and both, from which on its order
is looked at. Elsewhere something else decides the latency."""


class Found(Protocol):
    """Of nki_sim.timing.schedule_pass.Pass, what is asked for here."""

    @property
    def latency_ns(self) -> float: ...
    @property
    def start(self) -> np.ndarray: ...
    @property
    def end(self) -> np.ndarray: ...
    @property
    def cause(self) -> np.ndarray: ...


def engine_that_waits(program: Program, costs: Sequence[Cost], found: Found) -> int | None:
    """The elementwise engine that decides the latency and often waits for itself; as in RESOURCES."""
    resource_of = np.array([RESOURCES.index(price.resource) for price in costs], np.int64)
    counts = np.bincount(program.template_ids, minlength=len(costs))
    busy = np.bincount(resource_of, counts * np.array([price.busy_ns for price in costs]), len(RESOURCES))
    engine = max(_ELEMENTWISE, key=lambda each: float(busy[each]))
    if busy[engine] < _LEAST_WORK * found.latency_ns or meeting_rows(program).size:
        return None
    mine = resource_of[program.template_ids] == engine
    rows = np.flatnonzero(mine)
    rows = rows[np.argsort(found.start[rows], kind="stable")]
    idle = found.start[rows[1:]] - np.maximum.accumulate(found.end[rows])[:-1]
    cause = found.cause[rows[1:]]
    waits = float(idle[(idle > 0) & (cause >= 0) & mine[cause]].sum())
    together = float(busy[engine]) + waits
    enough = waits >= _LEAST_WAITS * found.latency_ns and together >= _LEAST_TOGETHER * found.latency_ns
    return engine if enough else None


def order_of_work(
    program: Program, machine: Machine, costs: Sequence[Cost], regions: Regions, waits: Waits, engine: int
) -> np.ndarray:
    """int64: the rows, in an order in which `engine` waits less for itself; every other queue keeps its own."""
    rows, reads = len(program), len(regions.reads.values)
    given = [
        each
        for lists in (
            regions.reads, regions.writes, regions.overlapping, waits.closed, waits.groups, waits.members, waits.ends
        )
        for each in (lists.starts, lists.values)
    ]  # fmt: skip

    def found_near(near: np.ndarray) -> tuple[np.ndarray, int]:
        work = [np.full(size, -1, np.int64) for size in (len(regions), len(regions), reads, reads)]
        starts = np.zeros(rows + 1, np.int64)
        return starts, near_befores(machine.reorder_reach, *given, *work, starts, near)

    near = np.zeros(max(1, found_near(np.zeros(0, np.int64))[1]), np.int64)
    starts, _ = found_near(near)
    ids, order = program.template_ids, np.zeros(rows, np.int64)
    ordered_work(
        machine.reorder_reach, engine, np.array([RESOURCES.index(price.resource) for price in costs], np.int64)[ids],
        _befores(ids, costs, engine), np.array([price.busy_ns for price in costs])[ids],
        np.array([_until_others_go_on(price, engine) for price in costs])[ids], starts, near, np.zeros(rows),
        np.zeros(rows, np.int64), order,
    )  # fmt: skip
    return order


def _until_others_go_on(price: Cost, engine: int) -> float:
    """ns. What is loaded is there before it is needed: the transfers' own queues see to that."""
    if price.transfer is not None:
        return 0.0
    return price.latency_ns if RESOURCES[engine] == price.resource else price.busy_ns + price.latency_ns


def _befores(ids: np.ndarray, costs: Sequence[Cost], engine: int) -> np.ndarray:
    """int64 by row: the row before it in its queue, which it stays behind; -1 for the first, and for `engine`'s. What
    comes in and what goes out are queues of their own."""
    queues = [
        -1 if price.resource == RESOURCES[engine] else 2 * RESOURCES.index(price.resource) + _outward(price)
        for price in costs
    ]
    queue = np.array(queues, np.int64)[ids]
    before = np.full(len(ids), -1, np.int64)
    for number in np.unique(queue[queue >= 0]).tolist():
        rows = np.flatnonzero(queue == number)
        before[rows[1:]] = rows[:-1]
    return before


def _outward(price: Cost) -> bool:
    return price.transfer is not None and price.transfer.outward
