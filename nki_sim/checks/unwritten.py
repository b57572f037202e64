"""Could a program read memory that it has not written? Found without numbers, from where instructions read and write.

The answer may be yes for a program that does not (places that only the device knows, loops that may not run), and is
never no for one that does. What such a read finds on the device is chance; the executor shows whether anything depends
on it (`execute_counting` with other memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Loop, Operand, Program, Template


def may_read_unwritten(program: Program) -> bool:
    """Of all its cores. What one of them writes to memory that they share counts as written, whoever is first."""
    cores = (program, *program.peers)
    if len(cores) == 1:
        return _may(program, ())
    shared = [[a.id for a in each.allocations.in_region(MemoryRegion.shared_hbm)] for each in cores]
    held = [set(_held(each)) | set(each.operand_data[each.writes, 0].tolist()) for each in cores]
    places = [at for at in range(len(shared[0])) if any(mine[at] in has for mine, has in zip(shared, held))]
    return any(_may(each, [mine[at] for at in places]) for each, mine in zip(cores, shared))


def _may(program: Program, elsewhere: Sequence[int]) -> bool:
    """One core. `elsewhere`: buffers that another may have written."""
    if not len(program):
        return False
    reads = program.of_operands([[_reads(t, o) for o in t.operands] for t in program.templates]).astype(np.bool_)
    writes = program.of_operands([[_writes(t, o) for o in t.operands] for t in program.templates]).astype(np.bool_)
    rows, buffers, count = program.operand_rows, program.operand_data[:, 0], len(program.allocations)
    uncertain = [loop for loop in program.loops if not loop.trips]
    sure = np.ones(len(program), np.bool_)
    for loop in uncertain:
        sure[loop.start : loop.end] = False
    sizes = program.of_operands([[_dense_bytes(o) for o in t.operands] for t in program.templates])
    fills = writes & sure[rows] & (sizes == program.sites.each(lambda a: a.nbytes)[buffers])
    first_read, first_fill = (np.full(count, len(program), np.int64) for _ in range(2))
    for first, chosen in ((first_read, reads), (first_fill, fills)):
        first[buffers[chosen][::-1]] = rows[chosen][::-1]
    suspected = (first_read < len(program)) & (first_read <= first_fill)
    suspected[[*_held(program), *elsewhere]] = False
    known: set[tuple[object, ...]] = set()
    for events in _by_buffer(np.flatnonzero(suspected[buffers] & (reads | writes)), buffers):
        at = rows[events]
        key = (
            int(program.sites.of_buffer[buffers[events[0]]]),
            program.template_ids[at].tobytes(),
            (events - program.operand_starts[at]).tobytes(),
            program.operand_data[events, 1].tobytes(),
            at.tobytes() if uncertain else b"",
        )
        if key not in known:
            known.add(key)
            if _reads_first(program, events, reads, uncertain):
                return True
    return False


def _reads(template: Template, operand: Operand) -> bool:
    """A product that finds nothing in PSUM starts a sum there, and a barrier only names what it protects."""
    if template.opcode == "core_barrier" or operand.access == "w":
        return False
    return operand.access == "r" or not _starts_sums(template, operand)


def _writes(template: Template, operand: Operand) -> bool:
    """All of its elements, at places that are known."""
    if operand.indirection is not None:
        return False
    return operand.access == "w" or (operand.access == "u" and _starts_sums(template, operand))


def _starts_sums(template: Template, operand: Operand) -> bool:
    sums = template.opcode.startswith("nc_matmul") and operand.role == "dst"
    return sums and getattr(template.attrs, "accumulate", None) is not True


def _dense_bytes(operand: Operand) -> int:
    """Of an access without gaps; else 0."""
    run = 1
    for stride, size in sorted(operand.pattern):
        if size > 1 and stride != run:
            return 0
        run *= size
    return run * operand.dtype.itemsize


def _held(program: Program) -> list[int]:
    """Buffers that hold something before the first instruction, or are set by loops."""
    inputs = [ref.allocation for ref in program.inputs]
    return [*inputs, *program.constants, *[loop.counter for loop in program.loops]]


def _by_buffer(operands: np.ndarray, buffers: np.ndarray) -> Sequence[np.ndarray]:
    """The operands of each buffer, in the order of the rows."""
    if not len(operands):
        return []
    operands = operands[np.argsort(buffers[operands], kind="stable")]
    return np.split(operands, np.flatnonzero(np.diff(buffers[operands])) + 1)


def _reads_first(program: Program, events: np.ndarray, reads: np.ndarray, uncertain: Sequence[Loop]) -> bool:
    """Is some byte of one buffer read before it is written?

    What a loop that may not run has written counts inside it alone.
    """
    nbytes = program.allocations[int(program.operand_data[events[0], 0])].nbytes
    touched: list[tuple[int, bool, Operand, int]] = []
    for event in events.tolist():
        row = int(program.operand_rows[event])
        operand = program.templates[program.template_ids[row]].operands[event - int(program.operand_starts[row])]
        touched.append((row, bool(reads[event]), operand, int(program.operand_data[event, 1])))
    unit = min(operand.dtype.itemsize for _, _, operand, _ in touched)
    surely = np.zeros(nbytes // unit, np.bool_)
    left = surely.size
    written: dict[Loop | None, np.ndarray] = {None: surely}
    for row, group in groupby(touched, lambda each: each[0]):
        here = list(group)
        around = [loop for loop in uncertain if loop.start <= row < loop.end]
        masks = [written[key] for key in (None, *around) if key in written]
        if any(reading and not _all_of(masks, operand, offset, unit) for _, reading, operand, offset in here):
            return True
        for _, reading, operand, offset in here:
            if not reading:
                mask = written.setdefault(around[-1] if around else None, np.zeros_like(surely))
                view = _view(mask, operand, offset, unit)
                left -= int(np.count_nonzero(~view)) if mask is surely else 0
                view[...] = True
        if left <= 0:  # an access that walks over an element twice has been counted twice
            left = surely.size - int(np.count_nonzero(surely))
        if not left:
            return False
    return False


def _all_of(masks: Sequence[np.ndarray], operand: Operand, offset: int, unit: int) -> bool:
    """Asked while not all of the buffer is written: nothing is known of places that only the device knows."""
    if operand.indirection is not None:
        return False
    return bool(np.logical_or.reduce([_view(mask, operand, offset, unit) for mask in masks]).all())


def _view(mask: np.ndarray, operand: Operand, offset: int, unit: int) -> np.ndarray:
    each = operand.dtype.itemsize // unit
    shape = [*operand.shape, each]
    strides = [*[stride * each for stride, _ in operand.pattern], 1]
    return np.ndarray(shape, np.bool_, mask, offset * each, strides)
