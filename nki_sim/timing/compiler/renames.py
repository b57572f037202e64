"""Renames: a tile that is written anew as a whole is a new tile, as in a compiler's static single assignment form.

A tile made before a loop and filled in every pass takes on the device as long as one made in the pass (rows Q096 and
Q099 of benchmarks/data/trn2_device: 632.7 and 633.0 us).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nki_sim.machine import Machine
from nki_sim.machine_code import Ints, IntTable, jit
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Operand, Program


def with_a_tile_for_each_content(program: Program, machine: Machine) -> Program:
    """The program with a buffer of its own for whatever an SBUF tile holds between two whole overwrites; itself where
    nothing is overwritten, or the compiler does not rename (`machine.renames_tiles`). Without device loops."""
    if not machine.renames_tiles or not len(program.operand_data):
        return program
    filled = np.array([_filled_bytes(operand) for t in program.templates for operand in t.operands], np.int64)
    free = program.sites.each(lambda a: a.nbytes if a.address is None and a.region is MemoryRegion.sbuf else -1)
    touched, old, rows = renamed(*program.stream, program.operand_table[0], filled, free)
    if not len(old):
        return program
    allocations = program.allocations
    return replace(
        program,
        operand_data=np.stack((touched, program.operand_data[:, 1]), axis=1),
        allocations=allocations.followed_by(allocations.kinds, allocations.kind_of[old], rows),
    )


@jit
def renamed(
    template_ids: Ints, operand_starts: Ints, operands: IntTable, bases: Ints, filled: Ints, free: Ints
) -> tuple[Ints, Ints, Ints]:
    """(by operand, the buffer that it touches instead; by new buffer, which it stands for, and the row that fills it).

    filled: by operand of a template, from `bases` on, bytes that it writes without gaps; free: by buffer, its bytes.
    """
    rows, buffers, count, again = len(template_ids), len(free), 0, False
    fills, now = np.zeros(buffers, np.int64), np.full(buffers, -1, np.int64)
    for row in range(rows):
        base = bases[template_ids[row]] - operand_starts[row]
        for k in range(operand_starts[row], operand_starts[row + 1]):
            if operands[k, 1] == 0 and filled[base + k] == free[operands[k, 0]]:
                fills[operands[k, 0]] += 1
                count += 1
                again = again or fills[operands[k, 0]] > 1
    if not again:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    touched, old, at = np.empty(len(operands), np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    count = 0
    for row in range(rows):
        low, high = operand_starts[row], operand_starts[row + 1]
        base = bases[template_ids[row]] - low
        tile = -1
        while tile < buffers:  # those that are overwritten, in the order of their numbers
            following, whole = buffers, True
            for k in range(low, high):
                buffer = operands[k, 0]
                if buffer == tile:
                    whole = whole and operands[k, 1] == 0 and filled[base + k] == free[tile]
                elif tile < buffer < following and fills[buffer] > 1:
                    following = buffer
            if tile >= 0 and now[tile] < 0:
                now[tile] = tile
            elif tile >= 0 and whole:
                now[tile], old[count], at[count] = buffers + count, tile, row
                count += 1
            tile = following
        for k in range(low, high):
            touched[k] = now[operands[k, 0]] if fills[operands[k, 0]] > 1 else operands[k, 0]
    return touched, old[:count].copy(), at[:count].copy()


def _filled_bytes(operand: Operand) -> int:
    """What it writes without gaps, if that begins where the operand does; else -2."""
    if operand.access != "w" or operand.region is not MemoryRegion.sbuf or operand.indirection is not None:
        return -2
    run = 1
    for stride, size in sorted(operand.pattern):
        if size > 1 and stride != run:
            return -2
        run *= size
    return run * operand.dtype.itemsize
