"""Is every output element written, and does none depend on memory that nothing wrote, or on which core is first?

What only one core does is in order: the compiler makes an instruction wait for all before it that touch the same bytes
(`nki_sim.regions`). Two cores are ordered by barriers alone: `nki_sim.races` finds what one writes and the other reads
between the same two, and here the outputs must be the same whichever core comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nki_sim.proofs.algebra import Algebra
from nki_sim.proofs.execution import ZEROS, Execution, FieldRun
from nki_sim.proofs.proof import Finding, Proof


def coverage(run: FieldRun, found: Execution, seed: int) -> Proof:
    """`found` is what `run` came to with the drawing `seed`. Runs it again only where something is suspected."""
    for number, missing in enumerate(found.missing):
        if missing.any():
            count = int(missing.sum())
            return _refuted(f"output {number} is not written at {place(missing)}, one of {count:,} such elements")
    if run.program.peers:
        first = _changed(replace(run, last_core_first=True), found, seed)
        if first is not None:
            return _refuted(f"{first} on which of the two cores is first")
    again = f" ({found.rewritten:,} are stored again later)" if found.rewritten else ""
    if found.unwritten is None:
        return Proof(Finding.HELD, f"every output element is written{again}, nothing unwritten is read")
    line, buffer = found.unwritten
    for memory in (run.memory + 1, ZEROS):
        first = _changed(replace(run, memory=memory), found, seed)
        if first is not None:
            return _refuted(f"{first} on memory that nothing wrote: line {line} reads {buffer}")
    return Proof(
        Finding.HELD,
        f"every output element is written{again}; line {line} reads memory that nothing wrote, and no output depends "
        "on it",
    )


def _refuted(reason: str) -> Proof:
    return Proof(Finding.REFUTED, reason)


def _changed(run: FieldRun, before: Execution, seed: int) -> str | None:
    """The first output element that is another in this run, in words."""
    after = run.execute(Algebra(seed))
    pairs = [value.p for value in before.outputs], [value.p for value in after.outputs]
    for number, differ in enumerate(differences(*pairs)):
        if differ.any():
            return f"output {number} depends at {place(differ)}"
    return None


def differences(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> list[np.ndarray]:
    """bool, by output: where the elements are not the same. The shapes are."""
    return [mine != theirs for mine, theirs in zip(one, other)]


def place(where: np.ndarray) -> str:
    """The first place that is true, e.g. `[0, 17]`."""
    return str([int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape)])
