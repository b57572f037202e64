"""Renames: a tile that is written anew as a whole is a new tile, as in a compiler's static single assignment form.

A tile made before a loop and filled in every pass takes on the device as long as one made in the pass (rows Q096 and
Q099 of benchmarks/data/trn2_device: 632.7 and 633.0 us).
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from nki_sim.machine import Machine
from nki_sim.memory import MemoryRegion
from nki_sim.program import Operand, Program


def with_a_tile_for_each_content(program: Program, machine: Machine) -> Program:
    """The program with a buffer of its own for whatever an SBUF tile holds between two whole overwrites; itself where
    nothing is overwritten, or the compiler does not rename (`machine.renames_tiles`). Without device loops."""
    if not machine.renames_tiles or not len(program.operand_data):
        return program
    sizes = program.of_operands([[_filled_bytes(operand) for operand in t.operands] for t in program.templates])
    free = program.sites.each(lambda a: a.nbytes if a.address is None and a.region is MemoryRegion.sbuf else -1)
    buffers, rows = program.operand_data[:, 0], program.operand_rows
    fills = (sizes == free[buffers]) & (program.operand_data[:, 1] == 0)
    often = np.bincount(buffers[fills], minlength=len(program.allocations)) > 1
    touches = np.flatnonzero(often[buffers])
    if not len(touches):
        return program
    touches = touches[np.argsort(buffers[touches], kind="stable")]
    tile, row = buffers[touches], rows[touches]
    begins = np.flatnonzero((np.diff(tile, prepend=-1) != 0) | (np.diff(row, prepend=-1) != 0))  # of an instruction
    whole = np.logical_and.reduceat(fills[touches], begins)
    first = np.diff(tile[begins], prepend=-1) != 0
    renamed = whole & ~first
    if not renamed.any():
        return program
    at_row = row[begins][renamed]
    order = np.argsort(at_row, kind="stable")
    names = np.empty(len(order), np.int64)
    names[order] = len(program.allocations) + np.arange(len(order))
    current = tile[begins].copy()  # by instruction: the buffer that it touches instead
    current[renamed] = names
    since = np.maximum.accumulate(np.where(first | renamed, np.arange(len(begins)), 0))
    data = program.operand_data.copy()
    data[touches, 0] = np.repeat(current[since], np.diff(np.append(begins, len(touches))))
    old = tile[begins][renamed][order]
    allocations = program.allocations
    more = allocations.followed_by(allocations.kinds, allocations.kind_of[old], at_row[order])
    changed = {"operand_data": data, "allocations": more}
    return Program(**{f.name: changed.get(f.name, getattr(program, f.name)) for f in fields(Program)})


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
