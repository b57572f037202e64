"""What can be proved of a kernel beside testing it, at the cheapest shape; and what comes of a refutation.

A kernel whose outputs are not all written, or depend on memory that nothing wrote, is wrong: what the tests saw there
was chance. One that is not the input kernel's formula may still be right: constants are rounded, and a reference says
more than a kernel's text does. The tests decide, and whoever reads the verdict is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from accelopt_core.evaluation import CheckFailure, Finding, Incorrect, Proof, Property, Step
from accelopt_core.judging.correctness import Compiled, Wrong
from accelopt_core.judging.verification import ReferenceCache, UnusableOutputs
from accelopt_core.ports import EvaluationRequest, Progress
from accelopt_core.task import REFERENCE
from accelopt_core.toolchain import Toolchain


def proved(
    request: EvaluationRequest, toolchain: Toolchain, compiled: Compiled, cache: ReferenceCache, progress: Progress
) -> tuple[Proof, ...]:
    """Raises Wrong where coverage is refuted."""
    reference, original = compiled.reference, request.original
    seed = request.task.seeds[0]
    arguments = reference.kernel_arguments(reference.inputs(seed))

    def compile_original() -> Any:
        assert original is not None
        limit_s = request.limits.compile_timeout_s
        return toolchain.compile(original.source, compiled.specs, limit_s, request.task.around)

    def looked_at(marked: Sequence[np.ndarray]) -> bool:
        """By the task's transform_nki_outputs, which may cut off what a kernel pads its outputs with."""
        expected = cache.kept(reference, f"{seed}/{REFERENCE}", lambda: reference.expected(reference.inputs(seed)))
        one, other = ([np.where(each, value, 0).astype(np.float32) for each in marked] for value in (1, 2))
        try:
            pairs = zip(reference.outputs(one, expected), reference.outputs(other, expected))
            return any(a.tobytes() != b.tobytes() for a, b in pairs)
        except UnusableOutputs:
            return True

    found = toolchain.prove(
        compiled.artifact,
        [argument for argument in arguments if isinstance(argument, np.ndarray)],
        cache.drawing(reference),
        request.task.tolerance,
        None if original is None else compile_original,
        lambda compute: cache.behaviour(reference, original.content_hash if original is not None else "", compute),
        looked_at,
    )
    for proof in found:
        if proof.finding is not Finding.HELD:
            progress(Step.VERIFY, f"{proof.property.value} {proof.finding.value}: {proof.reason}")
        if proof.property is Property.COVERAGE and proof.finding is Finding.REFUTED:
            raise Wrong(Incorrect(CheckFailure(seed, compiled.preset.name, 0, proof.reason, distribution="any")))
    return found
