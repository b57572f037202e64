"""What can be proved of a kernel beside testing it, at the cheapest shape; and what comes of a refutation.

A proof holds for all values of the floating inputs. Integers steer addresses and loops, so they are numbers in it: it
is made with values of their whole domain, twice, so that each has had another; where no draw moves one that is not
declared fixed, equality is not proved.

A kernel whose outputs are not all written, or depend on memory that nothing wrote, is wrong: what the tests saw there
was chance. One that is not the input kernel's formula may still be right: constants are rounded, and a reference says
more than a kernel's text does. The tests decide, and whoever reads the verdict is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from accelopt_core.evaluation import CheckFailure, Finding, Incorrect, Proof, Property, Step
from accelopt_core.judging.checks import Compiled
from accelopt_core.judging.correctness import Wrong
from accelopt_core.judging.inputs.draws import OF_DOMAINS
from accelopt_core.judging.reference.verification import BadReference, Reference, ReferenceCache, UnusableOutputs
from accelopt_core.ports import EvaluationRequest, Progress
from accelopt_core.task import REFERENCE
from accelopt_core.toolchain import Toolchain


def proved(
    request: EvaluationRequest, toolchain: Toolchain, compiled: Compiled, cache: ReferenceCache, progress: Progress
) -> tuple[Proof, ...]:
    """Raises Wrong where coverage is refuted."""
    reference, original = compiled.reference, request.original
    seed = request.task.seeds[0]

    def compile_original() -> Any:
        assert original is not None
        limit_s = request.limits.compile_timeout_s
        return toolchain.compile(original.source, compiled.specs, limit_s, request.task.around)

    def looked_at(marked: Sequence[np.ndarray]) -> bool:
        """By the task's transform_nki_outputs, which may cut off what a kernel pads its outputs with."""
        expected, _ = cache.expected(reference, seed, REFERENCE, lambda: reference.inputs(seed))
        one, other = ([np.where(each, value, 0).astype(np.float32) for each in marked] for value in (1, 2))
        try:
            pairs = zip(reference.outputs(one, expected), reference.outputs(other, expected))
            return any(a.tobytes() != b.tobytes() for a, b in pairs)
        except UnusableOutputs:
            return True

    def on(distribution: str) -> tuple[Proof, ...]:
        arguments = reference.kernel_arguments(reference.inputs(seed, distribution))
        name = "" if original is None else original.content_hash
        return toolchain.prove(
            compiled.artifact,
            [argument for argument in arguments if isinstance(argument, np.ndarray)],
            cache.drawing(reference),
            request.task.tolerance,
            None if original is None else compile_original,
            lambda compute: cache.behaviour(reference, f"{name}/{distribution}", compute),
            looked_at,
        )

    shape = compiled.preset.describe()
    found = tuple(replace(proof, shape=shape) for proof in _over_domains(on, reference, on(REFERENCE)))
    for proof in found:
        if proof.finding is not Finding.HELD:
            progress(Step.VERIFY, f"{proof.property.value} {proof.finding.value}: {proof.reason}")
        if proof.property is Property.COVERAGE and proof.finding is Finding.REFUTED:
            raise Wrong(Incorrect(CheckFailure(seed, compiled.preset.name, 0, proof.reason, distribution="any")))
    return found


def _over_domains(
    on: Callable[[str], tuple[Proof, ...]], reference: Reference, own: tuple[Proof, ...]
) -> tuple[Proof, ...]:
    """The proofs on the reference's own integers, equality being held on all of their domain as well."""
    equal = next((proof for proof in own if proof.property is Property.EQUIVALENCE), None)
    if equal is None or equal.finding is not Finding.HELD or not reference.draws_integers:
        return own
    for distribution in OF_DOMAINS:
        try:
            other = next(proof for proof in on(distribution) if proof.property is Property.EQUIVALENCE)
        except BadReference as error:
            other = replace(equal, finding=Finding.NOT_PROVABLE, reason=f"the reference fails: {error}")
        if other.finding is not Finding.HELD:
            reason = f"{other.reason}, with other integers than the reference draws (DOMAINS says which there are)"
            equal = replace(other, reason=reason)
            break
    return tuple(equal if proof.property is Property.EQUIVALENCE else proof for proof in own)
