"""On-chip capacity: what the compiler refuses, and how full the memories are.

A buffer is live from the first instruction that touches it to the last one. The compiler places buffers by graph
colouring and may put small ones side by side on different quarters of the partitions, so that a buffer of up to 32
partitions counts as a quarter. What does not fit in SBUF is spilled (`compiler.spills`); refused is only, as
on the device (benchmarks/data/trn2_device), a tile larger than a partition (NCC_INLA001), an instruction whose tiles
do not fit together (NCC_IBIR229), and whatever PSUM cannot hold, which is not spilled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nki_sim.errors import CapacityExceeded, NkiValidationError
from nki_sim.machine import ISA, machine
from nki_sim.program.memory import Allocation, MemoryRegion
from nki_sim.program.program import Engine, Program
from nki_sim.timing.compiler.spills import weight

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


def peak(program: Program, region: MemoryRegion) -> Peak:
    """Where `region` is fullest, in program order."""
    limit = usable_bytes(program.machine, region)
    first, last = program.first_use, program.last_use
    mine = (last >= 0) & _lies_in(program, region)
    if not mine.any():
        return Peak(region, 0.0, limit, 0, ())
    sizes = program.sites.each(weight)[mine]
    change = np.bincount(first[mine], sizes, len(program) + 1) - np.bincount(last[mine] + 1, sizes, len(program) + 1)
    live = np.cumsum(change)
    row = int(np.argmax(live))
    held = [program.allocations[number] for number in np.flatnonzero(mine & (first <= row) & (row <= last)).tolist()]
    return Peak(
        region,
        float(live[row]) / ISA.quadrants,
        limit,
        row,
        tuple(sorted(held, key=lambda a: (-a.partition_bytes, a.id))),
    )


def _lies_in(program: Program, region: MemoryRegion) -> np.ndarray:
    """bool [allocations]"""
    return program.sites.each(lambda allocation: allocation.region is region).astype(np.bool_)


def check_capacity(program: Program, may_spill: bool = True) -> None:
    """Raises CapacityExceeded for what the compiler refuses, with what is live there.

    `may_spill`: False where the kernel forbids the allocation that spills (NKI 0.7, nki_alloc_fallback=False).
    Raises NkiValidationError for manual addresses that are mixed with automatic ones or out of range.
    """
    for region in (MemoryRegion.sbuf, MemoryRegion.psum):
        if any(a.region is region and a.address is not None for a in program.sites.examples):
            placed = [a for a in program.allocations if a.region is region and a.address is not None]
            _check_addresses(program, region, placed)
        elif region is MemoryRegion.psum or not may_spill:
            at = peak(program, region)
            if at.live_bytes > at.limit_bytes:
                line = program.templates[program.template_ids[at.row]].line
                raise _at(program, line, at.report(line))
        else:
            _check_tiles(program)


def _check_tiles(program: Program) -> None:
    """Every SBUF tile for itself, and the tiles of every instruction together."""
    limit = usable_bytes(program.machine, MemoryRegion.sbuf)
    mine = (program.last_use >= 0) & _lies_in(program, MemoryRegion.sbuf)
    too_large = mine & (program.sites.each(lambda allocation: allocation.partition_bytes) > limit)
    if too_large.any():
        allocation = program.allocations[int(np.argmax(too_large))]
        raise _at(
            program,
            allocation.line,
            f"{allocation.describe()} takes {allocation.partition_bytes:,} bytes of each partition, "
            f"{limit:,} are usable (NCC_INLA001): use smaller tiles",
        )
    weights = np.where(mine, program.sites.each(weight), 0)
    most = max((len(template.operands) for template in program.templates), default=0)
    if min(weights.sum(), most * weights.max(initial=0)) <= ISA.quadrants * limit:
        return
    held = weights[program.operand_data[:, 0]]
    if np.bincount(program.operand_rows, held).max() <= ISA.quadrants * limit:
        return  # also with what an instruction names twice counted twice
    once = np.unique(program.operand_rows * len(weights) + program.operand_data[:, 0])
    rows, buffers = np.divmod(once, len(weights))
    together = np.bincount(rows, weights[buffers], minlength=len(program))
    row = int(np.argmax(together))
    if together[row] > ISA.quadrants * limit:
        template = program.templates[program.template_ids[row]]
        tiles = [program.allocations[buffer] for buffer in buffers[rows == row].tolist() if weights[buffer]]
        raise _at(
            program,
            template.line,
            f"the tiles of one {template.opcode} do not fit in SBUF together, {limit:,} bytes per partition are usable "
            f"(NCC_IBIR229): {', '.join(f'{tile.partition_bytes:,} B {tile.describe()}' for tile in tiles)}",
        )


def _at(program: Program, line: int, text: str) -> CapacityExceeded:
    error = CapacityExceeded(text)
    error.line, error.file = line, program.source_file or None
    return error


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
