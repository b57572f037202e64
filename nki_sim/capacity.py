"""On-chip capacity: what is live at once must fit, because the compiler never spills (NCC_EGCA111).

A buffer is live from the first instruction that touches it to the last one. The compiler places
buffers by graph colouring and may put small ones side by side on different quarters of the
partitions, so the peak of live bytes over time, with a buffer of up to 32 partitions counted as a
quarter, is what no placement can beat in program order.

The compiler also reorders: AWS's blocked matmul tutorial holds 320 KiB per partition in program order
and runs, because loads and whole tiles of work can be moved. What only mirrors an input can be loaded
when it is wanted; so unless `in_order` is asked for, such a buffer counts only where it is touched, and
a kernel that exceeds even that cannot be compiled at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_sim.errors import CapacityExceeded, NkiValidationError
from nki_sim.machine import ISA, machine
from nki_sim.memory import Allocation, MemoryRegion, layout
from nki_sim.program import Engine, Program

_SHOWN = 8


@dataclass(frozen=True)
class Peak:
    """The moment at which a memory is fullest."""

    region: MemoryRegion
    live_bytes: float
    """Bytes per partition, averaged over the partitions in quarters."""
    limit_bytes: int
    row: int
    """Number of the instruction at which it happens."""
    live: tuple[Allocation, ...]
    """What is live then, largest first."""

    def report(self, source_line: int) -> str:
        lines = [
            f"{self.region.value.upper()} is full (NCC_EGCA111): {self.live_bytes:,.0f} bytes per partition are live "
            f"at line {source_line}, {self.limit_bytes:,} are usable; use smaller tiles, or allocate inside the loop "
            "that uses them. Live there:"
        ]
        for allocation in self.live[:_SHOWN]:
            lines.append(f"  {allocation.partition_bytes:>9,} B  {allocation.describe()}")
        rest = self.live[_SHOWN:]
        if rest:
            lines.append(f"  {sum(a.partition_bytes for a in rest):>9,} B  in {len(rest)} more")
        return "\n".join(lines)


def usable_bytes(machine_name: str, region: MemoryRegion) -> int:
    """Bytes per partition that a kernel can have of SBUF or PSUM."""
    core = machine(machine_name)
    return core.sbuf_partition_bytes if region is MemoryRegion.sbuf else core.psum_banks * core.psum_bank_bytes


def peak(program: Program, region: MemoryRegion, *, in_order: bool = True) -> Peak:
    """Where `region` is fullest: in program order, or counting what can be loaded again only where it is touched."""
    limit = usable_bytes(program.machine, region)
    sizes: dict[Any, int] = {}
    numbers: list[int] = []
    weights: list[int] = []
    for number, place, shape, dtype, *_ in program.allocations:
        if place is region:
            numbers.append(number)
            key = (shape, dtype)
            if key not in sizes:
                known = layout(place, shape, dtype)
                sizes[key] = _quarters(shape[0]) * known.partition_elements * dtype.itemsize
            weights.append(sizes[key])
    mine = np.array(numbers, np.int64)
    used = program.last_use[mine] >= 0
    mine, weight = mine[used], np.array(weights, np.int64)[used]
    first, last = program.first_use[mine], program.last_use[mine]
    if not len(mine):
        return Peak(region, 0.0, limit, 0, ())
    held_throughout = np.ones(len(mine), np.bool_) if in_order else ~_mirrors_of_inputs(program)[mine]
    change = np.zeros(len(program) + 1, np.int64)
    np.add.at(change, first[held_throughout], weight[held_throughout])
    np.subtract.at(change, last[held_throughout] + 1, weight[held_throughout])
    live = np.cumsum(change)
    rows, buffers, nbytes = _touches(program)
    passing = np.zeros(len(program.allocations), np.bool_)
    passing[mine[~held_throughout]] = True
    np.add.at(live, rows[passing[buffers]], nbytes[passing[buffers]])
    row = int(np.argmax(live))
    there = mine[np.where(held_throughout, (first <= row) & (last >= row), np.isin(mine, buffers[rows == row]))]
    held = sorted((program.allocations[n] for n in there), key=lambda a: (-a.partition_bytes, a.id))
    return Peak(region, float(live[row]) / ISA.quadrants, limit, row, tuple(held))


def _touches(program: Program) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per operand of every instruction: instruction, buffer, bytes it touches (per partition, in quarters)."""
    width = max((len(template.operands) for template in program.templates), default=0)
    touched = np.zeros((len(program.templates), width), np.int64)
    for number, template in enumerate(program.templates):
        for at, operand in enumerate(template.operands):
            touched[number, at] = _quarters(operand.partitions) * operand.free_size * operand.dtype.itemsize
    counts = np.diff(program.operand_starts)
    rows = np.repeat(np.arange(len(program), dtype=np.int64), counts)
    at = np.arange(len(program.operand_data)) - np.repeat(program.operand_starts[:-1], counts)
    return rows, program.operand_data[:, 0], touched[program.template_ids[rows], at]


def _mirrors_of_inputs(program: Program) -> np.ndarray:
    """Per buffer: is all it ever holds copied by dma_copy from HBM that the program never writes?"""
    width = max((len(template.operands) for template in program.templates), default=0)
    writes = np.zeros((len(program.templates), width), np.bool_)
    source = np.full(len(program.templates), -1, np.int64)
    for number, template in enumerate(program.templates):
        for at, operand in enumerate(template.operands):
            writes[number, at] = operand.access != "r"
            if template.opcode == "dma_copy" and operand.role == "src" and not operand.region.on_chip:
                source[number] = at
    counts = np.diff(program.operand_starts)
    templates = np.repeat(program.template_ids.astype(np.int64), counts)
    at = np.arange(len(program.operand_data)) - np.repeat(program.operand_starts[:-1], counts)
    buffers = program.operand_data[:, 0]
    writing = writes[templates, at]
    written = np.zeros(len(program.allocations), np.bool_)
    written[buffers[writing]] = True
    loads = source[templates] >= 0
    sources = program.operand_data[np.repeat(program.operand_starts[:-1], counts) + np.maximum(source[templates], 0), 0]
    clean = loads & ~written[sources]
    mirrors = written.copy()
    mirrors[buffers[writing & ~clean]] = False
    return mirrors


def check_capacity(program: Program, *, in_order: bool = False) -> None:
    """Raises CapacityExceeded, with what is live at the peak, when SBUF or PSUM cannot hold the program.

    `in_order`: also when it could only be held by reordering it, which a compiler may or may not manage.

    Raises NkiValidationError for manual addresses that are mixed with automatic ones or out of range.
    """
    for region in (MemoryRegion.sbuf, MemoryRegion.psum):
        placed = [a for a in program.allocations if a.region is region and a.address is not None]
        if placed:
            _check_addresses(program, region, placed)
            continue
        at = peak(program, region, in_order=in_order)
        if at.live_bytes > at.limit_bytes:
            line = program.templates[program.template_ids[at.row]].line
            error = CapacityExceeded(at.report(line))
            error.line, error.file = line, program.source_file or None
            raise error


def _check_addresses(program: Program, region: MemoryRegion, placed: list[Allocation]) -> None:
    """Manual placement is all or nothing, inside the memory, and live buffers do not overlap."""
    used = program.last_use
    automatic = next(
        (a for a in program.allocations if a.region is region and a.address is None and used[a.id] >= 0), None
    )
    if automatic is not None:
        raise NkiValidationError(
            f"cannot mix manual and automatic allocation (NCC_EGCA111): {placed[0].describe()} has address="
            f"{placed[0].address}, {automatic.describe()} has none; drop every address="
        )
    limit = usable_bytes(program.machine, region)
    for allocation in placed:
        assert allocation.address is not None
        if len(allocation.address) != 2:
            raise NkiValidationError(f"address={allocation.address}: it is (partition, byte in the partition)")
        partition, byte = allocation.address
        if partition + allocation.partitions > ISA.partitions or byte + allocation.partition_bytes > limit:
            raise CapacityExceeded(
                f"{allocation.describe()} at address={allocation.address} ends outside the {limit:,} usable bytes of "
                f"{ISA.partitions} partitions of {region.value}"
            )
        if region is MemoryRegion.psum and byte % ISA.psum_bank_bytes:
            raise NkiValidationError(
                f"{allocation.describe()} at address={allocation.address}: a PSUM tensor starts at the beginning of a "
                f"bank of {ISA.psum_bank_bytes} bytes (NKI migration guide, allocation)"
            )
    shared = _two_in_one_place(program, placed)
    if shared is not None:
        old, new, row = shared
        error = NkiValidationError(
            f"{new.describe()} at address={new.address} takes bytes of {old.describe()} at address={old.address}, "
            "which is still used after it: their contents would mix; give them different addresses, or stop using "
            "the older one first"
        )
        error.line, error.file = program.templates[program.template_ids[row]].line, program.source_file or None
        raise error


def _two_in_one_place(program: Program, placed: list[Allocation]) -> tuple[Allocation, Allocation, int] | None:
    """(older, newer, row) where a buffer is first touched at an address whose buffer is used then or later."""
    first, last = program.first_use, program.last_use
    held: list[Allocation] = []
    for new in sorted((a for a in placed if last[a.id] >= 0), key=lambda a: (int(first[a.id]), a.id)):
        row = int(first[new.id])
        held = [old for old in held if last[old.id] >= row]
        for old in held:
            if _overlap(old, new) and not (last[old.id] == row and _in_place(program, row, old, new)):
                return old, new, row
        held.append(new)
    return None


def _overlap(one: Allocation, other: Allocation) -> bool:
    (partition, byte), (partition2, byte2) = one.address or (0, 0), other.address or (0, 0)
    return (
        partition < partition2 + other.partitions
        and partition2 < partition + one.partitions
        and byte < byte2 + other.partition_bytes
        and byte2 < byte + one.partition_bytes
    )


def _in_place(program: Program, row: int, old: Allocation, new: Allocation) -> bool:
    """Does an elementwise engine put its results, which are no wider, where it reads for the last time?"""
    engine = program.templates[program.template_ids[row]].engine
    elementwise = engine in (Engine.vector, Engine.scalar, Engine.gpsimd)
    return elementwise and old.address == new.address and new.partition_bytes <= old.partition_bytes


def _quarters(partitions: int) -> int:
    """One, two or all of them: three adjacent ones cannot be had."""
    quarters = -(-partitions // ISA.quadrant_partitions)
    return quarters if quarters <= 2 else ISA.quadrants
