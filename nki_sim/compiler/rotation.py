"""Placing buffers: which earlier buffer each one takes the place of, and so has to wait for.

A tile allocated inside a loop is a new buffer in every iteration. The compiler lets it rotate through a few places
(`machine.rotation_depth`), and through fewer where SBUF is short; then it waits slice by slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from nki_sim import compiled
from nki_sim.compiler.spills import weight
from nki_sim.machine import ISA, Machine
from nki_sim.memory import MemoryRegion
from nki_sim.ordering import in_turn
from nki_sim.program import Engine, Program
from nki_sim.regions import Lists, Regions


@dataclass
class Waits:
    """What instructions, by number, wait for besides the bytes that they share with others."""

    regions: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Read and written to the end."""
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Numbers in `group_regions`."""
    group_regions: list[tuple[int, ...]] = field(default_factory=list)
    """What several instructions wait for alike."""
    ends: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Instructions that must have ended."""

    def by_row(self, rows: int) -> tuple[Lists, Lists, Lists, Lists]:
        """regions, groups and ends by row, and group_regions, as arrays."""
        mine = (self.regions, self.groups, self.ends)
        closed, groups, ends = (Lists.by_number(each, rows) for each in mine)
        return closed, groups, ends, Lists.of(self.group_regions)


def find_waits(program: Program, machine: Machine, regions: Regions) -> Waits:
    """Whether everything fits is not asked here: what does not is placed without waiting."""
    waits = Waits()
    for region, capacity, placed, free in by_memory(program, machine):
        _place(program, placed, regions, waits)
        Rotation(program, machine, regions, region, waits, capacity).place(free)
    return waits


def by_memory(program: Program, machine: Machine) -> list[tuple[MemoryRegion, int, np.ndarray, np.ndarray]]:
    """Memory, its size in bytes of a partition times quarters, and its buffers with and without an address: int64, in
    the order of their first use."""
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
        (
            region,
            ISA.quadrants * capacity,
            in_order[(memory == numbers[region]) & has_address],
            in_order[(memory == numbers[region]) & ~has_address],
        )
        for region, capacity in capacities.items()
    ]


@dataclass(frozen=True)
class Turns:
    """What decides in which order places are taken over; all int64."""

    first: np.ndarray
    """By buffer: its first use."""
    last: np.ndarray
    """By buffer: its last use."""
    sites: np.ndarray
    """By buffer: its allocation site."""
    needs: np.ndarray
    """By buffer: its weight."""
    places: np.ndarray
    """By allocation site: how many it rotates through."""
    dying: np.ndarray
    """The buffers in the order of their last use."""


class Rotation:
    def __init__(
        self,
        program: Program,
        machine: Machine,
        regions: Regions,
        region: MemoryRegion,
        waits: Waits,
        capacity: int,
    ) -> None:
        in_sbuf = region is MemoryRegion.sbuf
        self.program = program
        self.regions = regions
        self.waits = waits
        self.fresh = capacity
        """What no buffer has taken yet, in bytes of a partition times quarters."""
        self.depth = machine.rotation_depth if in_sbuf else machine.psum_banks
        self.keeps_to_site = in_sbuf
        """Where space is short, a tile follows an older one of its own site; in PSUM, whichever died first."""
        self.banks = machine.psum_banks

    def turns(self, members: np.ndarray) -> Turns:
        """members: int64, buffers in the order of their first use."""
        program = self.program
        first, last = program.first_use, program.last_use
        sites = program.sites.of_buffer
        weights = program.sites.each(lambda a: weight(a) if a.region.on_chip else 0)
        places = np.zeros(len(program.sites.examples), np.int64)
        mine = np.zeros(len(first), np.bool_)
        mine[members] = True
        deaths = np.flatnonzero(mine)
        deaths = deaths[in_turn(last[deaths], len(program))]
        core = compiled.functions()
        live = (
            _live_together(first[members], last[members], sites[members])
            if core is None
            else core.live_together(members, first, last, sites, deaths)
        )
        places[: len(live)] = self.depth * live
        return Turns(first, last, sites, weights, places, deaths)

    def place(self, members: np.ndarray) -> None:
        """members: int64, buffers in the order of their first use."""
        waits, regions, known = self.waits, self.regions, self.turns(members)
        needs, last_use, places = known.needs.tolist(), known.last.tolist(), known.places.tolist()
        left = [0] * len(needs)
        """Of the place of each dead buffer."""
        turns: list[deque[int]] = [deque() for _ in places]
        """By allocation site: its buffers whose places have not been taken over, oldest first."""
        dead: deque[int] = deque()
        dying = known.dying.tolist()
        died = 0
        for at, buffer, site in zip(known.first[members].tolist(), members.tolist(), known.sites[members].tolist()):
            while died < len(dying) and last_use[dying[died]] < at:
                gone = dying[died]
                dead.append(gone)
                left[gone] = needs[gone]
                died += 1
            need = needs[buffer]
            turn = turns[site]
            while turn and last_use[turn[0]] < at and not left[turn[0]]:
                turn.popleft()  # another site has taken its place
            turn.append(buffer)
            if len(turn) > places[site] and left[turn[0]] == need:
                oldest = turn.popleft()
                left[oldest] = 0
                _close(waits, at, buffer, (oldest,), regions)
                continue
            if need <= self.fresh:
                self.fresh -= need
                continue
            own = next((old for old in turn if left[old] == need), -1) if self.keeps_to_site else -1
            if own >= 0:
                turn.remove(own)
                left[own] = 0
                self._wait_by_slice(at, buffer, own)
                continue
            need -= self.fresh
            self.fresh = 0
            olds: list[int] = []
            while need > 0 and dead:
                gone = dead[0]
                if left[gone]:
                    olds.append(gone)
                    taken = min(need, left[gone])
                    need -= taken
                    left[gone] -= taken
                if not left[gone]:
                    dead.popleft()
            _close(waits, at, buffer, olds, regions)

    def _wait_by_slice(self, at: int, buffer: int, old: int) -> None:
        """Each slice waits for the same slice of the old buffer; for all of it where the slices differ.

        Where only matmuls read it, the compiler takes the slices one after the other through as many sums as PSUM
        has banks (row A065: 16 slices of a tile that fills SBUF, and TensorE never waits for them).
        """
        regions = self.regions
        places = {regions.places[region]: region for region in regions.of_buffer.get(old, ())}
        first_writer = regions.first_writer
        waits: list[tuple[int, int]] = []
        for region in regions.of_buffer.get(buffer, ()):
            row = first_writer.get(region)
            if row is None:
                continue
            same = places.get(regions.places[region])
            if same is None:
                _close(self.waits, at, buffer, (old,), regions)
                return
            waits.append((row, same))
        readers = self.products.get(old)
        if readers is None:
            closed = self.waits.regions
            for row, same in waits:
                closed[row] = (*closed.get(row, ()), same, *(regions.overlaps[same] or ()))
            return
        ends = self.waits.ends
        rows, sums = readers
        together = min(1.0, self.banks / max(1, sums))
        for k, (row, _) in enumerate(sorted(waits)):
            done = 1.0 - together * (1.0 - (k + 1) / len(waits))
            ends[row] = (*ends.get(row, ()), rows[min(len(rows) - 1, int(done * len(rows)))])

    @cached_property
    def products(self) -> dict[int, tuple[list[int], int]]:
        """Buffer that only TensorE reads to (the instructions that do, how many buffers they write)."""
        starts, ends, rows, sums = (each.tolist() for each in products_of(self.program))
        return {
            buffer: (rows[start:end], sums[buffer])
            for buffer, (start, end) in enumerate(zip(starts, ends))
            if end > start
        }


def products_of(program: Program) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of what only TensorE reads: by buffer, where its readers begin and end in the third array, which holds their
    rows, and how many buffers those write. int64; a buffer that others read, or nobody, has no readers here."""
    count = len(program.allocations)
    tensor = np.array([t.engine is Engine.tensor for t in program.templates], np.bool_)
    core = compiled.functions()
    if core is not None:
        bases = np.cumsum([0] + [len(t.operands) for t in program.templates])[:-1]
        writes = np.array([o.access != "r" for t in program.templates for o in t.operands], np.bool_)
        stream = (program.template_ids, program.operand_starts, program.operand_data)
        found: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] = core.readers_of(
            *map(compiled.flat, stream), bases, writes, tensor, count
        )
        return found
    buffers, operand_rows = program.operand_data[:, 0], program.operand_rows
    product = tensor[program.template_ids[operand_rows]]
    others = np.zeros(count, np.bool_)
    others[buffers[~program.writes & ~product]] = True
    reading = np.flatnonzero(~program.writes & product & ~others[buffers])
    reading = reading[in_turn(buffers[reading], count)]
    read, rows = buffers[reading], operand_rows[reading]
    pairs = np.sort(read * count + buffers[program.operand_starts[rows]])
    once = np.ones(len(pairs), np.bool_)
    once[1:] = pairs[1:] != pairs[:-1]
    sums = np.bincount(pairs[once] // max(1, count), minlength=count)
    ends = np.cumsum(np.bincount(read, minlength=count))
    return np.concatenate(([0], ends[:-1])), ends, rows, sums


def _live_together(first: np.ndarray, last: np.ndarray, sites: np.ndarray) -> np.ndarray:
    """int64 by site: the most of its buffers that are live at once, which a helper function makes of one line."""
    rows, change = np.concatenate((first, last + 1)), np.repeat((1, -1), len(first))
    both = np.concatenate((sites, sites))
    order = np.lexsort((change, rows, both))
    live = np.cumsum(change[order])  # back at 0 where a site ends
    most = np.zeros(int(sites.max(initial=-1)) + 1, np.int64)
    np.maximum.at(most, both[order], live)
    return most


def _close(waits: Waits, at: int, buffer: int, olds: Sequence[int], regions: Regions) -> None:
    """Whatever touches the buffer without having to wait for another that does, waits for the end of all `olds`: its
    first row (`at`), and the first to write each of its regions."""
    of_buffer = regions.of_buffer
    if len(olds) == 1:
        closed = of_buffer.get(olds[0], ())
    else:
        closed = tuple([region for old in olds for region in of_buffer.get(old, ())])
    if not closed:
        return
    mine = of_buffer.get(buffer, ())
    rows = {at, *[regions.first_writer.get(region, at) for region in mine]} if len(mine) > 1 else {at}
    if len(rows) == 1:
        waits.regions[at] = waits.regions.get(at, ()) + closed
        return
    for row in rows:
        waits.groups[row] = (*waits.groups.get(row, ()), len(waits.group_regions))
    waits.group_regions.append(closed)


def _place(program: Program, members: np.ndarray, regions: Regions, waits: Waits) -> None:
    """Buffers with addresses (int64, in the order of their first use) wait for those whose bytes they take."""
    spans: list[tuple[int, int, int, int, int]] = []
    last_use = program.last_use
    for at, buffer in zip(program.first_use[members].tolist(), members.tolist()):
        allocation = program.allocations[buffer]
        partition, byte = allocation.address or (0, 0)
        span = (partition, partition + allocation.partitions, byte, byte + allocation.partition_bytes, buffer)
        gone = [
            old
            for old in spans
            if old[0] < span[1] and span[0] < old[1] and old[2] < span[3] and span[2] < old[3] and last_use[old[4]] < at
        ]
        _close(waits, at, buffer, [old[4] for old in gone], regions)
        covered = {
            old[4]
            for old in gone
            if span[0] <= old[0] and old[1] <= span[1] and span[2] <= old[2] and old[3] <= span[3]
        }
        spans = [old for old in spans if old[4] not in covered]
        spans.append(span)
