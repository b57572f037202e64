"""Placing buffers: which earlier buffers each one takes the memory of, and so has to wait for.

The compiler hands out memory that nobody has had as long as there is any, and then what has been dead longest: a loop
runs ahead of itself as far as the memory goes. That follows from when buffers live, in the order of the rows, and from
how large they are; which line of the kernel made one, and under which name, is not asked. (Places for what one
instruction of a loop fills would put 89 % of the blocked matmuls' pairs in order, places by size alone 91 %.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nki_sim.machine import ISA, Machine
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Program
from nki_sim.program.regions import Lists, Regions
from nki_sim.timing.compiler.place_waits import handed_on, in_order_of_touch, readers_of, waits_of
from nki_sim.timing.compiler.spills import weight

Events = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Buffers that wait (int64), whether each does slice by slice (bool), and whose memory each takes: buffers from
starts[k] up to starts[k + 1] (int64 each)."""


class Waits(NamedTuple):
    """What instructions wait for besides the bytes that they share with others."""

    closed: Lists
    """By instruction: regions that are read and written to the end."""
    groups: Lists
    """By instruction: numbers of lists in `members`."""
    ends: Lists
    """By instruction: instructions that must have ended."""
    members: Lists
    """Regions that several instructions wait for alike."""


def find_waits(program: Program, machine: Machine, regions: Regions) -> Waits:
    """Whether everything fits is not asked here: what does not is placed without waiting."""
    found: list[Events] = []
    deaths = in_order_of_touch(program.stream[2], len(program.allocations), True)[::-1]
    for region, capacity, placed, free in by_memory(program, machine):
        if len(placed):
            found.append(_addressed(program, placed))
        found.append(_handed_on(program, free, deaths, capacity, by_size=region is MemoryRegion.sbuf))
    waiting, sliced, starts, olds = _joined(found)
    none = np.zeros(len(program.allocations), np.int64)
    products = _products_of(program) if sliced.any() else (none, none, none, none)
    region_starts = Lists.by_row(regions.buffers, regions.buffers, len(program.allocations)).starts
    closed, groups, ends, members = waits_of(
        waiting, sliced, starts, olds, program.first_use, len(program), region_starts, regions.shapes, regions.offsets,
        regions.writes.starts, regions.writes.values, regions.overlapping.starts, regions.overlapping.values, *products,
        machine.psum_banks,
    )  # fmt: skip
    return Waits(Lists(*closed), Lists(*groups), _with_edges(program, Lists(*ends)), Lists(*members))


def by_memory(program: Program, machine: Machine) -> list[tuple[MemoryRegion, int, np.ndarray, np.ndarray]]:
    """Memory, its size in bytes of a partition times quarters, and its buffers with and without an address: int64, in
    the order of their first use."""
    if not len(program):
        return []
    in_order = in_order_of_touch(program.stream[2], len(program.allocations), False)
    capacities = {
        MemoryRegion.sbuf: machine.sbuf_partition_bytes,
        MemoryRegion.psum: machine.psum_banks * machine.psum_bank_bytes,
    }
    numbers = {region: number for number, region in enumerate(capacities)}
    memory = program.sites.each(lambda a: numbers.get(a.region, -1))[in_order]
    has_address = program.sites.each(lambda a: int(a.address is not None))[in_order] == 1
    return [
        (
            region,
            ISA.quadrants * capacity,
            in_order[(memory == numbers[region]) & has_address],
            in_order[(memory == numbers[region]) & ~has_address],
        )
        for region, capacity in capacities.items()
    ]


def _handed_on(program: Program, members: np.ndarray, deaths: np.ndarray, capacity: int, by_size: bool) -> Events:
    """Of buffers without addresses (int64, in the order of their first use). `deaths`: all buffers, in the order of
    their last use. `by_size`: where memory is short, a tile follows an older one of its size, slice by slice; else
    whichever died first."""
    sizes: dict[int, int] = {}
    weights = program.sites.each(lambda a: weight(a) if a.region.on_chip else 0)
    size_of = program.sites.each(lambda a: sizes.setdefault(weight(a) if a.region.on_chip else 0, len(sizes)))
    mine = np.zeros(len(weights), np.bool_)
    mine[members] = True
    return handed_on(
        members, program.first_use, program.last_use, weights, size_of, len(sizes), deaths[mine[deaths]],
        capacity, by_size,
    )  # fmt: skip


def _addressed(program: Program, members: np.ndarray) -> Events:
    """Buffers with addresses (int64, in the order of their first use) wait for those whose bytes they take."""
    spans: list[tuple[int, int, int, int, int]] = []
    last_use = program.last_use
    waiting: list[int] = []
    olds: list[list[int]] = []
    for at, buffer in zip(program.first_use[members].tolist(), members.tolist()):
        allocation = program.allocations[buffer]
        partition, byte = allocation.address or (0, 0)
        span = (partition, partition + allocation.partitions, byte, byte + allocation.partition_bytes, buffer)
        gone = [
            old
            for old in spans
            if old[0] < span[1] and span[0] < old[1] and old[2] < span[3] and span[2] < old[3] and last_use[old[4]] < at
        ]
        if gone:
            waiting.append(buffer)
            olds.append([old[4] for old in gone])
        covered = {
            old[4]
            for old in gone
            if span[0] <= old[0] and old[1] <= span[1] and span[2] <= old[2] and old[3] <= span[3]
        }
        spans = [old for old in spans if old[4] not in covered]
        spans.append(span)
    lists = Lists.of(olds)
    return np.array(waiting, np.int64), np.zeros(len(waiting), np.bool_), lists.starts, lists.values


def _joined(found: Sequence[Events]) -> Events:
    """What is said of each memory, as one."""
    if not found:
        none = np.zeros(0, np.int64)
        return none, np.zeros(0, np.bool_), np.zeros(1, np.int64), none
    waiting, sliced, _, olds = (np.concatenate(column) for column in zip(*found))
    starts = np.zeros(len(waiting) + 1, np.int64)
    np.cumsum(np.concatenate([np.diff(mine) for _, _, mine, _ in found]), out=starts[1:])
    return waiting, sliced, starts, olds


def _with_edges(program: Program, ends: Lists) -> Lists:
    """`ends` and the program's explicit edges, each once."""
    edges = list(dict.fromkeys(program.edges))
    if not edges:
        return ends
    rows = np.concatenate(
        (np.repeat(np.arange(len(program)), np.diff(ends.starts)), np.array([edge.after for edge in edges]))
    )
    values = np.concatenate((ends.values, np.array([edge.before for edge in edges], np.int64)))
    order = np.argsort(rows, kind="stable")
    return Lists.by_row(rows[order], values[order], len(program))


def _products_of(program: Program) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of what only TensorE reads: by buffer, where its readers begin and end in the third array, which holds their
    rows, and how many buffers those write. int64; a buffer that others read, or nobody, has no readers here."""
    tensor = np.array([t.engine is Engine.tensor for t in program.templates], np.bool_)
    return readers_of(*program.stream, *program.operand_table, tensor, len(program.allocations))
