"""Is every output element written, and does none depend on memory that nothing wrote, or on which core is first?

What only one core does is in order: the compiler makes an instruction wait for all before it that touch the same bytes
(`nki_sim.regions`). Two cores are ordered by barriers alone: `nki_sim.races` finds what one writes and the other reads
between the same two, and here the outputs must be the same whichever core comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nki_sim.proofs.algebra import Algebra, Value
from nki_sim.proofs.execution import Execution, FieldRun
from nki_sim.proofs.proof import Finding, Proof


def coverage(run: FieldRun, found: Execution, seed: int, changed: frozenset[str] = frozenset()) -> Proof:
    """`found` is what `run` came to with the drawing `seed`. Runs it again only where something is suspected."""
    for number, missing in enumerate(found.missing):
        if missing.any():
            return Proof(
                Finding.REFUTED,
                f"output {number} is not written at {place(missing)}, one of {int(missing.sum()):,} such elements",
            )
    if run.program.peers:
        other = replace(run, last_core_first=True).execute(Algebra(seed, changed))
        for number, differ in enumerate(differences(found.outputs, other.outputs)):
            if differ.any():
                return Proof(
                    Finding.REFUTED, f"output {number} depends at {place(differ)} on which of the two cores is first"
                )
    if found.unwritten is None:
        return Proof(Finding.HELD, f"every output element is written{_again(found)}, nothing unwritten is read")
    line, buffer = found.unwritten
    other = replace(run, memory=run.memory + 1).execute(Algebra(seed, changed))
    for number, differ in enumerate(differences(found.outputs, other.outputs)):
        if differ.any():
            return Proof(
                Finding.REFUTED,
                f"output {number} depends at {place(differ)} on memory that nothing wrote: line {line} reads {buffer}",
            )
    return Proof(
        Finding.HELD,
        f"every output element is written{_again(found)}; line {line} reads memory that nothing wrote, and no output "
        "depends on it",
    )


def _again(found: Execution) -> str:
    return f" ({found.rewritten:,} are stored again later)" if found.rewritten else ""


def differences(one: Sequence[Value], other: Sequence[Value]) -> list[np.ndarray]:
    """bool, by output: where the elements are not the same. The shapes are."""
    return [mine.p != theirs.p for mine, theirs in zip(one, other)]


def place(where: np.ndarray) -> str:
    """The first place that is true, e.g. `[0, 17]`."""
    return str([int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape)])
