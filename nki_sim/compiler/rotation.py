"""Placing buffers: which earlier buffer each one takes the place of, and so has to wait for.

A tile allocated inside a loop is a new buffer in every iteration. The compiler lets it rotate through a few places
(`machine.rotation_depth`), and through fewer where SBUF is short; then it waits slice by slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nki_sim.compiler.place_waits import live_together, readers_of, rotated, waits_of
from nki_sim.compiler.spills import weight
from nki_sim.machine import ISA, Machine
from nki_sim.memory import MemoryRegion
from nki_sim.program import Engine, Program
from nki_sim.region_lists import in_turn
from nki_sim.regions import Lists, Regions


@dataclass(frozen=True)
class Waits:
    """What instructions wait for besides the bytes that they share with others."""

    closed: Lists
    """By row: regions, read and written to the end."""
    groups: Lists
    """By row: numbers in `members`."""
    ends: Lists
    """By row: rows that must have ended."""
    members: Lists
    """By group: regions that several rows wait for alike."""


def find_waits(program: Program, machine: Machine, regions: Regions) -> Waits:
    """Whether everything fits is not asked here: what does not is placed without waiting."""
    takeovers = [
        each
        for memory in by_memory(program, machine)
        for each in (_of_placed(program, memory.placed), _of_rotating(program, machine, memory))
    ]
    waiting, sliced, starts, olds = _joined(takeovers)
    none = np.zeros(len(program.allocations), np.int64)
    products = products_of(program) if sliced.any() else (none, none, none, none)
    region_starts = Lists.by_row(regions.buffers, regions.buffers, len(program.allocations)).starts
    closed, groups, ends, members = waits_of(
        waiting, sliced, starts, olds, program.first_use, len(program), region_starts, regions.shapes, regions.offsets,
        regions.writes.starts, regions.writes.values, regions.overlapping.starts, regions.overlapping.values,
        *products, machine.psum_banks,
    )  # fmt: skip
    return Waits(Lists(*closed), Lists(*groups), _with_edges(program, Lists(*ends)), Lists(*members))


def _with_edges(program: Program, ends: Lists) -> Lists:
    """By row: those rows, and those that it waits for by an explicit edge."""
    if not program.edges:
        return ends
    edges = dict.fromkeys((edge.after, edge.before) for edge in program.edges)
    rows = np.concatenate((np.repeat(np.arange(len(program)), np.diff(ends.starts)), [after for after, _ in edges]))
    values = np.concatenate((ends.values, [before for _, before in edges]))
    order = np.argsort(rows, kind="stable")
    return Lists.by_row(rows[order].astype(np.int64), values[order].astype(np.int64), len(program))


@dataclass(frozen=True)
class Memory:
    """A memory of tiles, and the buffers in it: int64, in the order of their first use."""

    region: MemoryRegion
    capacity: int
    """Bytes of a partition times quarters."""
    placed: np.ndarray
    """Those with an address."""
    rotating: np.ndarray
    """The others."""


def by_memory(program: Program, machine: Machine) -> list[Memory]:
    """SBUF and PSUM; neither in an empty program."""
    if not len(program):
        return []
    first_use, last_use = program.first_use, program.last_use
    in_order = in_turn(first_use, len(program) + 1)
    in_order = in_order[last_use[in_order] >= 0]
    capacities = {
        MemoryRegion.sbuf: machine.sbuf_partition_bytes,
        MemoryRegion.psum: machine.psum_banks * machine.psum_bank_bytes,
    }
    numbers = {region: number for number, region in enumerate(capacities)}
    memory = program.sites.each(lambda a: numbers.get(a.region, -1))[in_order]
    has_address = program.sites.each(lambda a: int(a.address is not None))[in_order] == 1
    return [
        Memory(
            region,
            ISA.quadrants * capacity,
            in_order[(memory == numbers[region]) & has_address],
            in_order[(memory == numbers[region]) & ~has_address],
        )
        for region, capacity in capacities.items()
    ]


Takeovers = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Buffers that wait for the place of others, int64; bool, does each wait slice by slice?; where the older buffers of
each begin in the last, int64 [waiting + 1]; those, int64."""


def _of_rotating(program: Program, machine: Machine, memory: Memory) -> Takeovers:
    """Of buffers without an address. Where space is short, a tile in SBUF follows an older one of its own site, slice
    by slice; in PSUM it follows whichever died first."""
    members, in_sbuf = memory.rotating, memory.region is MemoryRegion.sbuf
    first, last, sites = program.first_use, program.last_use, program.sites.of_buffer
    weights = program.sites.each(lambda a: weight(a) if a.region.on_chip else 0)
    mine = np.zeros(len(first), np.bool_)
    mine[members] = True
    dying = np.flatnonzero(mine)
    dying = dying[in_turn(last[dying], len(program))]
    live = live_together(members, first, last, sites, dying)
    places = np.zeros(len(program.sites.examples), np.int64)
    places[: len(live)] = (machine.rotation_depth if in_sbuf else machine.psum_banks) * live
    return rotated(members, first, last, sites, weights, places, dying, memory.capacity, in_sbuf)


def _of_placed(program: Program, members: np.ndarray) -> Takeovers:
    """Of buffers with an address, each of which waits for those whose bytes it takes."""
    spans: list[tuple[int, int, int, int, int]] = []
    last_use = program.last_use
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
        olds.append([old[4] for old in gone])
        covered = {
            old[4]
            for old in gone
            if span[0] <= old[0] and old[1] <= span[1] and span[2] <= old[2] and old[3] <= span[3]
        }
        spans = [old for old in spans if old[4] not in covered]
        spans.append(span)
    found = Lists.of(olds)
    return members, np.zeros(len(members), np.bool_), found.starts, found.values


def _joined(found: Sequence[Takeovers]) -> Takeovers:
    """All of them, one after the other."""
    if not found:
        none = np.zeros(0, np.int64)
        return none, np.zeros(0, np.bool_), np.zeros(1, np.int64), none
    waiting, sliced, _, olds = (np.concatenate(column) for column in zip(*found))
    starts = np.zeros(len(waiting) + 1, np.int64)
    np.cumsum(np.concatenate([np.diff(mine) for _, _, mine, _ in found]), out=starts[1:])
    return waiting, sliced, starts, olds


def products_of(program: Program) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of what only TensorE reads: by buffer, where its readers begin and end in the third array, which holds their
    rows, and how many buffers those write. int64; a buffer that others read, or nobody, has no readers here."""
    tensor = np.array([t.engine is Engine.tensor for t in program.templates], np.bool_)
    return readers_of(*program.stream, *program.operand_table, tensor, len(program.allocations))
