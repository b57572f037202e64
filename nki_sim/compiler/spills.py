"""Spills: what the compiler moves out to HBM and back where the live tiles do not fit in SBUF.

On the device no kernel was refused because the sum of its live tiles exceeds SBUF; those ran, with more transfers
than they ask for (rows A015 to C038 of benchmarks/data/trn2_device). Their number is that of a policy which, when
space is wanted, moves out the tile whose next use lies furthest ahead, whole; a tile of which little is used each
time stays outside, and instructions fetch their slices of it (rows B048, B074 to B080).
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from nki_sim.errors import CapacityExceeded
from nki_sim.machine import ISA, Machine
from nki_sim.memory import Allocation, MemoryRegion, layout
from nki_sim.program import Edge, Engine, Operand, Program, Template

_PATIENCE = 2
"""Times that a tile is moved out hardly used before it stays outside."""


class Spill(NamedTuple):
    """Attributes of a transfer that the compiler added: a tile's way out to HBM, or back."""

    reload: bool


def weight(allocation: Allocation) -> int:
    """Bytes of a partition that it takes, times the quarters of the partitions: three adjacent ones cannot be had."""
    quarters = -(-allocation.partitions // ISA.quadrant_partitions)
    return allocation.partition_bytes * (quarters if quarters <= 2 else ISA.quadrants)


def most_live(program: Program) -> int:
    """The largest sum of the weights of SBUF tiles that are live at once, in the order of the rows."""
    sizes = program.sites.each(lambda a: weight(a) if a.region is MemoryRegion.sbuf else 0)
    used = program.last_use >= 0
    change = np.bincount(program.first_use[used], sizes[used], len(program) + 1)
    change -= np.bincount(program.last_use[used] + 1, sizes[used], len(program) + 1)
    return int(np.cumsum(change).max())


def with_spills(program: Program, machine: Machine) -> Program:
    """The program with the transfers that make it fit; itself when it does.

    Raises CapacityExceeded when the tiles of one instruction do not fit together (NCC_IBIR229).
    """
    capacity = ISA.quadrants * machine.sbuf_partition_bytes
    placed = any(a.region is MemoryRegion.sbuf and a.address is not None for a in program.sites.examples)
    if not len(program) or placed or most_live(program) <= capacity:
        return program
    return _Spilling(program, capacity).run()


class _Spilling:
    """One walk over the rows; a tile that comes back is a buffer of its own."""

    def __init__(self, program: Program, capacity: int) -> None:
        self.program = program
        self.free = capacity
        self.templates = list(program.templates)
        self.allocations = list(program.allocations)
        self.transfers: dict[tuple[object, ...], int] = {}
        self.of_whole_tiles: dict[tuple[object, ...], int] = {}
        """The same by shape, dtype and line of the tile, and by direction."""
        self.weights = {a.id: weight(a) for a in program.allocations if a.region is MemoryRegion.sbuf}
        self.uses: dict[int, list[int]] = {}
        """Tile to the rows that touch it, last first."""
        self.now: dict[int, int] = {}
        """Tile in SBUF to the buffer that holds it now."""
        self.slots: dict[int, int] = {}
        """Tile that has been in HBM to its place there."""
        self.unsaved: set[int] = set()
        self.constant: dict[int, int] = {}
        """Tile that holds but a constant to the memset that makes it again."""
        self.used: dict[int, int] = {}
        """Tile in SBUF to the bytes that instructions touched since it came."""
        self.hardly_used: dict[int, int] = {}
        """Tile to how often it was moved out with less than half of it used."""
        self.may_stay: set[int] = set()
        """Those of them that were often enough to stay outside."""
        self.by_slice: dict[tuple[int, tuple[int, ...]], int] = {}
        """(template, operands whose tiles stay outside) to the template that works on slices."""
        self.ids: list[int] = []
        self.operands: list[list[tuple[int, int]]] = []
        self.now_at: list[int] = []
        """Row to where it stands now, among the transfers."""

    def run(self) -> Program:
        program = self.program
        starts = program.operand_starts.tolist()
        data = list(zip(*program.operand_data.T.tolist()))
        from_inputs = _mirrors(program).tolist()
        sizes = [[operand.nbytes for operand in template.operands] for template in program.templates]
        weights, now, used = self.weights, self.now, self.used
        for row, (buffer, _) in zip(reversed(program.operand_rows.tolist()), reversed(data)):
            if buffer in weights:
                rows = self.uses.setdefault(buffer, [])
                if not rows or rows[-1] != row:
                    rows.append(row)
        written_at = [[at for at, o in enumerate(t.operands) if o.access != "r"] for t in program.templates]
        for row, number in enumerate(program.template_ids.tolist()):
            operands = data[starts[row] : starts[row + 1]]
            template = program.templates[number]
            outside = self._stay_outside(template, operands)
            tiles = dict.fromkeys([buffer for buffer, _ in operands if buffer in weights])
            wanted = tiles
            if outside:
                wanted = dict.fromkeys(
                    [buffer for at, (buffer, _) in enumerate(operands) if buffer in weights and at not in outside]
                )
            for buffer in wanted:
                if buffer not in now:
                    self._bring(buffer, wanted, row)
            for size, (buffer, _) in zip(sizes[number], operands):
                if buffer in wanted:
                    used[buffer] += size
            if outside:
                self._on_slices(number, operands, outside, wanted, row)
            else:
                self.now_at.append(len(self.ids))
                self.ids.append(number)
                self.operands.append([(now.get(buffer, buffer), offset) for buffer, offset in operands])
            fills = template.opcode == "memset"
            for at in written_at[number]:
                buffer = operands[at][0]
                if buffer in wanted and not from_inputs[buffer]:
                    self.unsaved.add(buffer)
                    self.constant.pop(buffer, None)
                    if fills and sizes[number][0] == self.allocations[buffer].nbytes:
                        self.constant[buffer] = number
            for buffer in tiles:
                rows = self.uses[buffer]
                rows.pop()
                if not rows and buffer in now:
                    del now[buffer]
                    self.free += weights[buffer]
        counts = np.array([len(operands) for operands in self.operands], np.int64)
        changed = {
            "templates": tuple(self.templates),
            "allocations": tuple(self.allocations),
            "template_ids": np.array(self.ids, np.int32),
            "operand_starts": np.concatenate(([0], np.cumsum(counts))),
            "operand_data": np.fromiter(chain.from_iterable(chain(*self.operands)), np.int64).reshape(-1, 2),
            "edges": tuple(Edge(self.now_at[edge.before], self.now_at[edge.after]) for edge in program.edges),
        }
        return Program(**{f.name: changed.get(f.name, getattr(program, f.name)) for f in fields(Program)})

    def _stay_outside(self, template: Template, operands: list[tuple[int, int]]) -> tuple[int, ...]:
        """The operands whose slices are fetched for this one instruction."""
        if not self.may_stay or not any(buffer in self.may_stay and buffer not in self.now for buffer, _ in operands):
            return ()
        small = [
            buffer in self.may_stay
            and buffer not in self.now
            and buffer not in self.constant
            and operand.indirection is None
            and 2 * operand.nbytes < self.allocations[buffer].nbytes
            for operand, (buffer, _) in zip(template.operands, operands)
        ]
        whole = {buffer for (buffer, _), slices in zip(operands, small) if not slices}
        return tuple(at for at, (buffer, _) in enumerate(operands) if small[at] and buffer not in whole)

    def _on_slices(
        self, number: int, operands: list[tuple[int, int]], outside: tuple[int, ...], wanted: dict[int, None], row: int
    ) -> None:
        """The instruction with a buffer of their own for those slices, fetched before it and put back after it."""
        template = self.program.templates[number]
        given = [(self.now.get(buffer, buffer), offset) for buffer, offset in operands]
        back: list[tuple[int, list[tuple[int, int]]]] = []
        slices = {
            at: Allocation(
                len(self.allocations) + k, MemoryRegion.sbuf, (operand.partitions, operand.free_size), operand.dtype,
                "slice", template.line, 0,
            )
            for k, (at, operand) in enumerate((at, template.operands[at]) for at in outside)
        }  # fmt: skip
        self.allocations.extend(slices.values())
        self._make_space(sum(weight(slice_) for slice_ in slices.values()), wanted, row)
        for at, slice_ in slices.items():
            operand, (tile, offset) = template.operands[at], operands[at]
            given[at] = (slice_.id, 0)
            here, there = _compact(operand), replace(operand, region=MemoryRegion.private_hbm, partition_elements=0)
            if operand.access != "w":
                self.ids.append(self._transfer_between(here, there, template.line, reload=True))
                self.operands.append([(slice_.id, 0), (self.slots[tile], offset)])
            if operand.access != "r":
                put = self._transfer_between(there, here, template.line, reload=False)
                back.append((put, [(self.slots[tile], offset), (slice_.id, 0)]))
        key = (number, outside)
        if key not in self.by_slice:
            self.by_slice[key] = len(self.templates)
            on_slices = tuple(_compact(o) if at in outside else o for at, o in enumerate(template.operands))
            self.templates.append(replace(template, operands=on_slices))
        self.now_at.append(len(self.ids))
        self.ids.append(self.by_slice[key])
        self.operands.append(given)
        for put, moved in back:
            self.ids.append(put)
            self.operands.append(moved)

    def _make_space(self, size: int, wanted: dict[int, None], row: int) -> None:
        while self.free < size:
            others = [other for other in self.now if other not in wanted]
            if not others:
                line = self.program.templates[self.program.template_ids[row]].line
                raise CapacityExceeded(
                    f"the tiles of one instruction (line {line}) do not fit in SBUF together (NCC_IBIR229): "
                    + ", ".join(self.allocations[other].describe() for other in wanted)
                )
            self._move_out(max(others, key=lambda other: (self.uses[other][-1], other)))

    def _bring(self, buffer: int, wanted: dict[int, None], row: int) -> None:
        self._make_space(self.weights[buffer], wanted, row)
        self.free -= self.weights[buffer]
        self.used[buffer] = 0
        if buffer not in self.slots and buffer not in self.constant:
            self.now[buffer] = buffer
            return
        was = self.program.allocations[buffer]
        back = was._replace(id=len(self.allocations))
        self.allocations.append(back)
        self.now[buffer] = back.id
        if buffer in self.constant:
            self.ids.append(self.constant[buffer])
            self.operands.append([(back.id, 0)])
            return
        self._transfer(was, reload=True)
        self.operands.append([(back.id, 0), (self.slots[buffer], 0)])

    def _move_out(self, buffer: int) -> None:
        tile = self.program.allocations[buffer]
        if buffer not in self.slots and buffer not in self.constant:
            slot = tile._replace(
                id=len(self.allocations), region=MemoryRegion.private_hbm, name=f"spilled {tile.name or 'tile'}"
            )
            self.allocations.append(slot)
            self.slots[buffer] = slot.id
        if buffer in self.unsaved and buffer not in self.constant:
            self._transfer(tile, reload=False)
            self.operands.append([(self.slots[buffer], 0), (self.now[buffer], 0)])
            self.unsaved.discard(buffer)
        if 2 * self.used[buffer] < tile.nbytes and buffer in self.slots:
            self.hardly_used[buffer] = self.hardly_used.get(buffer, 0) + 1
            if self.hardly_used[buffer] >= _PATIENCE:
                self.may_stay.add(buffer)
        del self.now[buffer]
        self.free += self.weights[buffer]

    def _transfer(self, tile: Allocation, reload: bool) -> None:
        key = (tile.shape, tile.dtype, tile.line, reload)
        number = self.of_whole_tiles.get(key)
        if number is None:
            here, there = _whole(MemoryRegion.sbuf, tile), _whole(MemoryRegion.private_hbm, tile)
            dst, src = (here, there) if reload else (there, here)
            number = self.of_whole_tiles[key] = self._transfer_between(dst, src, tile.line, reload)
        self.ids.append(number)

    def _transfer_between(self, dst: Operand, src: Operand, line: int, reload: bool) -> int:
        """The number of its template."""
        dst, src = replace(dst, role="dst", access="w"), replace(src, role="src", access="r")
        key = (dst, src, line)
        number = self.transfers.get(key)
        if number is None:
            number = self.transfers[key] = len(self.templates)
            self.templates.append(Template("dma_copy", Engine.dma, Spill(reload), (dst, src), line))
        return number


def _whole(region: MemoryRegion, tile: Allocation) -> Operand:
    known = layout(region, tile.shape, tile.dtype)
    elements = known.partition_elements if region.on_chip else 0
    return Operand("", "r", region, tile.dtype, known.pattern, 0, elements)


def _compact(operand: Operand) -> Operand:
    """The same elements as all of a tile of their own."""
    stride = 1
    pattern: list[tuple[int, int]] = []
    for _, size in reversed(operand.pattern):
        pattern.append((stride, size))
        stride *= size
    return replace(operand, pattern=tuple(reversed(pattern)), partition_elements=operand.free_size, partition_start=0)


def _mirrors(program: Program) -> np.ndarray:
    """bool [allocations]: is all it ever holds copied by dma_copy from HBM that no instruction writes?"""
    buffers, rows, writing = program.operand_data[:, 0], program.operand_rows, program.writes
    written = np.bincount(buffers[writing], minlength=len(program.allocations)) > 0
    source = np.full(len(program.templates), -1, np.int64)
    for number, template in enumerate(program.templates):
        for at, operand in enumerate(template.operands):
            if template.opcode == "dma_copy" and operand.role == "src" and not operand.region.on_chip:
                source[number] = at
    source_at = source[program.template_ids[rows]]
    sources = buffers[program.operand_starts[:-1][rows] + np.maximum(source_at, 0)]
    clean = (source_at >= 0) & ~written[sources]
    mirrors = written.copy()
    mirrors[buffers[writing & ~clean]] = False
    return mirrors
