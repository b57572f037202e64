"""How far types narrower than float32 may take an output from what it would be, on inputs of these sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nki_sim.program import Program
from nki_sim.proofs.execution import FieldRun, Input
from nki_sim.proofs.proof import Finding, NotProvable, Proof
from nki_sim.proofs.rounding import UNIT_ROUNDOFF, Rounding, bounds

_SHOWN = 3
"""Roundings that are named."""


def narrows(program: Program) -> bool:
    """Could an instruction of some core round to fewer bits than float32 has?"""
    cores = (program, *program.peers)
    return any(
        operand.dtype in UNIT_ROUNDOFF or not (operand.dtype.is_float or operand.access == "r")
        for each in cores
        for template in each.templates
        for operand in template.operands
    )


def error_bound(program: Program, inputs: Sequence[np.ndarray], tolerance: float) -> Proof:
    """Held where the bound is within `tolerance`, relative to an output's size (Euclidean norms), beside one rounding
    to the type that the output is stored in. A larger bound refutes nothing: errors may cancel, and the proof says what
    rounds where.
    """
    if not narrows(program):
        return Proof(Finding.HELD, "nothing is rounded to fewer bits than float32 has")
    rounding = Rounding()
    try:
        with np.errstate(all="ignore"):
            found = FieldRun(program, [Input(array) for array in inputs]).execute(rounding)
    except NotProvable as reason:
        return Proof(Finding.NOT_PROVABLE, str(reason))
    if not rounding.narrow:
        return Proof(Finding.HELD, "nothing is rounded to fewer bits than float32 has")
    worst, output, own = -np.inf, 0, 0.0
    for number, (value, ref) in enumerate(zip(found.outputs, program.outputs)):
        size, off = (float(np.sqrt(np.sum(np.square(lane)))) for lane in (value.p, bounds(value)))
        relative = off / size if size > 0 else 0.0 if off == 0 else np.inf
        stored = UNIT_ROUNDOFF.get(ref.dtype, 0.0)
        if not relative - stored <= worst - own:  # NaN too
            worst, output, own = relative, number, stored
    names = [f"{dtype} on {engine} in line {line}" for dtype, engine, line in rounding.narrow]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    said = f"output {output} may be off by {worst:.2g} of its size, by {', '.join(names[:_SHOWN])}{more}"
    return Proof(Finding.HELD if worst <= tolerance + own else Finding.NOT_PROVABLE, said)
