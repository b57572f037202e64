"""Spills: what the compiler moves out to HBM and back where the live tiles do not fit in SBUF.

On the device no kernel was refused because the sum of its live tiles exceeds SBUF; those ran, with more transfers
than they ask for (rows A015 to C038 of benchmarks/data/trn2_device). Their number is that of a policy which, when
space is wanted, moves out the tile whose next use lies furthest ahead, whole; a tile of which little is used each
time stays outside, and instructions fetch their slices of it (rows B048, B074 to B080).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nki_sim.errors import CapacityExceeded
from nki_sim.machine import ISA, Machine
from nki_sim.program.allocations import Allocations
from nki_sim.program.memory import Allocation, MemoryRegion, layout
from nki_sim.program.program import Edge, Engine, Operand, Program, Template
from nki_sim.program.region_lists import numbers_of
from nki_sim.program.regions import numbered
from nki_sim.timing.compiler import spill_walk

_PATIENCE = 2
"""Times that a tile is moved out hardly used before it stays outside."""
_SLICES_AT_ONCE = 4
"""Slices for which there is room, so that the next is fetched before the last is put back: the K = 256 rows of
benchmarks/data/trn2_device that spill move 421 bytes/ns, with room for one they would 265."""


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
    return spill_walk.largest_sum(program.first_use, program.last_use, sizes, len(program))


def with_spills(program: Program, machine: Machine) -> Program:
    """The program with the transfers that make it fit; itself when it does.

    Raises CapacityExceeded when the tiles of one instruction do not fit together (NCC_IBIR229).
    """
    capacity = ISA.quadrants * machine.sbuf_partition_bytes
    placed = any(a.region is MemoryRegion.sbuf and a.address is not None for a in program.sites.examples)
    if not len(program) or placed or most_live(program) <= capacity:
        return program
    operands = [(o, t) for t in program.templates for o in t.operands]
    kinds, kind_of = program.allocations.kinds, program.allocations.kind_of
    weights = np.array([weight(a) if a.region is MemoryRegion.sbuf else -1 for a in kinds], np.int64)
    bases, writes = program.operand_table
    given = (
        *program.stream,
        bases,
        np.array([o.access != "w" for o, _ in operands], np.bool_),
        writes,
        np.array([o.nbytes for o, _ in operands], np.int64),
        np.array([o.indirection is not None for o, _ in operands], np.bool_),
        np.array([weight(_slice(o, 0, 0)) if o.region is MemoryRegion.sbuf else 0 for o, _ in operands], np.int64),
        np.array([t.opcode == "memset" for t in program.templates], np.bool_),
        weights[kind_of],
        np.array([kind.nbytes for kind in kinds], np.int64)[kind_of],
        _mirrors(program),
        capacity,
        _PATIENCE,
        _SLICES_AT_ONCE,
    )
    most_added = len(program) + len(kind_of)
    while (found := spill_walk.spilled(*given, most_added))[0] == spill_walk.TOO_MANY:
        most_added *= 4
    ended, made, starts, data, new, row_at = found
    if ended == spill_walk.NO_SPACE:
        raise _too_large(program, int(row_at[0]))
    templates = _Added(program)
    template_ids = _template_ids(templates, program, made, operands)
    return replace(
        program,
        template_ids=template_ids,
        templates=tuple(templates.all),
        allocations=_with_new(program.allocations, new, operands),
        operand_starts=starts,
        operand_data=data,
        edges=tuple(Edge(int(row_at[edge.before]), int(row_at[edge.after])) for edge in program.edges),
    )


def _too_large(program: Program, row: int) -> CapacityExceeded:
    """The tiles of that row do not fit together."""
    template = program.templates[program.template_ids[row]]
    low, high = program.operand_starts[row : row + 2].tolist()
    tiles = [program.allocations[buffer] for buffer in dict.fromkeys(program.operand_data[low:high, 0].tolist())]
    return CapacityExceeded(
        f"the tiles of one instruction (line {template.line}) do not fit in SBUF together (NCC_IBIR229): "
        + ", ".join(tile.describe() for tile in tiles if tile.region is MemoryRegion.sbuf)
    )


class _Added:
    """The templates of what the compiler adds, behind the program's own, each made when it is first needed."""

    def __init__(self, program: Program) -> None:
        self._own = program.templates
        self.all = list(program.templates)
        self._transfers: dict[tuple[object, ...], int] = {}
        self._of_whole_tiles: dict[tuple[object, ...], int] = {}
        """The same by shape, dtype and line of the tile, and by direction."""
        self._on_slices: dict[tuple[int, tuple[int, ...]], int] = {}
        """(template, operands whose tiles stay outside) to the template that works on slices."""

    def transfer(self, tile: Allocation, reload: bool) -> int:
        """Of a whole tile: the number of its template, as of the others."""
        key = (tile.shape, tile.dtype, tile.line, reload)
        number = self._of_whole_tiles.get(key)
        if number is None:
            here, there = _whole(MemoryRegion.sbuf, tile), _whole(MemoryRegion.private_hbm, tile)
            number = self._of_whole_tiles[key] = self._between(here, there, tile.line, reload)
        return number

    def of_slice(self, operand: Operand, line: int, reload: bool) -> int:
        there = replace(operand, region=MemoryRegion.private_hbm, partition_elements=0)
        return self._between(_compact(operand), there, line, reload)

    def on_slices(self, number: int, outside: tuple[int, ...]) -> int:
        """As that template, with slices for these operands."""
        key = (number, outside)
        if key not in self._on_slices:
            self._on_slices[key] = len(self.all)
            template = self._own[number]
            operands = tuple(_compact(o) if at in outside else o for at, o in enumerate(template.operands))
            self.all.append(replace(template, operands=operands))
        return self._on_slices[key]

    def _between(self, here: Operand, there: Operand, line: int, reload: bool) -> int:
        dst, src = (here, there) if reload else (there, here)
        dst, src = replace(dst, role="dst", access="w"), replace(src, role="src", access="r")
        key = (dst, src, line)
        number = self._transfers.get(key)
        if number is None:
            number = self._transfers[key] = len(self.all)
            self.all.append(Template("dma_copy", Engine.dma, Spill(reload), (dst, src), line))
        return number


def _slot(tile: Allocation, number: int) -> Allocation:
    """Its place in HBM."""
    return tile._replace(id=number, region=MemoryRegion.private_hbm, name=f"spilled {tile.name or 'tile'}")


def _slice(operand: Operand, line: int, number: int) -> Allocation:
    """A buffer for what an operand touches of a tile that stays outside."""
    shape = operand.partitions, operand.free_size
    return Allocation(number, MemoryRegion.sbuf, shape, operand.dtype, "slice", line, 0)


def _template_ids(
    templates: _Added, program: Program, made: np.ndarray, operands: Sequence[tuple[Operand, Template]]
) -> np.ndarray:
    """int32 [rows], of the rows that spill_walk.spilled made; the templates that they need are made."""
    what, which, parts, turn = made.T
    ids = which.astype(np.int32)
    rows = np.flatnonzero(what != spill_walk.INSTRUCTION)
    rows = rows[np.argsort(turn[rows], kind="stable")]
    of_tiles = (what[rows] == spill_walk.RELOAD) | (what[rows] == spill_walk.SAVE)
    alike = np.where(of_tiles, program.allocations.kind_of[np.where(of_tiles, which[rows], 0)], which[rows])
    keys = numbered(numbered(what[rows], alike), parts[rows])
    numbers, first = numbers_of(keys)
    made_ids = np.zeros(len(first), np.int32)
    for number, (kind, of, bits, _) in enumerate(made[rows[first]].tolist()):
        if kind in (spill_walk.RELOAD, spill_walk.SAVE):
            made_ids[number] = templates.transfer(program.allocations[of], kind == spill_walk.RELOAD)
        elif kind == spill_walk.ON_SLICES:
            outside = tuple(at for at in range(spill_walk.MOST_SLICES) if bits >> at & 1)
            made_ids[number] = templates.on_slices(of, outside)
        else:
            operand, template = operands[of]
            made_ids[number] = templates.of_slice(operand, template.line, kind == spill_walk.SLICE_IN)
    ids[rows] = made_ids[numbers]
    return ids


def _with_new(allocations: Allocations, new: np.ndarray, operands: Sequence[tuple[Operand, Template]]) -> Allocations:
    """Those that spill_walk.spilled made after the program's own."""
    what, of = new.T
    of_tiles = what != spill_walk.SLICE
    tiles = np.where(of_tiles, of, 0)
    keys = numbered(what, np.where(of_tiles, allocations.kind_of[tiles], of))
    numbers, first = numbers_of(keys)
    kinds = []
    for kind, source in new[first].tolist():
        if kind == spill_walk.SLICE:
            operand, template = operands[source]
            kinds.append(_slice(operand, template.line, 0))
        else:
            tile = allocations[source]
            kinds.append(tile if kind == spill_walk.BACK else _slot(tile, 0))
    at = np.where(of_tiles, allocations.allocated_at[tiles], 0)
    return allocations.followed_by(kinds, numbers, at)


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
    source_at = np.full(len(program.templates), -1, np.int64)
    for number, template in enumerate(program.templates):
        for at, operand in enumerate(template.operands):
            if template.opcode == "dma_copy" and operand.role == "src" and not operand.region.on_chip:
                source_at[number] = at
    return spill_walk.mirrors_of(*program.stream, *program.operand_table, source_at, len(program.allocations))
