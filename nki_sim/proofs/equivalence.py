"""Do two programs compute the same, as far as exact arithmetic can tell?

Both run on the same drawing of a field (`algebra`). Equal elements mean equal formulas, but for chance: a wrong output
element comes out right once in 2^31 drawings, times the degree of its formula. Where they differ, either a term is
different, or something was moved across a function of which the model knows too little. The second is suspected of an
opaque function that the two programs asked for different arguments, if drawing it anew changes the element.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nki_sim.program.program import Program
from nki_sim.proofs.algebra import BOUNDS, ORDER, Algebra, Arguments
from nki_sim.proofs.execution import ZEROS, Execution, FieldRun, Input
from nki_sim.proofs.proof import Finding, NotProvable, Proof

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
        Finding.HELD, f"{written}{again}; line {line} reads memory that nothing wrote, and no output depends on it"
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


@dataclass(frozen=True)
class Proofs:
    """What is known of one program."""

    coverage: Proof
    equivalence: Proof
    """To the original."""


@dataclass(frozen=True)
class Behaviour:
    """What a program came to on one drawing."""

    outputs: tuple[np.ndarray, ...]
    """uint64, the lane modulo p."""
    arguments: Mapping[str, Arguments]
    """What it asked opaque functions for."""


class Original:
    """The program that others are held against, run once for each drawing."""

    def __init__(
        self,
        program: Callable[[], Program],
        inputs: Sequence[Input],
        seed: int,
        known: Callable[[Callable[[], Behaviour]], Behaviour] | None = None,
    ) -> None:
        """`program` is only called where it must be run. `inputs`: of its tensor arguments, in their order. `seed`
        draws fields, functions and inputs; a kernel that knew it could be made to pass. `known` finds the behaviour on
        that drawing among what earlier runs left, or else computes it.
        """
        self._program = program
        self._known = known
        self._found: dict[tuple[frozenset[str], tuple[int, ...]], Behaviour] = {}
        self.inputs = inputs
        self.seed = seed

    def behaviour(self, changed: frozenset[str] = frozenset(), among: tuple[int, ...] = ()) -> Behaviour:
        """With these functions drawn anew, or values among these constants. Raises NotProvable."""
        found = self._found.get((changed, among))
        if found is None:
            keep = self._known if self._known is not None and not changed and not among else None
            found = self._run(changed, among) if keep is None else keep(lambda: self._run(changed, among))
            self._found[changed, among] = found
        return found

    def _run(self, changed: frozenset[str], among: tuple[int, ...]) -> Behaviour:
        algebra = Algebra(self.seed, changed, among)
        found = FieldRun(self._program(), self.inputs, memory=_ELSEWHERE).execute(algebra)
        return Behaviour(tuple(value.p for value in found.outputs), algebra.arguments)


_ELSEWHERE = 1 << 16
"""What was never written is not the same in the original: nothing can be equal by it."""


def covered(program: Program, inputs: Sequence[Input], seed: int, matters: Matters = all_matter) -> Proof:
    """Coverage alone, of a program that there is no other for."""
    run = FieldRun(program, inputs)
    try:
        return coverage(run, run.execute(Algebra(seed)), seed, matters)
    except NotProvable as reason:
        return Proof(Finding.NOT_PROVABLE, str(reason))


def prove(program: Program, original: Original, matters: Matters = all_matter) -> Proofs:
    """What holds of `program`, which takes the original's arguments. Costs one run, and more where something is off."""
    algebra = Algebra(original.seed)
    run = FieldRun(program, original.inputs)
    try:
        found = run.execute(algebra)
        covered = coverage(run, found, original.seed, matters)
    except NotProvable as reason:
        unknown = Proof(Finding.NOT_PROVABLE, str(reason))
        return Proofs(unknown, unknown)
    if covered.finding is not Finding.HELD:
        return Proofs(covered, Proof(Finding.NOT_PROVABLE, covered.reason))
    try:
        equal = _equal(run, found, algebra, original)
    except NotProvable as reason:
        equal = Proof(Finding.NOT_PROVABLE, str(reason))
    return Proofs(covered, equal)


def _equal(run: FieldRun, found: Execution, algebra: Algebra, original: Original) -> Proof:
    try:
        expected = original.behaviour()
    except NotProvable as reason:
        return Proof(Finding.NOT_PROVABLE, f"of the original: {reason}")
    outputs, arguments = [value.p for value in found.outputs], expected.arguments
    shapes = [each.shape for each in outputs], [each.shape for each in expected.outputs]
    if shapes[0] != shapes[1]:
        return Proof(Finding.NOT_PROVABLE, f"the outputs are {_said(shapes[0])} and the original's {_said(shapes[1])}")
    differ = differences(outputs, expected.outputs)
    if not any(each.any() for each in differ):
        if ORDER in algebra.arguments and _is_steered(run.program):
            line = _line(ORDER, algebra.arguments, {})
            said = (
                f"how often its loops run, or what they touch, may hang on the comparison of {line}: one case was seen"
            )
            return Proof(Finding.NOT_PROVABLE, said)
        where = _bounded(run, original, algebra) if algebra.orders_constants else None
        if where is not None:
            return Proof(Finding.NOT_PROVABLE, where)
        return Proof(Finding.HELD, _held(found, algebra.arguments, arguments))
    number = next(number for number, each in enumerate(differ) if each.any())
    count = sum(int(each.sum()) for each in differ)
    where = f"output {number} at {place(differ[number])}, one of {count:,} elements"
    between = [
        name
        for name in sorted(algebra.arguments.keys() | arguments.keys())
        if _asked_otherwise(algebra.arguments.get(name), arguments.get(name))
        and _matters(name, differ, run, outputs, original)
    ]
    if not between:
        return Proof(Finding.REFUTED, f"not the original's formula: {where}")
    lines = ", ".join(f"{name} ({_line(name, algebra.arguments, arguments)})" for name in between)
    return Proof(Finding.NOT_PROVABLE, f"{where}; what comes to {lines} differs from the original's")


def _is_steered(program: Program) -> bool:
    """Do registers say how often its loops run, or where its operands lie?"""
    return any(
        any(bound.register is not None for loop in each.loops for bound in (loop.lower, loop.upper))
        or any(operand.indirection is not None for template in each.templates for operand in template.operands)
        for each in (program, *program.peers)
    )


def _bounded(run: FieldRun, original: Original, above: Algebra) -> str | None:
    """Where the outputs differ once all values lie below the constants that they are compared with, or between them."""
    among = tuple(sorted(above.sizes)) or (1,)
    for said, changed, sizes in (("below", frozenset((BOUNDS,)), ()), ("between", frozenset[str](), among)):
        algebra = Algebra(original.seed, changed, sizes)
        outputs = [value.p for value in run.execute(algebra).outputs]
        for number, differ in enumerate(differences(outputs, original.behaviour(changed, sizes).outputs)):
            if differ.any():
                line = _line(ORDER, algebra.arguments, {})
                return f"output {number} at {place(differ)} is another for values {said} the constants of {line}"
    return None


def _asked_otherwise(one: Arguments | None, other: Arguments | None) -> bool:
    return one is None or other is None or not np.array_equal(one.seen, other.seen)


def _matters(
    name: str, differ: Sequence[np.ndarray], run: FieldRun, outputs: Sequence[np.ndarray], original: Original
) -> bool:
    """Do the elements that differ depend on what this function is, in one of the two programs?"""
    changed = frozenset((name,))
    again = [value.p for value in run.execute(Algebra(original.seed, changed)).outputs]
    pairs = (outputs, again), (original.behaviour().outputs, original.behaviour(changed).outputs)
    return any((moved & off).any() for one, other in pairs for moved, off in zip(differences(one, other), differ))


def _line(name: str, mine: Mapping[str, Arguments], theirs: Mapping[str, Arguments]) -> str:
    return f"line {mine[name].line}" if name in mine else f"line {theirs[name].line} of the original"


def _held(found: Execution, mine: Mapping[str, Arguments], theirs: Mapping[str, Arguments]) -> str:
    elements = sum(value.p.size for value in found.outputs)
    same = sorted(name for name in mine if not _asked_otherwise(mine[name], theirs.get(name)))
    opaque = f"; {', '.join(same)} of the same arguments" if same else ""
    return f"equal up to reassociation: {elements:,} output elements in a finite field{opaque}"


def _said(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)


def to_arrays(behaviour: Behaviour) -> tuple[np.ndarray, ...]:
    """What was asked of which function, as JSON in bytes; then the outputs; then each set of arguments, in bits."""
    asked = [(name, found.line) for name, found in behaviour.arguments.items()]
    head = json.dumps([len(behaviour.outputs), asked]).encode()
    sets = (np.packbits(found.seen) for found in behaviour.arguments.values())
    return np.frombuffer(head, np.uint8), *behaviour.outputs, *sets


def from_arrays(arrays: Sequence[np.ndarray]) -> Behaviour:
    count, asked = json.loads(arrays[0].tobytes())
    sets = (np.unpackbits(each).view(np.bool_) for each in arrays[1 + count :])
    arguments = {name: Arguments(seen, line) for (name, line), seen in zip(asked, sets)}
    return Behaviour(tuple(arrays[1 : 1 + count]), arguments)
