"""Is every output element written, and does none depend on memory that nothing wrote, or on which core is first?

What only one core does is in order: the compiler makes an instruction wait for all before it that touch the same bytes
(`nki_sim.regions`). Two cores are ordered by barriers alone: `nki_sim.races` finds what one writes and the other reads
between the same two, and here the outputs must be the same whichever core comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from nki_sim.proofs.algebra import Algebra
from nki_sim.proofs.execution import ZEROS, Execution, FieldRun
from nki_sim.proofs.proof import Finding, Proof

Matters = Callable[[Sequence[np.ndarray]], bool]
"""Whether anybody looks at these elements: bool, by output and shaped like it."""


def all_matter(marked: Sequence[np.ndarray]) -> bool:
    return any(each.any() for each in marked)


def coverage(run: FieldRun, found: Execution, seed: int, matters: Matters = all_matter) -> Proof:
    """`found` is what `run` came to with the drawing `seed`. Runs it again only where something is suspected."""
    written = "every output element is written"
    if all_matter(found.missing):
        number, missing = next((number, each) for number, each in enumerate(found.missing) if each.any())
        where = f"output {number} is not written at {place(missing)}, one of {int(missing.sum()):,} such elements"
        if matters(found.missing):
            return _refuted(where)
        written = "every output element that the task looks at is written"
    if run.program.peers:
        first = _changed(replace(run, last_core_first=True), found, seed, matters)
        if first is not None:
            return _refuted(f"{first} on which of the two cores is first")
    again = f" ({found.rewritten:,} are stored again later)" if found.rewritten else ""
    if found.unwritten is None:
        return Proof(Finding.HELD, f"{written}{again}, nothing unwritten is read")
    line, buffer = found.unwritten
    for memory in (run.memory + 1, ZEROS):
        first = _changed(replace(run, memory=memory), found, seed, matters)
        if first is not None:
            return _refuted(f"{first} on memory that nothing wrote: line {line} reads {buffer}")
    return Proof(
        Finding.HELD,
        f"{written}{again}; line {line} reads memory that nothing wrote, and no output depends on it",
    )


def _refuted(reason: str) -> Proof:
    return Proof(Finding.REFUTED, reason)


def _changed(run: FieldRun, before: Execution, seed: int, matters: Matters) -> str | None:
    """The first output element that is another in this run, in words, where one that matters is."""
    after = run.execute(Algebra(seed))
    found = differences([value.p for value in before.outputs], [value.p for value in after.outputs])
    if not (all_matter(found) and matters(found)):
        return None
    for number, differ in enumerate(found):
        if differ.any():
            return f"output {number} depends at {place(differ)}"
    return None


def differences(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> list[np.ndarray]:
    """bool, by output: where the elements are not the same. The shapes are."""
    return [mine != theirs for mine, theirs in zip(one, other)]


def place(where: np.ndarray) -> str:
    """The first place that is true, e.g. `[0, 17]`."""
    return str([int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape)])
