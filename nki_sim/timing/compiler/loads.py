"""Loads: which the compiler leaves out, and in which order it issues the others.

A tile that is loaded again while an earlier copy of it is still near is not loaded again: of the tutorial's
"tiled" matmul 512 of 2,112 transfers are missing on the device (row L001 of benchmarks/data/trn2_device), and its
bf16 relatives leave out as many as half of SBUF can hold. Loads are issued in the order of their first consumers.
"""

from __future__ import annotations

import numpy as np

from nki_sim.machine import Machine
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Program
from nki_sim.program.region_lists import first_touches, in_turn, loads_of, next_touches, numbers_of, serving
from nki_sim.program.regions import find_regions, numbered


def _plain_loads(program: Program) -> np.ndarray:
    """int64: the rows that are dma_copy from HBM that no instruction writes to a tile on chip."""
    source_at = np.full(len(program.templates), -1, np.int64)
    for number, template in enumerate(program.templates):
        src, dst = template.operand("src"), template.operand("dst")
        if template.opcode == "dma_copy" and len(template.operands) == 2 and src is not None and dst is not None:
            if not src.region.on_chip and dst.region.on_chip and dst.access == "w":
                source_at[number] = template.operands.index(src)
    return loads_of(*program.stream, source_at, program.uses.writes)


def _whole_loads(program: Program) -> np.ndarray:
    """int64: the rows that load a whole SBUF tile, which nothing else writes, something reads, and has no address."""
    loads = _plain_loads(program)
    starts, buffers = program.operand_starts, program.operand_data[:, 0]
    dst_bytes = np.zeros(len(program.templates), np.int64)
    for number, template in enumerate(program.templates):
        if template.opcode == "dma_copy" and template.operands[0].region is MemoryRegion.sbuf:
            dst_bytes[number] = template.operands[0].nbytes
    free = program.sites.each(lambda a: a.nbytes if a.address is None and a.region is MemoryRegion.sbuf else -1)
    tiles = buffers[starts[loads]]
    whole = (
        (starts[loads + 1] - starts[loads] == 2)
        & (program.operand_data[starts[loads], 1] == 0)
        & (dst_bytes[program.template_ids[loads]] == free[tiles])
        & (program.uses.writes[tiles] == 1)
        & (program.uses.touches[tiles] > 1)
    )
    return loads[whole]


def without_repeated_loads(program: Program, machine: Machine) -> Program:
    """The program less the loads of a whole tile of which a copy made not long before can serve.

    "Not long" is `machine.reload_window_bytes` of tiles allocated in each partition of SBUF since that copy was made.
    """
    if program.edges:
        return program
    rows = _whole_loads(program)
    kinds, starts, data = program.kinds, program.operand_starts, program.operand_data
    tiles, (sources, offsets) = data[starts[rows], 0], data[starts[rows] + 1].T
    what = numbered(numbered(kinds[rows], sources), offsets)
    numbers, distinct = numbers_of(what)
    if len(distinct) == len(rows):
        return program
    born = _bytes_before(program)[rows]
    older = serving(numbers, len(distinct), tiles, born, machine.reload_window_bytes)
    again = older >= 0
    if not again.any():
        return program
    names = np.arange(len(program.allocations), dtype=np.int64)
    names[tiles[again]] = older[again]
    renumbered = data.copy()
    renumbered[:, 0] = names[data[:, 0]]
    kept = np.ones(len(program), np.bool_)
    kept[rows[again]] = False
    return program.with_rows(np.flatnonzero(kept), renumbered)


def _bytes_before(program: Program) -> np.ndarray:
    """int64 [instructions]: bytes per partition of all SBUF tiles first touched before each instruction."""
    sizes = program.sites.each(lambda a: a.partition_bytes if a.region is MemoryRegion.sbuf else 0)
    new = np.bincount(program.first_use, sizes, len(program) + 1).astype(np.int64)
    return np.cumsum(new)[:-1] - new[:-1]


def order_of_need(program: Program) -> np.ndarray:
    """int64 [instructions]: the rows, each load right before the first instruction that needs what it brings.

    An issue queue that is free may still start it earlier; the order is what decides between loads.
    """
    rows = np.arange(len(program), dtype=np.int64)
    loads = _plain_loads(program)
    if program.edges or not len(loads):
        return rows
    dst_at = np.array([next((k for k, o in enumerate(t.operands) if o.role == "dst"), 0) for t in program.templates])
    operands = program.operand_starts[loads] + dst_at[program.template_ids[loads]]
    sizes = np.array([t.operands[k].nbytes if t.operands else 0 for t, k in zip(program.templates, dst_at.tolist())])
    tiles = program.operand_data[operands, 0]
    whole = sizes[program.template_ids[loads]] == program.sites.each(lambda a: a.nbytes)[tiles]
    first = np.full(len(program), len(program), np.int64)
    _, starts, data = program.stream
    first[loads[whole]] = next_touches(operands[whole], starts, data, len(program.allocations))
    if not whole.all():
        _needed(program, loads[~whole], tiles[~whole], first)
    return in_turn(np.where(first < len(program), 2 * first, 2 * rows + 1), 2 * len(program))


def _needed(program: Program, loads: np.ndarray, tiles: np.ndarray, first: np.ndarray) -> None:
    """Sets `first` for loads of a part of a tile: the first row that touches the same bytes."""
    partly = np.zeros(len(program.allocations), np.bool_)
    partly[tiles] = True
    touched = np.zeros(len(program), np.bool_)
    touched[program.operand_rows[partly[program.operand_data[:, 0]]]] = True
    touching = np.flatnonzero(touched)
    regions = find_regions(program.with_rows(touching))
    loading = np.zeros(len(program), np.bool_)
    loading[loads] = True
    rows_after = np.append(touching, len(program))
    reads, writes, overlaps = regions.reads, regions.writes, regions.overlapping
    touches = first_touches(
        loading[touching], reads.starts, reads.values, writes.starts, writes.values, overlaps.starts, overlaps.values
    )
    first[touching[loading[touching]]] = rows_after[touches][loading[touching]]
