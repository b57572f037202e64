"""The same timelines as `nki_sim.one_pass`, by the compiled functions: programs as flat arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nki_sim import compiled, compiled_walk
from nki_sim.compiler.places import find_waits
from nki_sim.compiler.queues import engine_that_waits, order_of_work
from nki_sim.cost import RESOURCES, Cost
from nki_sim.machine import Machine
from nki_sim.one_pass import Pass, array_parts, dma_slice_ns, kind_of, least_busy_ns, port_slots
from nki_sim.program import Program
from nki_sim.regions import Lists, find_regions


def timed(
    program: Program, machine: Machine, costs: Sequence[Cost], held: Mapping[int, float], bound_ns: float
) -> Pass | None:
    """As one_pass.timed; None where that is to do it."""
    core = compiled.functions()
    return None if core is None else _timed(core, program, machine, costs, held, bound_ns)


# --- from programs to arrays ----------------------------------------------------------------------


def _timed(
    core: Any, program: Program, machine: Machine, costs: Sequence[Cost], held: Mapping[int, float], bound_ns: float
) -> Pass:
    regions = find_regions(program)
    rows = len(program)
    reads, writes = regions.reads, regions.writes
    overlaps = regions.overlapping
    waits = closed, groups, ends, members = find_waits(program, machine, regions)
    ids = program.template_ids.astype(np.int64)  # a copy: Numba compiles anew for what cannot be written to
    prices = _Prices(program, machine, costs)
    held_ns = np.zeros(rows if held else 0)
    for row, ns in held.items():
        held_ns[row] = ns
    fetched = core.fetched_transfers(
        ids, prices.kinds == compiled_walk.TRANSFER, prices.kinds >= compiled_walk.MATMUL, reads.starts, reads.values,
        writes.starts, writes.values, overlaps.starts, overlaps.values,
    )  # fmt: skip
    tensor_waits = machine.tensor_wait_ns * fetched

    start, issued, end, ready, cause = shown = (*(np.empty(rows) for _ in range(4)), np.empty(rows, np.int64))
    times, who = np.empty((len(regions), 3)), np.empty((len(regions), 2), np.int64)
    booked = [np.zeros((0, 4)), np.zeros((0, 2), np.int64), np.zeros((0, machine.dma_engines))]

    def walk(order: np.ndarray, is_cold: np.ndarray) -> Pass:
        """Its arrays are the same each time."""
        nonlocal booked
        latency_ns, table_loads, throttled_ns, *booked = core.one_pass(
            order, ids, *prices.arrays, prices.beside.starts, prices.beside.values,
            reads.starts, reads.values, writes.starts, writes.values, overlaps.starts, overlaps.values,
            closed.starts, closed.values, groups.starts, groups.values, members.starts, members.values,
            ends.starts, ends.values, held_ns,
            tensor_waits, is_cold, np.array(least_busy_ns(costs)), float(machine.activation_table_load_ns),
            float(machine.throttle_factor), machine.psum_banks, float(dma_slice_ns(costs, bound_ns)),
            start, issued, end, ready, cause, times, who, *booked,
        )  # fmt: skip
        return Pass(latency_ns, start, issued, end, ready, cause, table_loads, throttled_ns)

    order, is_cold = np.arange(rows, dtype=np.int64), np.zeros(rows, np.uint8)
    found = walk(order, is_cold)
    engine = engine_that_waits(program, costs, found)
    if engine is not None:
        kept = [column.copy() for column in shown]
        other = order_of_work(program, machine, costs, regions, waits, engine)
        again = walk(other, is_cold)
        if again.latency_ns < found.latency_ns:
            order, found = other, again
        else:
            for column, before in zip(shown, kept):
                column[:] = before
    cooled = _cool(core, program, machine, costs, prices, found, is_cold)
    return walk(order, is_cold) if cooled else found


class _Prices:
    """What the walk knows of each template."""

    def __init__(self, program: Program, machine: Machine, costs: Sequence[Cost]) -> None:
        parts, beside = array_parts(costs, machine)
        tables: dict[str, int] = {"": 0}
        self.kinds = np.array([kind_of(price, template) for price, template in zip(costs, program.templates)], np.int64)
        moves = np.zeros((len(costs), 5))
        slots = np.full((len(costs), 3), -1, np.int64)
        for number, price in enumerate(costs):
            if price.transfer is not None:
                move = price.transfer
                moves[number] = (
                    move.start_ns, move.engine_ns, move.first_engine, move.last_engine, move.outward,
                )  # fmt: skip
            for k, (own, _) in enumerate(port_slots(price)):
                slots[number, k] = own
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


def _cool(
    core: Any, program: Program, machine: Machine, costs: Sequence[Cost], prices: _Prices, found: Pass, is_cold: Any
) -> int:
    """Marks the products that TensorE carries out cold, as one_pass._cold_matmuls names them: how many."""
    if machine.throttle_factor == 1.0:
        return 0
    rows = np.flatnonzero((prices.kinds >= compiled_walk.MATMUL)[program.template_ids])
    rows = rows[np.argsort(found.start[rows], kind="stable")]
    ids = program.template_ids[rows]
    cold: int = core.cold_products(
        rows, found.start[rows],
        np.array([price.busy_ns for price in costs])[ids], np.array([price.activity_ns for price in costs])[ids],
        float(machine.throttle_warming), float(machine.throttle_utilization),
        float(machine.throttle_window_ns * (1.0 - machine.throttle_warming)), float(machine.throttle_lacking_ns),
        float(machine.throttle_factor), is_cold,
    )  # fmt: skip
    return cold
