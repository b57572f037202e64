"""Loads: which the compiler leaves out, and in which order it issues the others.

A tile that is loaded again while an earlier copy of it is still near is not loaded again: of the tutorial's
"tiled" matmul 512 of 2,112 transfers are missing on the device (row L001 of benchmarks/data/trn2_device), and its
bf16 relatives leave out as many as half of SBUF can hold. Loads are issued in the order of their first consumers.
"""

from __future__ import annotations

import numpy as np

from nki_sim.machine import Machine
from nki_sim.memory import MemoryRegion
from nki_sim.program import Program
from nki_sim.regions import Regions


def _plain_loads(program: Program) -> np.ndarray:
    """bool [instructions]: dma_copy from HBM that no instruction writes to a tile on chip."""
    written = _writers(program) > 0
    by_template = np.zeros(len(program.templates), np.bool_)
    source_at = np.zeros(len(program.templates), np.int64)
    for number, template in enumerate(program.templates):
        src, dst = template.operand("src"), template.operand("dst")
        if template.opcode == "dma_copy" and len(template.operands) == 2 and src is not None and dst is not None:
            by_template[number] = not src.region.on_chip and dst.region.on_chip and dst.access == "w"
            source_at[number] = template.operands.index(src)
    found = by_template[program.template_ids]
    rows = np.flatnonzero(found)
    sources = program.operand_data[program.operand_starts[rows] + source_at[program.template_ids[rows]], 0]
    found[rows[written[sources]]] = False
    return found


def _writers(program: Program) -> np.ndarray:
    """int64 [allocations]: operands that write to it."""
    return np.bincount(program.operand_data[program.writes, 0], minlength=len(program.allocations))


def without_repeated_loads(program: Program, machine: Machine) -> Program:
    """The program less the loads of a whole tile of which a copy made not long before can serve.

    "Not long" is `machine.reload_window_bytes` of tiles allocated in each partition of SBUF since that copy was made.
    """
    loads = np.flatnonzero(_plain_loads(program))
    if not len(loads) or program.edges:
        return program
    used = np.diff(program.operand_starts)
    touched = np.bincount(program.operand_data[:, 0], minlength=len(program.allocations))
    whole = {
        number: template
        for number, template in enumerate(program.templates)
        if template.opcode == "dma_copy" and template.operands[0].region is MemoryRegion.sbuf
    }
    writers = _writers(program)
    born = _bytes_before(program)
    copies: dict[tuple[int, int, int], int] = {}
    """(template, source buffer, source offset) to the row that made the copy."""
    renamed: dict[int, int] = {}
    dropped = np.zeros(len(program), np.bool_)
    ids, starts, data = program.template_ids, program.operand_starts, program.operand_data
    for row in loads.tolist():
        number = int(ids[row])
        template = whole.get(number)
        if template is None or used[row] != 2:
            continue
        (tile, tile_offset), (source, offset) = data[starts[row]].tolist(), data[starts[row] + 1].tolist()
        dst = template.operands[0]
        allocation = program.allocations[tile]
        if (
            tile_offset
            or dst.nbytes != allocation.nbytes
            or writers[tile] != 1
            or touched[tile] < 2
            or allocation.address is not None
        ):
            continue
        key = (number, source, offset)
        earlier = copies.get(key)
        if earlier is not None and born[row] - born[earlier] <= machine.reload_window_bytes:
            renamed[tile] = int(data[starts[earlier], 0])
            dropped[row] = True
        else:
            copies[key] = row
    if not renamed:
        return program
    names = np.arange(len(program.allocations), dtype=np.int64)
    names[list(renamed)] = list(renamed.values())
    renumbered = data.copy()
    renumbered[:, 0] = names[data[:, 0]]
    return program.with_rows(np.flatnonzero(~dropped), renumbered)


def _bytes_before(program: Program) -> np.ndarray:
    """int64 [instructions]: bytes per partition of all SBUF tiles first touched before each instruction."""
    new = np.zeros(len(program) + 1, np.int64)
    first = program.first_use
    for allocation in program.allocations:
        if allocation.region is MemoryRegion.sbuf:
            new[first[allocation.id]] += allocation.partition_bytes
    return np.cumsum(new)[:-1] - new[:-1]


def order_of_need(program: Program, regions: Regions) -> np.ndarray:
    """int64 [instructions]: the rows, each load right before the first instruction that needs what it brings.

    An issue queue that is free may still start it earlier; the order is what decides between loads.
    """
    rows = np.arange(len(program), dtype=np.int64)
    if program.edges:
        return rows
    loads = _plain_loads(program)
    key = rows.astype(np.float64)
    touched = [len(program)] * len(regions)
    overlaps, read, written = regions.overlaps, regions.read, regions.written
    for row in range(len(program) - 1, -1, -1):
        if loads[row]:
            first = len(program)
            for region in written[row]:
                first = min(first, touched[region])
                for other in overlaps[region] or ():
                    first = min(first, touched[other])
            if first < len(program):
                key[row] = first - 0.5
        for region in read[row]:
            touched[region] = row
        for region in written[row]:
            touched[region] = row
    return np.argsort(key, kind="stable")
