"""Passes over a program's rows: prices as arrays, one walk in the order of the rows, others where that pays off.

The walk itself is `nki_sim.timing.list_scheduler`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

import numpy as np

from nki_sim.machine import Machine
from nki_sim.program.program import Program, Template
from nki_sim.program.regions import Lists, Regions, find_regions
from nki_sim.timing import resource_check
from nki_sim.timing.compiler.places import Waits, find_waits
from nki_sim.timing.compiler.queues import engine_that_waits, order_of_work
from nki_sim.timing.cost import RESOURCES, Cost
from nki_sim.timing.list_scheduler import (  # fmt: skip
    ACCUMULATE,
    ALL,
    CALENDARS,
    FUNCTION,
    FURTHEST,
    GAPS_KEPT,
    LATEST,
    MATMUL,
    OWED,
    PLAIN,
    PSUM_PORT,
    PUT_OFF_UNTIL,
    SBUF_PORT,
    SLICES_AHEAD,
    SOFTWARE,
    SUM_ROW,
    TABLE_LOADS,
    THROTTLED,
    TRANSFER,
    cold_products,
    ends_later,
    fetched_transfers,
    walked,
)

_PORTS = {"sbuf": SBUF_PORT, "psum": PSUM_PORT, "descriptors": SOFTWARE}
"""Where else than in its resource's calendar an instruction is entered."""

_FINEST_SLICE_NS, _COARSEST_SLICE_NS, _MOST_SLICES = 192.0, 20_000.0, 200_000
"""Of DMA time: about one transfer, and few enough for memory."""


@dataclass(frozen=True)
class Pass:
    """What a Timeline holds of each instruction shown, and of all."""

    latency_ns: float
    start: np.ndarray
    issued: np.ndarray
    end: np.ndarray
    ready: np.ndarray
    released: np.ndarray
    """float64: when its engine or queue is free again."""
    cause: np.ndarray
    table_loads: int
    throttled_ns: float


def timed(
    program: Program, machine: Machine, costs: Sequence[Cost], held: Mapping[int, float], bound_ns: float
) -> Pass:
    """`held`: by instruction, ns before which it does not begin. `bound_ns`: of `schedule.resource_bound`."""
    regions = find_regions(program)
    waits = find_waits(program, machine, regions)
    walk = _Walk(program, machine, costs, regions, waits, held, _dma_slice_ns(program, costs, bound_ns), bound_ns)
    order, is_cold = np.arange(len(program), dtype=np.int64), np.zeros(len(program), np.bool_)
    none = np.zeros(len(program))
    found = walk.run(order, is_cold, none)
    engine = engine_that_waits(program, costs, found.shown)
    if engine is not None:
        other = order_of_work(program, machine, costs, regions, waits, engine)
        again = walk.run(other, is_cold, none)
        if again.shown.latency_ns < found.shown.latency_ns:
            order, found = other, again
    cold = _cool(program, machine, costs, found.shown, is_cold)
    shown = _settled(walk, order, is_cold, found, cold > 0).shown
    if resource_check.CHECKS:
        times = shown.issued, shown.released, shown.start, shown.end
        resource_check.check_resources(costs, program.template_ids, *times, walk.slice_ns)
    return shown


_MOST_WALKS, _SAME_LATENCY, _NOT_NEEDED = 8, 1.005, 0.2


def _settled(walk: _Walk, order: np.ndarray, is_cold: np.ndarray, first: _Run, stale: bool) -> _Run:
    """A walk in which no transfer ends before its data can have been moved, but for two slices of DMA time.

    How much later one ends that gives way follows from a walk (`first`, where all end as booked) and changes the next
    one. Mostly nobody waits for it, and the next one needs the same. Else what is not needed is taken off again by
    halves, as long as that makes the program faster. `stale`: `first` was without `is_cold`.
    """
    if not stale and _is_settled(walk, first, np.zeros(len(order))):
        return first
    found = walk.run(order, is_cold, first.delays)
    if _is_settled(walk, found, first.delays):
        not_needed = np.maximum(first.delays - found.delays, 0.0)
        if not_needed.sum() <= _NOT_NEEDED * first.delays.sum() or not_needed.max() <= 2 * walk.slice_ns:
            return found
    if stale:
        first = walk.run(order, is_cold, np.zeros(len(order)))
    found, delays, best = first, np.zeros(len(order)), None
    for attempt in range(_MOST_WALKS):
        if _is_settled(walk, found, delays):
            if best is not None and found.shown.latency_ns * _SAME_LATENCY > best.shown.latency_ns:
                return best
            best = found
            if best.shown.latency_ns <= _SAME_LATENCY * first.shown.latency_ns:
                return best
        delays = np.maximum(found.delays, delays if best is None else 0.5 * (found.delays + delays))
        found = walk.run(order, is_cold, delays)
    if best is None:
        late = float((found.delays - delays).max(initial=0.0))
        best = replace(found, shown=replace(found.shown, latency_ns=found.shown.latency_ns + late))
    return best


def _is_settled(walk: _Walk, found: _Run, delays: np.ndarray) -> bool:
    return float((found.delays - delays).max(initial=0.0)) <= 2 * walk.slice_ns


def _cool(program: Program, machine: Machine, costs: Sequence[Cost], found: Pass, is_cold: np.ndarray) -> int:
    """Sets `is_cold` (bool by row) for the products that TensorE carries out at the clock of a cold array: how many."""
    rows = np.flatnonzero(is_product(costs)[program.template_ids])
    rows = rows[np.argsort(found.start[rows], kind="stable")]
    return cooled(program, machine, costs, rows, found.start[rows], is_cold, np.zeros(3))


def is_product(costs: Sequence[Cost]) -> np.ndarray:
    """bool by template."""
    return np.array([price.resource == "tensor" for price in costs], np.bool_)


def cooled(
    program: Program,
    machine: Machine,
    costs: Sequence[Cost],
    rows: np.ndarray,
    starts: np.ndarray,
    is_cold: np.ndarray,
    state: np.ndarray,
) -> int:
    """As cold_products, of these rows in the order of their starts; none where the machine has no throttle."""
    if machine.throttle_factor == 1.0:
        return 0
    ids = program.template_ids[rows]
    return cold_products(
        rows, starts, np.array([price.busy_ns for price in costs])[ids],
        np.array([price.activity_ns for price in costs])[ids], machine.throttle_warming, machine.throttle_utilization,
        machine.throttle_window_ns * (1.0 - machine.throttle_warming), machine.throttle_lacking_ns,
        machine.throttle_factor, is_cold, state,
    )  # fmt: skip


@dataclass(frozen=True)
class _Run:
    shown: Pass
    delays: np.ndarray
    """float64 by row: of transfers, as they should have been."""


class _Walk:
    """One program's arrays, and the memory that walks over it work in."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        costs: Sequence[Cost],
        regions: Regions,
        waits: Waits,
        held: Mapping[int, float],
        slice_ns: float,
        bound_ns: float,
    ) -> None:
        rows = len(program)
        prices = _Prices(program, machine, costs)
        ids = program.stream[0]
        lists = (regions.reads, regions.writes, regions.overlapping)
        touched = [each for one in lists for each in (one.starts, one.values)]
        fetched = fetched_transfers(ids, prices.kinds == TRANSFER, prices.kinds >= MATMUL, *touched)
        waited = (waits.closed, waits.groups, waits.members, waits.ends)
        held_ns = np.zeros(rows if held else 0)
        for row, ns in held.items():
            held_ns[row] = ns
        self._ids = ids
        self._moves = prices.arrays[5]
        self._program = (
            *prices.arrays, prices.beside.starts, prices.beside.values, *touched,
            *[each for one in waited for each in (one.starts, one.values)], held_ns, machine.tensor_wait_ns * fetched,
        )  # fmt: skip
        self._machine = (
            _least_busy_ns(costs), float(machine.activation_table_load_ns), float(machine.throttle_factor),
            slice_ns, machine.tensor_runs_ahead,
        )  # fmt: skip
        self._banks, self._engines, self.slice_ns = machine.psum_banks, machine.dma_engines, slice_ns
        self._sizes = len(prices.beside.starts) - 1, len(waits.members.starts) - 1
        moves = [(price.busy_ns, price.transfer) for price in costs if price.transfer is not None]
        self._longest_ns = max((ns + move.start_ns + 2.0 * move.engine_ns for ns, move in moves), default=0.0)
        self._held_until = float(held_ns.max(initial=0.0))
        self._apart = any(move.last_engine - move.first_engine + 1 != machine.dma_engines for _, move in moves)
        self._slices, self._skips, self._each = self._booked(int(2.0 * bound_ns / slice_ns) + 2 * SLICES_AHEAD)
        self._used = 0
        self._times, self._who = np.empty((len(regions), 3)), np.empty((len(regions), 2), np.int64)

    def run(self, order: np.ndarray, is_cold: np.ndarray, delays: np.ndarray) -> _Run:
        """The rows in this order (int64), each at the earliest time that its engine has for it. `is_cold`: bool by row,
        of products at the clock of a cold array.

        delays: float64 by row, how much later a transfer ends because it gives way to the other direction.
        """
        rows = len(order)
        parts, groups = self._sizes
        start, issued, end, ready, released = (np.empty(rows) for _ in range(5))
        cause = np.empty(rows, np.int64)
        booked = np.full(rows, -1.0)
        self._times[:], self._who[:] = 0.0, -1
        low, high = (np.zeros((CALENDARS, 4 * GAPS_KEPT)) for _ in range(2))
        gaps, tails = np.zeros(CALENDARS, np.int64), np.zeros(CALENDARS)
        queues = np.zeros(2), np.zeros(self._banks), np.zeros(parts)
        opened = np.full(groups, -1.0), np.full(groups, -1, np.int64)
        ns, counts = np.zeros(4), np.zeros(4, np.int64)
        ns[FURTHEST], counts[SUM_ROW] = self._held_until, -1
        for booked_before in (self._slices, self._skips, self._each):
            booked_before[: self._used] = 0
        place = 0
        while True:
            place = walked(
                place, order, self._ids, *self._program, is_cold, *self._machine, delays, start, issued, end, ready,
                released, cause, booked, self._times, self._who, tails, low, high, gaps, self._slices, self._skips,
                self._each, *queues, *opened, ns, counts,
            )  # fmt: skip
            if place == rows:
                break
            if gaps.max() + 2 > low.shape[1]:
                low, high = (np.concatenate((each, np.zeros_like(each)), axis=1) for each in (low, high))
            wanted = int((ns[FURTHEST] + self._longest_ns) / self.slice_ns) + 2 * SLICES_AHEAD
            if wanted > len(self._slices):
                self._grow(max(wanted, 2 * len(self._slices)))
        self._used = int(ns[FURTHEST] / self.slice_ns) + 2
        latest = max(float(ns[LATEST]), self._put_off_until(float(ns[PUT_OFF_UNTIL])))
        shown = Pass(latest, start, issued, end, ready, released, cause, int(counts[TABLE_LOADS]), float(ns[THROTTLED]))
        late = np.zeros(rows)
        if ns[PUT_OFF_UNTIL] > 0.0:
            ends_later(booked, self._ids, self._moves, self._slices[: self._used], self.slice_ns, late)
        return _Run(shown, late)

    def _grow(self, slices: int) -> None:
        more = self._booked(slices)
        for old, new in zip((self._slices, self._skips, self._each), more):
            new[: len(old)] = old
        self._slices, self._skips, self._each = more

    def _booked(self, slices: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """An empty calendar of the DMA engines: `slices`, `skips` and `each` of nki_sim.timing.list_scheduler."""
        each = np.zeros((slices if self._apart else 0, self._engines))
        return np.zeros((slices, OWED + 2)), np.zeros((slices, 2), np.int64), each

    def _put_off_until(self, until: float) -> float:
        """When the last of the work ends that gave way to the other direction on the DMA engines. The transfers that it
        belongs to keep the end that they were given; nothing is over before this."""
        index = int(until / self.slice_ns)
        if until == index * self.slice_ns:
            index -= 1
        if not 0 <= index < len(self._slices):
            return until
        return max(until, index * self.slice_ns + float(self._slices[index, ALL]))


def _kind_of(price: Cost, template: Template) -> int:
    if price.transfer is not None:
        return TRANSFER
    if price.resource == "tensor":
        return ACCUMULATE if any(operand.access == "u" for operand in template.operands) else MATMUL
    return FUNCTION if price.table else PLAIN


def _array_parts(costs: Sequence[Cost], machine: Machine) -> tuple[list[tuple[int, float] | None], list[list[int]]]:
    """By template: which part of TensorE's array it takes and for how long; by part: those it overlaps.

    Nothing where no product is tiled: then the engine's own queue says it all.
    """
    if all(price.array_tile is None for price in costs):
        return [None] * len(costs), []
    whole = (0, 0, machine.tensor_rows, machine.tensor_columns)
    parts: dict[tuple[int, int, int, int], int] = {}
    taken: list[tuple[int, float] | None] = []
    for price in costs:
        tile = price.array_tile
        where = (tile.row, tile.column, tile.rows, tile.columns) if tile is not None else whole
        hold_ns = tile.hold_ns if tile is not None else price.busy_ns
        taken.append((parts.setdefault(where, len(parts)), hold_ns) if price.resource == "tensor" else None)
    return taken, [[other for where, other in parts.items() if _overlap(where, part)] for part in parts]


def _overlap(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    """Of (row, column, rows, columns)."""
    return all(one[k] < other[k] + other[k + 2] and other[k] < one[k] + one[k + 2] for k in (0, 1))


def _dma_slice_ns(program: Program, costs: Sequence[Cost], bound_ns: float) -> float:
    """How finely the time of the DMA engines is booked; the same however many lines say the same transfer."""
    of_each = dict(zip(program.alike, costs)).values()
    moves = [price.transfer.engine_ns for price in of_each if price.transfer is not None]
    mean = fsum(moves) / len(moves) if moves else 0.0
    finest = max(_FINEST_SLICE_NS, 2 * bound_ns / _MOST_SLICES)
    return max(finest, min(_COARSEST_SLICE_NS, mean))


def _least_busy_ns(costs: Sequence[Cost]) -> np.ndarray:
    """By calendar: the shortest instruction in it; no gap smaller than that can be filled."""
    least = np.full(CALENDARS, np.inf)
    for price in costs:
        for calendar in (RESOURCES.index(price.resource), *[_PORTS[port] for port in price.ports]):
            least[calendar] = min(least[calendar], price.busy_ns)
    least[SOFTWARE] = np.finfo(np.float64).tiny  # descriptors are written in pieces
    return np.where(np.isinf(least), 0.0, least)


class _Prices:
    """What the walk knows of each template."""

    def __init__(self, program: Program, machine: Machine, costs: Sequence[Cost]) -> None:
        parts, beside = _array_parts(costs, machine)
        tables: dict[str, int] = {"": 0}
        self.kinds = np.array(
            [_kind_of(price, template) for price, template in zip(costs, program.templates)], np.int64
        )
        moves = np.zeros((len(costs), 5))
        slots = np.full((len(costs), 3), -1, np.int64)
        for number, price in enumerate(costs):
            if price.transfer is not None:
                move = price.transfer
                moves[number] = (
                    move.start_ns, move.engine_ns, move.first_engine, move.last_engine, move.outward,
                )  # fmt: skip
            also = [_PORTS[port] for port in price.ports if RESOURCES.index(price.resource) != _PORTS[port]]
            slots[number, : len(also)] = also
        self.arrays = (
            np.array([RESOURCES.index(price.resource) for price in costs], np.int64),
            np.array([price.busy_ns for price in costs], np.float64),
            np.array([price.latency_ns for price in costs], np.float64),
            self.kinds,
            np.array([tables.setdefault(price.table, len(tables)) for price in costs], np.int64),
            moves,
            slots,
            np.array([-1 if part is None else part[0] for part in parts], np.int64),
            np.array([0.0 if part is None else part[1] for part in parts], np.float64),
        )
        self.beside = Lists.of(beside)
