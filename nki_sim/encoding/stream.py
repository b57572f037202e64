"""Whether the rows of a program fit its templates and its buffers: what `program_file` asks of every file it reads.

A template is checked once; here every row is, all together: which buffers it names, and where in them. An access stays
inside its buffer and, on chip, inside its partitions; registers of an engine are that engine's one set.
"""

from __future__ import annotations

import numpy as np

from nki_sim.contract.contracts import Slot, lanes_start
from nki_sim.contract.opcodes import OPCODES
from nki_sim.dtypes import uint32
from nki_sim.errors import ProgramFormatError
from nki_sim.isa.prng import first_state
from nki_sim.machine import ISA
from nki_sim.program.memory import Allocation, MemoryRegion
from nki_sim.program.program import Engine, Operand, Program, Template

_REGIONS = list(MemoryRegion)


def check_stream(program: Program) -> None:
    """Every row names a template and gives each of its operands a buffer it stays inside.

    Raises ProgramFormatError naming the first row that does not.
    """
    ids, starts, data = program.template_ids, program.operand_starts, program.operand_data
    templates, allocations = program.templates, program.allocations
    if ids.ndim != 1 or starts.shape != (len(ids) + 1,) or data.ndim != 2 or data.shape[1] != 2:
        raise ProgramFormatError(f"stream shapes {ids.shape}, {starts.shape}, {data.shape} do not belong together")
    if len(ids) and (ids.min() < 0 or ids.max() >= len(templates)):
        raise ProgramFormatError(f"a row names a template outside 0..{len(templates) - 1}")
    unused = np.bincount(ids, minlength=len(templates)) == 0
    if unused.any():
        raise ProgramFormatError(f"template {int(np.argmax(unused))} belongs to no row")
    if len(set(templates)) != len(templates):
        raise ProgramFormatError("a template is there twice")
    operand_counts = np.array([len(t.operands) for t in templates] or [0], np.int64)
    expected = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(operand_counts[ids], out=expected[1:])
    if not np.array_equal(starts, expected) or len(data) != expected[-1]:
        raise ProgramFormatError("the rows' operand counts are not their templates'")
    if not len(data):
        return
    if data[:, 0].min() < 0 or data[:, 0].max() >= len(allocations):
        raise ProgramFormatError(f"an operand names a buffer outside 0..{len(allocations) - 1}")
    rows = _Rows(program)
    rows.check_places()
    rows.check_state()
    _check_order(program)


def span(pattern: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Lowest and highest element touched, relative to the offset."""
    low = sum(min(0, s * (n - 1)) for s, n in pattern)
    high = sum(max(0, s * (n - 1)) for s, n in pattern)
    return low, high


class _Rows:
    """Every operand of every row, each with what its template says of it."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._operands = [(t, o, s) for t in program.templates for o, s in zip(t.operands, _slots(t))]
        self._rows, self._which = program.operand_rows, program.operand_numbers
        self._buffers, self._offsets = program.operand_data[:, 0], program.operand_data[:, 1]

    def check_places(self) -> None:
        """Each is in its buffer, of the memory and the partition size that the template is for."""
        which, buffers, offsets = self._which, self._buffers, self._offsets
        operands = [operand for _, operand, _ in self._operands]
        sites = self._program.sites
        memory = sites.each(lambda a: _REGIONS.index(a.region))
        nbytes = sites.each(lambda a: a.nbytes)
        row_bytes = sites.each(lambda a: a.partition_bytes if a.region.on_chip else 0)
        region = np.array([_REGIONS.index(o.region) for o in operands], np.int64)
        item = np.array([o.dtype.itemsize for o in operands], np.int64)
        wanted = np.array([o.partition_elements * o.dtype.itemsize for o in operands], np.int64)
        self._refuse(memory[buffers] != region[which], "the template is for another memory")
        self._refuse(row_bytes[buffers] != wanted[which], "the template is for another partition size")
        spans = np.array([span(o.pattern) for o in operands], np.int64).reshape(-1, 2)
        limit = nbytes[buffers] // item[which]
        outside = (offsets < 0) | (offsets >= limit)
        outside |= (offsets + spans[which, 0] < 0) | (offsets + spans[which, 1] >= limit)
        self._refuse(outside, "the access leaves its buffer")
        often = np.array([o.elements if _of_a_transfer(t, o) else 0 for t, o, _ in self._operands], np.int64)
        self._refuse(often[which] > limit, "the transfer writes more elements than there are")
        elements = np.array([max(1, o.partition_elements) for o in operands], np.int64)[which]
        start = np.array([o.partition_start for o in operands], np.int64)[which]
        on_chip = wanted[which] > 0
        self._refuse(on_chip & (offsets // elements != start), "the start partition differs")
        free = np.array([span(o.pattern[1:]) for o in operands], np.int64).reshape(-1, 2)
        place = offsets % elements
        crosses = (place + free[which, 0] < 0) | (place + free[which, 1] >= elements)
        self._refuse(on_chip & crosses, "the access leaves its partitions")
        in_psum = region[which] == _REGIONS.index(MemoryRegion.psum)
        stated = np.array([o.free_offset for o in operands], np.int64)[which]
        self._refuse(in_psum & (place != stated), "the place in the partition differs")

    def check_state(self) -> None:
        """An engine has one set of accumulators and of generators, and a lane serves one partition."""
        starts = [-1 if slot is None or slot.lanes is None else lanes_start(t, slot) for t, _, slot in self._operands]
        expected = np.array(starts, np.int64)[self._which]
        own = expected >= 0
        self._refuse(own & (self._offsets != expected), "these are the registers of other lanes")
        found: dict[tuple[Engine, str], int] = {}
        pairs = np.unique(np.stack((self._which[own], self._buffers[own]), axis=1), axis=0)
        for number, buffer in pairs.tolist():
            template, operand, slot = self._operands[number]
            allocation = self._program.allocations[buffer]
            known = found.setdefault((template.engine, operand.role), buffer)
            if known != buffer or allocation[2:4] != ((ISA.partitions, slot.words if slot else 0), operand.dtype):
                raise ProgramFormatError(
                    f"{template.opcode}: {allocation.describe()} is not {template.engine.name}'s {operand.role}"
                )
            if operand.role == "state" and buffer not in self._program.constants:
                raise ProgramFormatError(f"{template.opcode}: {template.engine.name}'s generators start with nothing")
        if len(set(found.values())) != len(found):
            raise ProgramFormatError("two engines share one set of registers")

    def _refuse(self, bad: np.ndarray, why: str) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            operand = self._operands[int(self._which[at])][1]
            buffer = self._program.allocations[int(self._buffers[at])]
            raise ProgramFormatError(
                f"instruction {int(self._rows[at])}, {operand.role}{list(operand.shape)} at offset "
                f"{int(self._offsets[at])} of {buffer.describe()}: {why}"
            )


def _slots(template: Template) -> list[Slot | None]:
    """By operand of a template that keeps its contract: its slot; None for an index."""
    slots = {slot.role: slot for slot in OPCODES[template.opcode].contract.operands}
    return [slots.get(operand.role) for operand in template.operands]


def _of_a_transfer(template: Template, operand: Operand) -> bool:
    """Written by a DMA engine, which has no limit of its own to the elements of an access."""
    return template.engine is Engine.dma and operand.access != "r"


def check_first_contents(allocation: Allocation, contents: np.ndarray) -> None:
    """What a buffer may hold before the first instruction: HBM anything, generators their seed, all else nothing."""
    if allocation.region.on_chip:
        raise ProgramFormatError(f"{allocation.describe()} is filled by instructions, not before them")
    if allocation.region is MemoryRegion.register:
        seeded = first_state()
        if allocation[2:4] != (seeded.shape, uint32) or not np.array_equal(contents, seeded):
            raise ProgramFormatError(f"{allocation.describe()} is a register, and filled by instructions")


def _check_order(program: Program) -> None:
    """No buffer is touched before it is allocated."""
    allocated = program.allocations.allocated_at
    early = (allocated < 0) | (allocated > program.first_use)
    if early.any():
        allocation = program.allocations[int(np.argmax(early))]
        raise ProgramFormatError(
            f"{allocation.describe()} is allocated at instruction {allocation.allocated_at}, which is not before its "
            "first use"
        )
