"""Placing buffers: which earlier buffer each one takes the place of, and so has to wait for.

A tile allocated inside a loop is a new buffer in every iteration. The compiler lets it rotate through a few places
(`machine.rotation_depth`), and through fewer where SBUF is short; then it waits slice by slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from nki_sim.compiler.spills import weight
from nki_sim.machine import ISA, Machine
from nki_sim.memory import Allocation, MemoryRegion
from nki_sim.program import Engine, Program
from nki_sim.regions import Regions

Gate = tuple[int, ...]
"""Regions that must be read and written to the end; one object for all that wait for the same."""
Gates = dict[int, tuple[Gate, ...]]
"""Instruction number to what opens before it."""
Ends = dict[int, tuple[int, ...]]
"""Instruction number to the instructions that must have ended before it."""


def find_gates(program: Program, machine: Machine, regions: Regions) -> tuple[Gates, Ends]:
    """Whether everything fits is not asked here: what does not is placed without waiting."""
    gates: Gates = {}
    ends: Ends = {}
    if not len(program):
        return gates, ends
    allocations = program.allocations
    first_writer = _first_writers(regions)
    first_use, last_use = program.first_use.tolist(), program.last_use.tolist()
    for region, capacity in (
        (MemoryRegion.sbuf, machine.sbuf_partition_bytes),
        (MemoryRegion.psum, machine.psum_banks * machine.psum_bank_bytes),
    ):
        used = [a for a in allocations if a.region is region and last_use[a.id] >= 0]
        placed = sorted((first_use[a.id], a.id) for a in used if a.address is not None)
        rotating = sorted((first_use[a.id], a.id) for a in used if a.address is None)
        _gate_placed(allocations, placed, last_use, regions, gates, first_writer)
        rotation = _Rotation(program, machine, regions, region, gates, ends)
        rotation.first_writer = first_writer
        rotation.fresh = ISA.quadrants * capacity
        rotation.place(rotating, last_use)
    return gates, ends


class _Rotation:
    def __init__(
        self, program: Program, machine: Machine, regions: Regions, region: MemoryRegion, gates: Gates, ends: Ends
    ) -> None:
        self.program = program
        self.allocations = program.allocations
        self.regions = regions
        self.gates = gates
        self.ends = ends
        self.fresh = 0
        """What no buffer has taken yet, in bytes of a partition times quarters."""
        self.first_writer: dict[int, int] = {}
        """Region to the first instruction that writes it."""
        self.banks = machine.psum_banks
        in_sbuf = region is MemoryRegion.sbuf
        self.depth = machine.rotation_depth if in_sbuf else machine.psum_banks
        self.keeps_to_site = in_sbuf
        """Where room is short, a tile follows an older one of its own site; in PSUM, whichever died first."""

    def place(self, members: list[tuple[int, int]], last_use: list[int]) -> None:
        """members: (row of first use, buffer), in that order."""
        allocations = self.allocations
        needs: dict[tuple[object, ...], int] = {}
        turns: dict[tuple[object, ...], deque[int]] = {}
        """Allocation site to its buffers whose places have not been taken over, oldest first."""
        dead: deque[int] = deque()
        left: dict[int, int] = {}
        """Dead buffer to what is left of its place."""
        deaths = sorted((last_use[buffer], buffer) for _, buffer in members)
        next_death = 0
        together = self._live_together(members, last_use)
        for at, buffer in members:
            while next_death < len(deaths) and deaths[next_death][0] < at:
                gone = deaths[next_death][1]
                dead.append(gone)
                left[gone] = needs[self._kind(gone)]
                next_death += 1
            allocation = allocations[buffer]
            kind = self._kind(buffer)
            need = needs.get(kind, 0)
            if not need:
                need = needs[kind] = weight(allocation)
            site = (allocation.line, kind)
            turn = turns.setdefault(site, deque())
            while turn and last_use[turn[0]] < at and turn[0] not in left:
                turn.popleft()  # another site has taken its place
            turn.append(buffer)
            if len(turn) > self.depth * together[site] and left.get(turn[0]) == need:
                oldest = turn.popleft()
                del left[oldest]
                self._wait(at, buffer, (oldest,))
                continue
            if need <= self.fresh:
                self.fresh -= need
                continue
            own = -1
            if self.keeps_to_site:
                own = next((old for old in turn if old != buffer and left.get(old) == need), -1)
            if own >= 0:
                turn.remove(own)
                del left[own]
                self._wait_by_slice(at, buffer, own)
                continue
            need -= self.fresh
            self.fresh = 0
            waits: list[int] = []
            while need > 0 and dead:
                gone = dead[0]
                if gone not in left:
                    dead.popleft()
                    continue
                waits.append(gone)
                taken = min(need, left[gone])
                need -= taken
                left[gone] -= taken
                if not left[gone]:
                    dead.popleft()
                    del left[gone]
            self._wait(at, buffer, tuple(waits))

    def _live_together(self, members: list[tuple[int, int]], last_use: list[int]) -> dict[tuple[object, ...], int]:
        """Allocation site to the most of its buffers that are live at once: a helper function makes several."""
        most: dict[tuple[object, ...], int] = {}
        live: dict[tuple[object, ...], list[int]] = {}
        for at, buffer in members:
            site = (self.allocations[buffer].line, self._kind(buffer))
            ends = [end for end in live.get(site, ()) if end >= at]
            ends.append(last_use[buffer])
            live[site] = ends
            most[site] = max(most.get(site, 0), len(ends))
        return most

    def _kind(self, buffer: int) -> tuple[object, ...]:
        allocation = self.allocations[buffer]
        return allocation.shape, allocation.dtype

    def _wait(self, at: int, buffer: int, olds: Sequence[int]) -> None:
        _close(self.gates, at, buffer, olds, self.regions, self.first_writer)

    def _wait_by_slice(self, at: int, buffer: int, old: int) -> None:
        """Each slice waits for the same slice of the old buffer; for all of it where the slices differ.

        Where only matmuls read it, the compiler takes the slices one after the other through as many sums as PSUM
        has banks (row A065: 16 slices of a tile that fills SBUF, and TensorE never waits for them).
        """
        regions = self.regions
        places = {regions.places[region]: region for region in regions.of_buffer.get(old, ())}
        first_writer = self.first_writer
        waits: list[tuple[int, int]] = []
        for region in regions.of_buffer.get(buffer, ()):
            row = first_writer.get(region)
            if row is None:
                continue
            same = places.get(regions.places[region])
            if same is None:
                self._wait(at, buffer, (old,))
                return
            waits.append((row, same))
        readers = self._products.get(old)
        if readers is None:
            for row, same in waits:
                self.gates[row] = (*self.gates.get(row, ()), (same, *(regions.overlaps[same] or ())))
            return
        rows, sums = readers
        together = min(1.0, self.banks / max(1, len(sums)))
        for k, (row, _) in enumerate(sorted(waits)):
            done = 1.0 - together * (1.0 - (k + 1) / len(waits))
            self.ends[row] = (*self.ends.get(row, ()), rows[min(len(rows) - 1, int(done * len(rows)))])

    @cached_property
    def _products(self) -> dict[int, tuple[list[int], set[int]]]:
        """Buffer that only TensorE reads to (the instructions that do, the buffers they write)."""
        program = self.program
        tensor = np.array([t.engine is Engine.tensor for t in program.templates], np.bool_)
        found: dict[int, tuple[list[int], set[int]]] = {}
        others: set[int] = set()
        buffers = program.operand_data[:, 0].tolist()
        for row, buffer, writes, product in zip(
            program.operand_rows.tolist(),
            buffers,
            program.writes.tolist(),
            tensor[program.template_ids[program.operand_rows]].tolist(),
        ):
            if writes:
                continue
            if not product:
                others.add(buffer)
                continue
            rows, sums = found.setdefault(buffer, ([], set()))
            rows.append(row)
            sums.add(buffers[int(program.operand_starts[row])])
        return {buffer: pair for buffer, pair in found.items() if buffer not in others}


def _first_writers(regions: Regions) -> dict[int, int]:
    """Region to the first instruction that writes it."""
    found: dict[int, int] = {}
    for row in range(len(regions.written) - 1, -1, -1):
        for region in regions.written[row]:
            found[region] = row
    return found


def _close(
    gates: Gates, at: int, buffer: int, olds: Sequence[int], regions: Regions, first_writer: dict[int, int]
) -> None:
    """A gate of all of `olds` before whatever touches the buffer without having to wait for another that does: its
    first row (`at`), and the first to write each of its regions."""
    of_buffer = regions.of_buffer
    gate = tuple(region for old in olds for region in of_buffer.get(old, ()))
    if gate:
        for row in {at, *(first_writer.get(region, at) for region in of_buffer.get(buffer, ()))}:
            gates[row] = (*gates.get(row, ()), gate)


def _gate_placed(
    allocations: Sequence[Allocation],
    members: list[tuple[int, int]],
    last_use: list[int],
    regions: Regions,
    gates: Gates,
    first_writer: dict[int, int],
) -> None:
    """Buffers with addresses wait for the earlier ones whose bytes they take."""
    spans: list[tuple[int, int, int, int, int]] = []
    for at, buffer in members:
        allocation = allocations[buffer]
        partition, byte = allocation.address or (0, 0)
        span = (partition, partition + allocation.partitions, byte, byte + allocation.partition_bytes, buffer)
        gone = [
            old
            for old in spans
            if old[0] < span[1] and span[0] < old[1] and old[2] < span[3] and span[2] < old[3] and last_use[old[4]] < at
        ]
        _close(gates, at, buffer, [old[4] for old in gone], regions, first_writer)
        covered = {
            old[4]
            for old in gone
            if span[0] <= old[0] and old[1] <= span[1] and span[2] <= old[2] and old[3] <= span[3]
        }
        spans = [old for old in spans if old[4] not in covered]
        spans.append(span)
