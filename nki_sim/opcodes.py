"""The instruction set: what each opcode checks and what it computes. Filled by `nki_sim.isa`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from nki_sim.program import Template

Check = Callable[[Template], None]
"""Raises NkiValidationError when the instruction breaks a rule. Runs once per template."""

Compute = Callable[..., None]
"""(operand arrays in the template's order, attrs): writes the destinations in place."""


class Slot(NamedTuple):
    """One operand that an instruction has, in its place."""

    role: str
    """The parameter's name; `srcs[*]` stands for srcs[0], srcs[1] and so on."""
    accesses: str
    """What it may be: `r` read, `w` written, `u` updated."""
    optional: bool


@dataclass(frozen=True)
class Opcode:
    name: str
    operands: tuple[Slot, ...]
    """In the order in which `compute` finds them. Nothing else is an operand, so that what is checked, priced and
    computed is the same."""
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
    operands: str,
    *,
    check: Check,
    compute: Callable[..., None],
    attrs_type: type | None = None,
    uses_psum_flags: bool = False,
    meets: str | None = None,
) -> Opcode:
    """`operands`: `role=accesses` for each in order, with a question mark behind one that may be missing, e.g.
    "dst=w data=r bias?=r"."""
    if name in OPCODES:
        raise ValueError(f"opcode {name} is defined twice")
    slots = [Slot(role.rstrip("?"), how, role.endswith("?")) for role, how in (s.split("=") for s in operands.split())]
    opcode = Opcode(name, tuple(slots), check, compute, attrs_type, uses_psum_flags, meets)
    OPCODES[name] = opcode
    return opcode
