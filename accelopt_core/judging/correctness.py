"""Whether a compiled kernel computes what the reference does: on which inputs, in which tier, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accelopt_core.evaluation import CheckFailure, CompileFailed, Evaluation, Implausible, Incorrect
from accelopt_core.judging.plausibility import one_value, same_bits
from accelopt_core.judging.side_by_side import side_by_side
from accelopt_core.judging.verification import BadReference, Reference, ReferenceCache, UnusableOutputs, check_output
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import REFERENCE, ShapePreset
from accelopt_core.toolchain import ArgumentSpec, Toolchain


@dataclass(frozen=True)
class Compiled:
    """A candidate at one shape."""

    preset: ShapePreset
    reference: Reference
    specs: tuple[ArgumentSpec, ...]
    artifact: Any
    tensor_bytes: int
    """Of the arguments together."""


class Wrong(Exception):
    """Carries the failure out of the nested checks."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__()
        self.evaluation = evaluation


@dataclass(frozen=True)
class Draw:
    """One set of inputs."""

    seed: int
    distribution: str


def count(draws: Sequence[Draw]) -> str:
    """For people."""
    return f"{len({d.seed for d in draws})} seeds, {len({d.distribution for d in draws})} input distributions"


def draws_at_a_gate(request: EvaluationRequest) -> tuple[Draw, ...]:
    """Every seed with the reference's own inputs, every other distribution with one; all with all for the winner.

    Published seeds for the distributions, whose references are then computed once in a session.
    """
    seeds = request.task.seeds + request.extra_seeds
    return _own(seeds) + _others(request, seeds if request.final else request.task.seeds[:1])


def draws_at_full_shape(request: EvaluationRequest) -> tuple[Draw, ...]:
    """Everything for the final winner or a task of one shape, else one published and one secret seed."""
    task = request.task
    if request.final or len(task.presets) == 1:
        return _own(task.seeds + request.extra_seeds) + _others(request, (task.seeds + request.extra_seeds)[-1:])
    return _own(task.seeds[:1] + request.extra_seeds[:1])


def _own(seeds: tuple[int, ...]) -> tuple[Draw, ...]:
    return tuple(Draw(seed, REFERENCE) for seed in seeds)


def _others(request: EvaluationRequest, seeds: tuple[int, ...]) -> tuple[Draw, ...]:
    return tuple(Draw(seed, name) for name in request.task.distributions[1:] for seed in seeds)


def same_bits_twice(request: EvaluationRequest, toolchain: Toolchain, compiled: Compiled) -> None:
    """Raises Wrong when two executions of one artifact on the same inputs differ in a bit."""
    inputs = compiled.reference.inputs(request.task.seeds[0])
    tensors = [a for a in compiled.reference.kernel_arguments(inputs) if isinstance(a, np.ndarray)]
    first, second = (toolchain.run(compiled.artifact, tensors, request.limits.run_timeout_s) for _ in range(2))
    for number, (one, other) in enumerate(zip(first, second)):
        if one.tobytes() != other.tobytes():
            raise Wrong(
                Incorrect(
                    CheckFailure(
                        seed=request.task.seeds[0],
                        preset=compiled.preset.name,
                        output=number,
                        reason="two executions on the same inputs give different bits",
                    )
                )
            )


def verify(
    request: EvaluationRequest,
    toolchain: Toolchain,
    compiled: Compiled,
    draws: Sequence[Draw],
    cache: ReferenceCache,
    checks: list[str],
) -> float:
    """Worst relative L2 on the reference's own inputs. Raises Wrong at the first failing check."""

    def check(number: int) -> float | None | Evaluation:
        draw = draws[number]
        inputs = compiled.reference.inputs(draw.seed, draw.distribution)
        expected = cache.expected(compiled.reference, draw.seed, inputs, draw.distribution)
        if draw.distribution == REFERENCE and not all(np.isfinite(e).any() for e in expected if e.size):
            raise BadReference(
                f"forward() of {request.task.name} gives no finite value at {compiled.preset.describe()} with seed "
                f"{draw.seed}: nothing can be compared with that (docs/tasks.md)"
            )
        tensors = [a for a in compiled.reference.kernel_arguments(inputs) if isinstance(a, np.ndarray)]
        raw = toolchain.run(compiled.artifact, tensors, request.limits.run_timeout_s)
        try:
            outputs = compiled.reference.outputs(raw, expected)
        except UnusableOutputs as error:
            reason = f"transform_nki_outputs cannot take the outputs: {error}"
            return Incorrect(CheckFailure(draw.seed, compiled.preset.name, 0, reason, distribution=draw.distribution))
        if len(outputs) != len(expected):
            return CompileFailed(f"the kernel returns {len(outputs)} tensors, the reference {len(expected)}")
        worst, failure = compare(draw, outputs, expected, request.task.tolerance)
        if failure is not None and draw.distribution != REFERENCE:  # only then is it asked what float32 can do there
            least = cache.float32_error(compiled.reference, draw.seed, inputs, draw.distribution, expected)
            if not FLOAT32_SLACK * least <= WORTHLESS:
                return None
            if FLOAT32_SLACK * least > request.task.tolerance:
                worst, failure = compare(draw, outputs, expected, FLOAT32_SLACK * least)
        if failure is not None:
            blank = one_value(outputs[failure.output], expected[failure.output])
            return made_up(draw, raw, expected, blank) or Incorrect(failure)
        return worst

    def compare(
        draw: Draw, outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: float
    ) -> tuple[float, CheckFailure | None]:
        """Worst relative L2, up to the first output that fails."""
        worst = 0.0
        for number, (got, want) in enumerate(zip(outputs, expected)):
            distance, failure = check_output(
                got,
                want,
                seed=draw.seed,
                preset=compiled.preset.name,
                output=number,
                tolerance=tolerance,
                distribution=draw.distribution,
            )
            worst = max(worst, distance)
            if failure is not None:
                return worst, failure
        return worst, None

    def made_up(
        draw: Draw, raw: Sequence[np.ndarray], expected: tuple[np.ndarray, ...], blank: str | None
    ) -> Implausible | None:
        """One value everywhere, or for other inputs the same bits where the reference says something else.

        Under a changed distribution that may be a numeric fault, such as an overflow, and is told as one.
        """
        if draw.distribution != REFERENCE:
            return None
        if blank is not None:
            return Implausible(blank)
        other = compiled.reference.inputs(draw.seed + 1)
        tensors = [a for a in compiled.reference.kernel_arguments(other) if isinstance(a, np.ndarray)]
        if not same_bits(raw, toolchain.run(compiled.artifact, tensors, request.limits.run_timeout_s)):
            return None
        if same_bits(expected, compiled.reference.expected(other)):
            return None
        return Implausible(
            f"the outputs for seeds {draw.seed} and {draw.seed + 1} are the same bits at {compiled.preset.name}, "
            f"where the reference differs: they do not depend on the inputs"
        )

    worst = 0.0
    undefined: list[str] = []
    verdicts = side_by_side(check, range(len(draws)), compiled.tensor_bytes, toolchain.parallel_runs)
    for draw, verdict in zip(draws, verdicts):
        if verdict is None:
            undefined.append(draw.distribution)
        elif not isinstance(verdict, float):
            raise Wrong(verdict)
        elif draw.distribution == REFERENCE:
            worst = max(worst, verdict)
    checks.append(
        f"{compiled.preset.name} ({compiled.preset.describe()}): {count(draws)}, "
        f"worst relative L2 {worst:.2g} <= {request.task.tolerance:.2g}"
        + (f"; beyond float32, left out: {', '.join(dict.fromkeys(undefined))}" if undefined else "")
    )
    return worst


FLOAT32_SLACK = 8
"""On changed inputs, the tolerance is at least this many times what NumPy's float32 reaches there itself."""

WORTHLESS = 0.05
"""A tolerance above this would tell nothing: such inputs are left out, and that is said."""
