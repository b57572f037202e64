"""What an operand can be, whichever instruction it belongs to: its place in the call, and how it walks memory.

Runs once per template, when an instruction is traced and again when a program file is read.
"""

from __future__ import annotations

from nki_sim.contract.contracts import Contract, check_contract
from nki_sim.errors import NkiValidationError
from nki_sim.machine import ISA
from nki_sim.program.patterns import merged
from nki_sim.program.program import Engine, Operand, Template


def check_operands(template: Template, contract: Contract) -> None:
    """They are the contract's. Partitions are adjacent for every instruction; a compute engine's walk through them
    fits its four counters, while a transfer is cut into descriptors.

    Raises NkiValidationError: the rule, the operand that broke it, and what to do.
    """
    check_contract(template, contract)
    for operand in template.operands:
        if not operand.region.on_chip:
            continue
        _dynamic_places(template, operand)
        _adjacent_partitions(template, operand)
        if template.engine is not Engine.dma:
            _free_dimensions(template, operand)


def _dynamic_places(template: Template, operand: Operand) -> None:
    """NKI's pages of dma_copy and of access patterns: a vector of indices is for rows of HBM (before NeuronCore-v4),
    a single one on chip is for a place within the partitions."""
    if operand.indirection is None:
        return
    kind, _, dim, _ = operand.indirection
    if kind == "vector":
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} has a vector_offset and is in "
            f"{operand.region.value}; only rows of HBM are gathered so, by nisa.dma_copy: use nisa.nc_n_gather on chip"
        )
    if dim == 0 and template.engine is not Engine.dma:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} in {operand.region.value} starts at a partition "
            "that is only known on the device; scalar_offset on chip needs an indirect_dim above 0: use nisa.dma_copy"
        )


def _adjacent_partitions(template: Template, operand: Operand) -> None:
    """NKI access patterns, "Restriction on SBUF/PSUM Tensors": the first step is one whole partition."""
    stride, size = operand.pattern[0]
    if size > 1 and stride != operand.partition_elements:
        step = stride / operand.partition_elements
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} steps {step:g} partitions; an access to SBUF "
            "or PSUM takes adjacent ones, step 1 (NKI access patterns): slice adjacent ones, or stride in HBM with "
            "nisa.dma_copy"
        )


def _free_dimensions(template: Template, operand: Operand) -> None:
    """Trainium architecture guide, data access on SBUF and PSUM: four dimensions, strides int16."""
    free = [pair for pair in merged(operand.pattern[1:]) if pair[1] > 1]
    if len(free) > ISA.access_pattern_free_dims:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} walks {len(free)} dimensions within a partition, "
            f"an access pattern has {ISA.access_pattern_free_dims}: loop over the outer ones"
        )
    for stride, size in free:
        if not ISA.access_pattern_least_stride <= stride <= ISA.access_pattern_most_stride:
            raise NkiValidationError(
                f"{template.opcode}: {operand.role} {list(operand.shape)} steps {stride} elements of {operand.dtype}, "
                f"an access pattern's stride is {ISA.access_pattern_least_stride} to {ISA.access_pattern_most_stride}: "
                f"loop over the {size} pieces"
            )
    if operand.free_size > ISA.access_pattern_elements:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} has {operand.free_size} elements per partition, "
            f"an instruction takes at most {ISA.access_pattern_elements}: tile the free dimension"
        )
