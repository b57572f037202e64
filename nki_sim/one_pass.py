"""One pass over a program's rows: each at the earliest time that its engine has for it. In Python.

What it computes is the definition; `nki_sim.compiled_pass` comes to the same bits faster, where Numba is there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, TypeVar

import numpy as np

from nki_sim.compiler.places import Waits, find_waits
from nki_sim.compiler.queues import engine_that_waits, order_of_work
from nki_sim.cost import RESOURCES, Cost
from nki_sim.dma_pool import Backfilling, DescriptorWriter
from nki_sim.machine import Machine
from nki_sim.program import Program, Template
from nki_sim.regions import Regions, find_regions

PORT_USERS = {
    "sbuf": ("vector", "gpsimd"),
    "psum": ("vector", "scalar"),
    "descriptors": ("gpsimd", "dma.gpsimd"),
}

_SOFTWARE = RESOURCES.index("dma.gpsimd")
_TENSOR = RESOURCES.index("tensor")
_PLAIN, _FUNCTION, _TRANSFER, _MATMUL, _ACCUMULATE = range(5)

_GAPS_KEPT = 64
"""Idle gaps an engine remembers: how far the scheduler looks back."""
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
    cause: np.ndarray
    table_loads: int
    throttled_ns: float


def timed(
    program: Program, machine: Machine, costs: Sequence[Cost], held: Mapping[int, float], bound_ns: float
) -> Pass:
    """`held`: by instruction, ns before which it does not begin. `bound_ns`: of `nki_sim.schedule.resource_bound`."""
    regions = find_regions(program)
    waits = find_waits(program, machine, regions)
    fetched = _fetched_operands(program, costs, regions)
    order: Sequence[int] = range(len(program))
    found = _run(program, machine, costs, regions, waits, fetched, held, bound_ns, order)
    engine = engine_that_waits(program, costs, found)
    if engine is not None:
        other = order_of_work(program, machine, costs, regions, waits, engine).tolist()
        again = _run(program, machine, costs, regions, waits, fetched, held, bound_ns, other)
        if again.latency_ns < found.latency_ns:
            order, found = other, again
    cold = _cold_matmuls(program, machine, costs, found)
    if cold:
        found = _run(program, machine, costs, regions, waits, fetched, held, bound_ns, order, cold)
    return found


def kind_of(price: Cost, template: Template) -> int:
    if price.transfer is not None:
        return _TRANSFER
    if price.resource == "tensor":
        return _ACCUMULATE if any(operand.access == "u" for operand in template.operands) else _MATMUL
    return _FUNCTION if price.table else _PLAIN


def array_parts(costs: Sequence[Cost], machine: Machine) -> tuple[list[tuple[int, float] | None], list[list[int]]]:
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


def port_slots(price: Cost) -> tuple[tuple[int, int], ...]:
    """(own slot, the other user's slot) for every port it shares."""
    slots = []
    for number, (port, users) in enumerate(PORT_USERS.items()):
        if port in price.ports:
            own = users.index(price.resource)
            slots.append((2 * number + own, 2 * number + 1 - own))
    return tuple(slots)


Prepared = tuple[int, float, float, int, Any, tuple[tuple[int, int], ...]]
"""Resource, busy ns, latency ns, kind, what its kind needs besides (table, transfer or part of the array), ports."""


def _prepared(program: Program, machine: Machine, costs: Sequence[Cost]) -> tuple[list[Prepared], list[list[int]]]:
    """By template; and which parts of TensorE's array overlap."""
    parts, overlapping = array_parts(costs, machine)
    return [
        (
            RESOURCES.index(price.resource),
            price.busy_ns,
            price.latency_ns,
            kind_of(price, template),
            price.table or price.transfer or part,
            port_slots(price),
        )
        for price, template, part in zip(costs, program.templates, parts)
    ], overlapping


def _fetched_operands(program: Program, costs: Sequence[Cost], regions: Regions) -> dict[int, int]:
    """Matmul to the number of transfers for whose data TensorE waits there first."""
    fetching = np.array([price.transfer is not None for price in costs], np.bool_)[program.template_ids]
    tensor = np.array([price.resource == "tensor" for price in costs], np.bool_)[program.template_ids]
    brought_by = [-1] * len(regions)
    waited_for = bytearray(len(program))
    found: dict[int, int] = {}
    overlaps, read, written = regions.overlaps, regions.read, regions.written
    rows = np.flatnonzero(fetching | tensor)
    for row, is_transfer in zip(rows.tolist(), fetching[rows].tolist()):
        if is_transfer:
            for region in written[row]:
                brought_by[region] = row
                for other in overlaps[region] or ():
                    brought_by[other] = row
            continue
        for region in read[row]:
            transfer = brought_by[region]
            if transfer >= 0 and not waited_for[transfer]:
                waited_for[transfer] = 1
                found[row] = found.get(row, 0) + 1
    return found


def dma_slice_ns(costs: Sequence[Cost], bound_ns: float) -> float:
    """How finely the time of the DMA engines is booked."""
    moves = [price.transfer.engine_ns for price in costs if price.transfer is not None]
    mean = fsum(moves) / len(moves) if moves else 0.0
    finest = max(_FINEST_SLICE_NS, 2 * bound_ns / _MOST_SLICES)
    return max(finest, min(_COARSEST_SLICE_NS, mean))


def least_busy_ns(costs: Sequence[Cost]) -> list[float]:
    """By resource: its shortest instruction; no gap smaller than that can be filled."""
    return [min((price.busy_ns for price in costs if price.resource == name), default=0.0) for name in RESOURCES]


def _cold_matmuls(program: Program, machine: Machine, costs: Sequence[Cost], found: Pass) -> frozenset[int]:
    """The instructions that TensorE carries out at the clock of a cold array.

    In the order of time. While it is cold, the work beyond `throttle_warming` of the array's rows adds up until it is
    warm; while it is warm, what is lacking to `throttle_utilization` of them until it is cold. What is to the contrary
    is taken off again. It begins cold.
    """
    if machine.throttle_factor == 1.0:
        return frozenset()
    tensor = np.array([price.resource == "tensor" for price in costs], np.bool_)[program.template_ids]
    rows = np.flatnonzero(tensor)
    starts = found.start[rows]
    rows = rows[np.argsort(starts, kind="stable")]
    busy = np.array([price.busy_ns for price in costs])[program.template_ids[rows]].tolist()
    active = np.array([price.activity_ns for price in costs])[program.template_ids[rows]].tolist()
    warming, wanted = machine.throttle_warming, machine.throttle_utilization
    warm_at, cold_at = machine.throttle_window_ns * (1.0 - warming), machine.throttle_lacking_ns
    cold: list[int] = []
    free, so_far, is_cold = 0.0, 0.0, True
    for row, start, hold, activity in zip(rows.tolist(), np.sort(starts).tolist(), busy, active):
        begin = start if start > free else free
        share = activity / hold
        if is_cold:
            so_far -= warming * (begin - free)
            if so_far < 0.0:
                so_far = 0.0
        else:
            so_far += wanted * (begin - free)
            if so_far >= cold_at:
                so_far, is_cold = 0.0, True
        if is_cold:
            cold.append(row)
            hold *= machine.throttle_factor
            so_far += (share - warming) * hold
            if so_far >= warm_at:
                so_far, is_cold = 0.0, False
        else:
            so_far += (wanted - share) * hold
            if so_far >= cold_at:
                so_far, is_cold = 0.0, True
        if so_far < 0.0:
            so_far = 0.0
        free = begin + hold
    return frozenset(cold)


def _run(
    program: Program,
    machine: Machine,
    costs: Sequence[Cost],
    regions: Regions,
    waits: Waits,
    fetched: dict[int, int],
    held: Mapping[int, float],
    bound_ns: float,
    order: Sequence[int],
    cold: frozenset[int] = frozenset(),
) -> Pass:
    """One pass over the rows in this order; each is put at the earliest time that its engine has for it.

    The loop stays in one piece: each call per instruction that was tried cost 2 to 5 % of the speed.
    """
    prepared, overlapping_parts = _prepared(program, machine, costs)
    part_until = [0.0] * len(overlapping_parts)  # when each part of TensorE's array is free again
    overlaps = regions.overlaps
    size = len(regions)
    visible = [0.0] * size  # when the last write may be read
    visible_to_tensor = [0.0] * size  # the same for TensorE, which forwards its own results
    read_until = [0.0] * size  # when the last reader is done
    writer = [-1] * size
    reader = [-1] * size
    tails = [0.0] * len(RESOURCES)
    gap_low: list[list[float]] = [[] for _ in RESOURCES]
    gap_high: list[list[float]] = [[] for _ in RESOURCES]
    smallest = least_busy_ns(costs)
    pool = Backfilling(machine.dma_engines, dma_slice_ns(costs, bound_ns))
    book = pool.book
    write_descriptors = DescriptorWriter().write
    throttle = machine.throttle_factor
    throttled = 0.0
    this_sum: tuple[int, ...] = ()
    before_sums: deque[float] = deque([0.0] * machine.psum_banks, machine.psum_banks)  # TensorE's ends as each began
    table = ""
    table_ns, table_loads = machine.activation_table_load_ns, 0
    port_from = [0.0] * (2 * len(PORT_USERS))  # when each engine last held a port that it shares
    port_until = [0.0] * (2 * len(PORT_USERS))

    count = len(program)
    starts, issues, ends, readies, causes = [0.0] * count, [0.0] * count, [0.0] * count, [0.0] * count, [-1] * count
    latest = 0.0
    closed_regions, members = waits.closed.tuples(), waits.members.tuples()
    waits_for_groups, waits_for_ends = waits.groups.tuples(), waits.ends.tuples()
    tensor_waits = [0.0] * count
    for row, transfers in fetched.items():
        tensor_waits[row] = machine.tensor_wait_ns * transfers
    is_cold = bytearray(count)
    for row in cold:
        is_cold[row] = 1
    stops = bytearray(count)
    stopping = (np.diff(waits.groups.starts) > 0) | (np.diff(waits.ends.starts) > 0)
    for row in (*np.flatnonzero(stopping).tolist(), *held):
        stops[row] = 1
    opened: dict[int, tuple[float, int]] = {}  # by group of regions, all of which stand in earlier rows
    each = [prepared[number] for number in program.template_ids.tolist()]
    columns = zip(
        order, _taken(each, order), _taken(regions.read, order), _taken(regions.written, order),
        _taken(closed_regions, order), _taken(tensor_waits, order), _taken(is_cold, order), _taken(stops, order),
    )  # fmt: skip
    for i, priced, read, written, closed, tensor_wait_ns, throttling, stop in columns:
        resource, busy, latency, kind, extra, ports = priced
        ready = 0.0
        cause = -1
        # what it waits for
        for region in read:
            when = visible[region]
            if when > ready:
                ready = when
                cause = writer[region]
            others = overlaps[region]
            if others is not None:
                for other in others:
                    when = visible[other]
                    if when > ready:
                        ready = when
                        cause = writer[other]
        if written:
            seen_by_me = visible_to_tensor if kind == _ACCUMULATE else visible
            for region in written:
                when = seen_by_me[region]
                if when > ready:
                    ready = when
                    cause = writer[region]
                when = read_until[region]
                if when > ready:
                    ready = when
                    cause = reader[region]
                others = overlaps[region]
                if others is not None:
                    ready, cause = _after(others, ready, cause, seen_by_me, writer, read_until, reader)
        if closed:
            for region in closed:
                when = visible[region]
                if when > ready:
                    ready = when
                    cause = writer[region]
                when = read_until[region]
                if when > ready:
                    ready = when
                    cause = reader[region]
        if stop:
            if held.get(i, 0.0) > ready:
                ready = held[i]
                cause = -1
            for group in waits_for_groups[i]:
                if group not in opened:
                    opened[group] = _after(members[group], 0.0, -1, visible, writer, read_until, reader)
                if opened[group][0] > ready:
                    ready, cause = opened[group]
            for before in waits_for_ends[i]:
                when = ends[before]
                if when > ready:
                    ready = when
                    cause = before

        # what its engine adds
        tail = tails[resource]
        may_fill = True
        earliest = ready
        if kind >= _MATMUL:
            hold = busy
            if extra is not None:
                part, hold = extra
                for other in overlapping_parts[part]:
                    if part_until[other] > earliest:
                        earliest = part_until[other]
            if throttling:
                throttled += busy * (throttle - 1.0)
                busy *= throttle
                hold *= throttle
            busy += tensor_wait_ns  # no work of the array: its clock does not stretch it
        elif kind == _FUNCTION:
            if extra != table:
                table = extra
                table_loads += 1
                tail += table_ns
                may_fill = False
        if ports:
            for _, other in ports:
                when = earliest if earliest > tail else tail
                if when < port_until[other] and when + busy > port_from[other]:
                    earliest = port_until[other]

        # where it fits
        if resource == _SOFTWARE:
            begun, written_by = write_descriptors(earliest, busy, extra.outward)
            start = written_by - busy  # of the whole if it were in one piece
            busy = written_by - begun
        elif earliest >= tail:
            start = earliest
            if start - tail > smallest[resource]:
                low, high = gap_low[resource], gap_high[resource]
                low.append(tail)
                high.append(start)
                if len(low) > 2 * _GAPS_KEPT:
                    del low[:_GAPS_KEPT], high[:_GAPS_KEPT]
            tails[resource] = start + busy
        else:
            start = -1.0
            high = gap_high[resource]
            if high and high[-1] >= earliest + busy and may_fill:
                if resource == _TENSOR and before_sums[0] > earliest:
                    earliest = before_sums[0]  # ahead of no more sums than PSUM has banks
                start = _fill_gap(gap_low[resource], high, earliest, busy, smallest[resource])
            if start < 0.0:
                start = tail
                tails[resource] = start + busy
        done = kept = start + busy
        issues[i] = start
        if kind >= _MATMUL:
            if written != this_sum:
                this_sum = written
                before_sums.append(tails[resource])
            if extra is not None:
                done = start + hold
                if done > part_until[part]:
                    part_until[part] = done
        elif kind == _TRANSFER:
            move = extra
            if resource == _SOFTWARE:
                issues[i] = begun
            start, done = book(start + move.start_ns, move.first_engine, move.last_engine, move.engine_ns, move.outward)
        if ports:
            for own, _ in ports:
                port_from[own], port_until[own] = issues[i], kept
        seen = done + latency

        # who waits for it
        for region in read:
            if done > read_until[region]:
                read_until[region] = done
                reader[region] = i
        if written:
            forwarded = done if kind >= _MATMUL else seen
            for region in written:
                visible[region] = seen
                visible_to_tensor[region] = forwarded
                writer[region] = i
        starts[i] = start
        ends[i] = done
        readies[i] = ready
        causes[i] = cause
        if seen > latest:
            latest = seen
    if pool.put_off_until > latest:
        latest = pool.put_off_until
    start, issued, end, ready_ns = (np.array(each, np.float64) for each in (starts, issues, ends, readies))
    return Pass(latest, start, issued, end, ready_ns, np.array(causes, np.int64), table_loads, throttled)


_T = TypeVar("_T")


def _taken(column: Sequence[_T], order: Sequence[int]) -> Sequence[_T]:
    """What is given by row, in this order."""
    return column if order == range(len(column)) else [column[row] for row in order]


def _after(
    regions: Sequence[int],
    ready: float,
    cause: int,
    visible: list[float],
    writer: list[int],
    read_until: list[float],
    reader: list[int],
) -> tuple[float, int]:
    """(when all of these regions have been written and read, who was last), if that is later than `ready`."""
    for region in regions:
        when = visible[region]
        if when > ready:
            ready = when
            cause = writer[region]
        when = read_until[region]
        if when > ready:
            ready = when
            cause = reader[region]
    return ready, cause


def _fill_gap(low: list[float], high: list[float], earliest: float, busy: float, smallest: float) -> float:
    """Take the first idle gap that holds `busy` ns; when it starts, or -1 if none does.

    What is left of the gap stays one if anything could fit.
    """
    for k in range(bisect_left(high, earliest + busy), len(high)):
        begin = low[k]
        if begin < earliest:
            begin = earliest
        end = begin + busy
        if end > high[k]:
            continue
        before = begin - low[k] >= smallest > 0
        after = high[k] - end >= smallest > 0
        if before and after:
            low.insert(k + 1, end)
            high.insert(k, begin)
        elif before:
            high[k] = begin
        elif after:
            low[k] = end
        else:
            del low[k], high[k]
        return begin
    return -1.0
