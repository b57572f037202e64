"""The instruction set: what each opcode may consist of, checks and computes. Filled by `nki_sim.isa`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from nki_sim.contract.contracts import Contract, Slot, Value
from nki_sim.program.program import Program, Template

Check = Callable[[Template], None]
"""Raises NkiValidationError when the instruction breaks a rule of the hardware. Runs once per template."""

Compute = Callable[..., None]
"""(operand arrays in the contract's order, attrs): writes the destinations in place."""


@dataclass(frozen=True)
class Opcode:
    name: str
    contract: Contract
    """Its operands and attributes. What is checked, priced and computed is the same."""
    check: Check
    compute: Compute
    attrs_type: type | None = None
    """The NamedTuple that holds its attributes."""
    uses_psum_flags: bool = False
    """compute takes a third argument: per operand, the PSUM accumulation flags (bool array) or None."""
    meets: str | None = None
    """Where the cores of a kernel meet: "barrier" or "transfer" (operands src and dst, attributes
    send_to_rank, recv_from_rank, pipe_id). The executor does it; compute is what one core alone does."""


OPCODES: dict[str, Opcode] = {}


def define(
    name: str,
    *operands: Slot,
    check: Check,
    compute: Callable[..., None],
    attrs_type: type | None = None,
    values: Mapping[str, Value] | None = None,
    uses_psum_flags: bool = False,
    meets: str | None = None,
) -> Opcode:
    """`operands`: its contract's, in order; `values`: what attributes can be whose types do not say it.

    Raises ValueError where the contract is incomplete.
    """
    if name in OPCODES:
        raise ValueError(f"opcode {name} is defined twice")
    contract = Contract(name, operands, attrs_type, values or {})
    opcode = OPCODES[name] = Opcode(name, contract, check, compute, attrs_type, uses_psum_flags, meets)
    return opcode


def meeting_rows(program: Program) -> np.ndarray:
    """int64 [meetings]: the rows at which this core meets another, in their order."""
    meets = np.array([kind_of_meeting(template.opcode) != "" for template in program.templates], np.bool_)
    return np.flatnonzero(meets[program.template_ids]) if len(meets) else np.zeros(0, np.int64)


def kind_of_meeting(opcode: str) -> str:
    """`barrier`, `transfer`, or nothing for an instruction of one core alone."""
    known = OPCODES.get(opcode)  # the compiler's own transfers are no opcodes
    return (known.meets or "") if known is not None else ""
