"""Rules that many instructions share. Each raises NkiValidationError: rule, the shape that broke it, fix.

They run once per template (nki_sim.program.program), so they may be thorough. Where AWS's documents disagree
with each other or with verified kernels, the rule is left out: a false alarm on a valid kernel is worse.
"""

from __future__ import annotations

from collections.abc import Iterable

from nki_sim.dtypes import DType
from nki_sim.errors import NkiValidationError
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Operand, Template


def get(template: Template, role: str) -> Operand:
    """The operand of that role. Only a damaged program lacks one."""
    operand = template.operand(role)
    if operand is None:
        raise NkiValidationError(f"{template.opcode} needs an operand {role}")
    return operand


def data_operands(template: Template) -> Iterable[Operand]:
    """Operands that are tensors of the kernel: neither indices nor accumulators."""
    return (o for o in template.operands if not o.role.endswith(".index") and o.region is not MemoryRegion.register)


def on_chip(template: Template) -> None:
    """Compute engines read and write SBUF and PSUM only, at legal partitions, within an access pattern."""
    for operand in data_operands(template):
        if not operand.region.on_chip:
            raise NkiValidationError(
                f"{template.opcode} cannot access {operand.role} {list(operand.shape)} in {operand.region.value}: "
                "load it into SBUF first with nisa.dma_copy"
            )
        partitions(template, operand)


def partitions(template: Template, operand: Operand) -> None:
    """As many partitions as there are, starting where the hardware can."""
    count, start = operand.partitions, operand.partition_start
    if count > ISA.partitions or start + count > ISA.partitions:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} touches partitions {start} to "
            f"{start + count - 1}, but there are {ISA.partitions}: tile the first dimension"
        )
    allowed = start_partitions(count)
    if start not in allowed:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} starts at partition {start}; an access to "
            f"{count} partitions must start at {' or '.join(map(str, allowed))}: move rows with nisa.dma_copy instead"
        )


def start_partitions(count: int) -> tuple[int, ...]:
    """Where an access to so many partitions may start: any quadrant, either half, or 0 if half are too few."""
    half = ISA.partitions // 2
    if count > half:
        return (0,)
    return tuple(range(0, ISA.partitions, half if count > ISA.quadrant_partitions else ISA.quadrant_partitions))


def engine(template: Template, allowed: tuple[Engine, ...]) -> None:
    """The chosen engine has the instruction, and GpSimd has no path to PSUM."""
    if template.engine not in allowed:
        names = " or ".join(f"nisa.engine.{e.name}" for e in allowed)
        raise NkiValidationError(f"{template.opcode} does not run on {template.engine.name}: use {names}")
    if template.engine is Engine.gpsimd:
        for operand in data_operands(template):
            if operand.region is MemoryRegion.psum:
                raise NkiValidationError(
                    f"{template.opcode} on GpSimd cannot access PSUM ({operand.role} {list(operand.shape)}): use the "
                    "vector or scalar engine, or copy the tile to SBUF first"
                )


def computed_on(template: Template, *allowed: Engine) -> None:
    """On chip, by one of these engines."""
    on_chip(template)
    engine(template, allowed)


def same_size(template: Template, *operands: Operand) -> None:
    """Equal partition counts and equal elements per partition; the shapes themselves may differ."""
    first = operands[0]
    for other in operands[1:]:
        if other.partitions != first.partitions or other.free_size != first.free_size:
            hint = ""
            if other.partitions == first.partitions and 1 in (other.free_size, first.free_size):
                hint = "; a [P, 1] operand goes through nisa.tensor_scalar or a view .broadcast(1, n)"
            elif 1 in (other.partitions, first.partitions):
                hint = "; to repeat one row over partitions, multiply it by ones with nisa.nc_matmul or load it by DMA"
            raise NkiValidationError(
                f"{template.opcode}: {other.role} {list(other.shape)} and {first.role} {list(first.shape)} must have "
                f"the same partitions and elements per partition{hint}"
            )


def per_partition(template: Template, operand: Operand, data: Operand) -> None:
    """A vector operand: one element for each partition of the data."""
    if operand.partitions != data.partitions or operand.free_size != 1:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} must be a number or a tile of shape "
            f"[{data.partitions}, 1], one element for each partition of {data.role} {list(data.shape)}"
        )


def dtype_in(template: Template, operand: Operand, allowed: tuple[DType, ...]) -> None:
    if operand.dtype not in allowed:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} is {operand.dtype}, must be "
            f"{' or '.join(allowed)}: convert it with nisa.tensor_copy"
        )


def same_dtype(template: Template, first: Operand, second: Operand) -> None:
    if first.dtype != second.dtype:
        raise NkiValidationError(
            f"{template.opcode}: {second.role} is {second.dtype} and {first.role} is {first.dtype}; this instruction "
            "does not convert, they must be equal"
        )


def integers(template: Template, *operands: Operand) -> None:
    """Bit operators work on integer bit patterns."""
    for operand in operands:
        if operand.dtype.is_float:
            raise NkiValidationError(
                f"{template.opcode}: bit operators need integers, but {operand.role} {list(operand.shape)} is "
                f"{operand.dtype}: view it with .view(nl.int32) or convert it"
            )


def not_both_psum(template: Template, first: Operand, second: Operand) -> None:
    """Vector has one read port into PSUM."""
    if first.region is MemoryRegion.psum and second.region is MemoryRegion.psum:
        raise NkiValidationError(
            f"{template.opcode}: {first.role} {list(first.shape)} and {second.role} {list(second.shape)} cannot both "
            "be in PSUM: copy one to SBUF with nisa.tensor_copy first"
        )


def region(template: Template, operand: Operand, *allowed: MemoryRegion) -> None:
    if operand.region not in allowed:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} is in {operand.region.value}, must be in "
            f"{' or '.join(r.value for r in allowed)}"
        )


def one_bank(template: Template, operand: Operand) -> None:
    """A matmul result lies within one PSUM bank."""
    low, high = operand.free_span_bytes
    start = operand.free_offset * operand.dtype.itemsize
    if (start + low) // ISA.psum_bank_bytes != (start + high - 1) // ISA.psum_bank_bytes:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} {operand.dtype} covers bytes {start + low} to "
            f"{start + high - 1} of a PSUM partition and crosses a bank of {ISA.psum_bank_bytes} bytes: write at most "
            f"{ISA.psum_bank_bytes // operand.dtype.itemsize} elements, within one bank"
        )


def free_range(template: Template, operand: Operand, low: int, high: int) -> None:
    if not low <= operand.free_size <= high:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} has {operand.free_size} elements per partition, "
            f"must have {low}" + (f" to {high}: tile the free dimension" if high != low else "")
        )
