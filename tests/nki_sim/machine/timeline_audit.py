"""Any timeline against the definition, byte by byte and slowly.

No engine does two things at once, nothing runs before what it depends on, and no more memory is in use at any moment
than there is.
"""

from __future__ import annotations

import numpy as np

from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Program
from nki_sim.timing.compiler.spills import weight
from nki_sim.timing.cost import RESOURCES
from nki_sim.timing.schedule import Timeline

EPSILON_NS = 1e-6


def audit(timeline: Timeline) -> None:
    """Raises AssertionError, naming the rows."""
    _one_thing_at_a_time(timeline)
    _in_the_order_of_dependences(timeline)
    core = timeline.machine
    for region, capacity in (
        (MemoryRegion.sbuf, core.sbuf_partition_bytes),
        (MemoryRegion.psum, core.psum_banks * core.psum_bank_bytes),
    ):
        most = most_in_use(timeline, region)
        assert most <= capacity, f"{most:,.0f} bytes of {region.value} in use at once, {capacity:,} there are"


def rows_on(timeline: Timeline, resource: str) -> list[int]:
    """In the order in which they run."""
    numbers = timeline.program.template_ids.tolist()
    mine = [row for row, number in enumerate(numbers) if timeline.costs[number].resource == resource]
    return sorted(mine, key=lambda row: (timeline.issued_ns[row], row))


def _one_thing_at_a_time(timeline: Timeline) -> None:
    numbers = timeline.program.template_ids.tolist()
    busy = [timeline.costs[number].busy_ns for number in numbers]
    tiled = any(price.array_tile is not None for price in timeline.costs)
    for name in RESOURCES:
        mine = rows_on(timeline, name)
        if name == "dma.gpsimd":
            _two_rings(timeline, mine, busy)
            continue
        lasts = name.startswith("dma.") or (name == "tensor" and tiled)
        for before, after in zip(mine, mine[1:]):
            end = timeline.issued_ns[before] + busy[before] if lasts else timeline.end_ns[before]
            assert timeline.issued_ns[after] >= end - EPSILON_NS, (name, before, after)


def _two_rings(timeline: Timeline, rows: list[int], busy: list[float]) -> None:
    """Software may break off for the other ring, but writes as many descriptors as it has time for.

    A transfer's are written before its ring's next one begins.
    """
    windows: list[tuple[float, float, float]] = []
    for outward in (False, True):
        ring = [row for row in rows if _outward(timeline, row) is outward]
        assert ring == sorted(ring), "a ring is in the order of the program"
        for before, after in zip(ring, ring[1:]):
            begin, end = float(timeline.issued_ns[before]), float(timeline.issued_ns[after])
            assert end >= begin + busy[before] - EPSILON_NS, ("dma.gpsimd", before, after)
            windows.append((begin, end, busy[before]))
    for low, _, _ in windows:
        for _, high, _ in windows:
            work = sum(each for begin, end, each in windows if low <= begin and end <= high)
            assert work <= max(0.0, high - low) + EPSILON_NS, (low, high, work)


def _outward(timeline: Timeline, row: int) -> bool:
    move = timeline.costs[timeline.program.template_ids[row]].transfer
    assert move is not None
    return move.outward


def _touched(program: Program, row: int, operand_number: int) -> tuple[int, np.ndarray]:
    """(buffer, a flag per byte of it) of one operand."""
    operand = program.templates[program.template_ids[row]].operands[operand_number]
    buffer, offset = program.operand_data[program.operand_starts[row] + operand_number].tolist()
    at = np.array(offset)
    for stride, size in operand.pattern:
        at = at[..., None] + np.arange(size) * stride
    item = operand.dtype.itemsize
    flags = np.zeros(program.allocations[buffer].nbytes, np.bool_)
    flags[at.reshape(-1)[:, None] * item + np.arange(item)] = True
    return buffer, flags


def _in_the_order_of_dependences(timeline: Timeline) -> None:
    program = timeline.program
    accesses = [
        (row, operand.access != "r", *_touched(program, row, number))
        for row in range(len(program))
        for number, operand in enumerate(program.templates[program.template_ids[row]].operands)
    ]
    for k, (row, writes, buffer, where) in enumerate(accesses):
        for earlier, wrote, other, there in accesses[:k]:
            if earlier < row and other == buffer and (writes or wrote) and (where & there).any():
                begins = timeline.issued_ns[row]
                assert begins >= timeline.end_ns[earlier] - EPSILON_NS, (earlier, row)


def most_in_use(timeline: Timeline, region: MemoryRegion) -> float:
    """The most bytes of a partition, on average over its quarters, that are in use at once.

    A byte of a buffer is in use from the first start to the last end of what touches it, in any partition. What is
    never written holds nothing.
    """
    program = timeline.program
    written = set(program.operand_data[program.writes, 0].tolist())
    spans: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for row in range(len(program)):
        for number, operand in enumerate(program.templates[program.template_ids[row]].operands):
            if operand.region is not region:
                continue
            buffer, flags = _touched(program, row, number)
            if buffer not in written:
                continue
            size = program.allocations[buffer].partition_bytes
            columns = flags.reshape(-1, size).any(axis=0)
            begin, end = spans.setdefault(buffer, (np.full(size, np.inf), np.full(size, -np.inf)))
            begin[columns] = np.minimum(begin[columns], timeline.start_ns[row])
            end[columns] = np.maximum(end[columns], timeline.end_ns[row])
    if not spans:
        return 0.0
    begins, ends, weights = [], [], []
    for buffer, (begin, end) in spans.items():
        allocation = program.allocations[buffer]
        used = np.isfinite(begin)
        begins.append(begin[used] + EPSILON_NS)
        ends.append(end[used])
        weights.append(np.full(int(used.sum()), weight(allocation) / allocation.partition_bytes))
    each = np.concatenate(weights)
    order = np.argsort(np.concatenate((*begins, *ends)), kind="stable")
    return float(np.cumsum(np.concatenate((each, -each))[order]).max()) / ISA.quadrants
