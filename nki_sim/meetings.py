"""Where the cores of a logical core meet: barriers, and transfers from one to the other."""

from __future__ import annotations

import numpy as np

from nki_sim.opcodes import OPCODES
from nki_sim.program import Program


def meeting_rows(program: Program) -> np.ndarray:
    """int64 [meetings]: the rows at which this core meets another, in their order."""
    meets = np.array([kind_of_meeting(template.opcode) != "" for template in program.templates], np.bool_)
    return np.flatnonzero(meets[program.template_ids]) if len(meets) else np.zeros(0, np.int64)


def kind_of_meeting(opcode: str) -> str:
    """`barrier`, `transfer`, or nothing for an instruction of one core alone."""
    known = OPCODES.get(opcode)  # the compiler's own transfers are no opcodes
    return (known.meets or "") if known is not None else ""
