"""Judging one kernel: compile, verify, time, in that order, stopping at the first fault.

`judge` is the procedure, the same on a laptop and on an instance. `NKIKernel` is the interface that
users of NKIBench know.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accelopt_core.bounds import bounds_for, gaps_for
from accelopt_core.distributions import REFERENCE
from accelopt_core.evaluation import (
    CheckFailure,
    CompileFailed,
    Crashed,
    Evaluation,
    Implausible,
    Incorrect,
    Measured,
    Profile,
    TimedOut,
)
from accelopt_core.ports import EvaluationRequest, Progress, Step
from accelopt_core.side_by_side import side_by_side
from accelopt_core.static_checks import dialect, forbidden
from accelopt_core.task import PrecisionPolicy, ShapePreset
from accelopt_core.toolchain import CompileError, Facts, RunError, StepTimeout, Timing, Toolchain
from accelopt_core.verification import Reference, ReferenceCache, argument_specs, check_output


@dataclass(frozen=True)
class _Compiled:
    preset: ShapePreset
    reference: Reference
    artifact: Any
    tensor_bytes: int
    """Of the arguments together."""


class _Wrong(Exception):
    """Carries the failure out of the nested checks."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__()
        self.evaluation = evaluation


def judge(request: EvaluationRequest, toolchain: Toolchain, progress: Progress, cache: ReferenceCache) -> Evaluation:
    """Every fault of the candidate becomes an Evaluation.

    Raises BadReference for a fault of the task and ToolchainMissing for one of the machine.
    """
    step = "compile"
    try:
        checks: list[str] = []
        worst = 0.0
        task = request.task
        _refuse_hostile_text(request, progress)
        for preset in task.presets[:-1]:
            draws = _draws_at_a_gate(request)
            progress(Step.VERIFY, f"{preset.describe()}: compile, then {_count(draws)}")
            compiled = _compile(request, toolchain, preset, task.seeds[0])
            step = "run"
            _same_bits_twice(request, toolchain, compiled)
            worst = max(worst, _verify(request, toolchain, compiled, draws, cache, checks))
            step = "compile"
        progress(Step.VERIFY, f"{task.full.describe()}: compile")
        full = _compile(request, toolchain, task.full, task.seeds[0])
        step = "run"
        estimate = toolchain.estimate_us(full.artifact)
        limit = request.verify_full_below_us
        verify_full = limit is None or estimate is None or estimate < limit
        if verify_full:
            if request.final or len(task.presets) == 1:
                _same_bits_twice(request, toolchain, full)
            draws = _draws_at_full_shape(request)
            progress(Step.VERIFY, f"{task.full.describe()}: {_count(draws)}")
            worst = max(worst, _verify(request, toolchain, full, draws, cache, checks))
        else:
            progress(Step.VERIFY, f"{task.full.describe()}: skipped, {estimate:,.1f} µs cannot become the best")
        step = "benchmark"
        progress(Step.BENCHMARK, f"{task.full.describe()} on {toolchain.name}")
        timing = _time(request, toolchain, full, progress)
        return _measured(request, toolchain, timing, toolchain.facts(full.artifact), tuple(checks), verify_full, worst)
    except CompileError as error:
        return CompileFailed(error.message, error.line)
    except StepTimeout as error:
        return TimedOut(error.step, error.limit_s)
    except RunError as error:
        return Crashed(step, str(error))
    except _Wrong as wrong:
        return wrong.evaluation


def _refuse_hostile_text(request: EvaluationRequest, progress: Progress) -> None:
    """A proposed kernel that reaches out is not run; the user's own is run as carefully, and the user is told."""
    found = forbidden(request.candidate.source)
    if found and request.candidate.parent_id is not None:
        raise CompileError(found[0].message + f" ({found[0].rule})", found[0].line)
    for finding in (*found, *dialect(request.candidate.source))[:3]:
        progress(Step.VERIFY, f"note: {finding.describe()}")


@dataclass(frozen=True)
class _Draw:
    """One set of inputs."""

    seed: int
    distribution: str


def _count(draws: Sequence[_Draw]) -> str:
    return f"{len({d.seed for d in draws})} seeds, {len({d.distribution for d in draws})} input distributions"


def _draws_at_a_gate(request: EvaluationRequest) -> tuple[_Draw, ...]:
    """Every seed with the reference's own inputs, every other distribution with one; all with all for the winner.

    Published seeds for the distributions, whose references are then computed once in a session.
    """
    seeds = request.task.seeds + request.extra_seeds
    return _own(seeds) + _others(request, seeds if request.final else request.task.seeds[:1])


def _draws_at_full_shape(request: EvaluationRequest) -> tuple[_Draw, ...]:
    """Everything for the final winner or a task of one shape, else one published and one secret seed."""
    task = request.task
    if request.final or len(task.presets) == 1:
        return _own(task.seeds + request.extra_seeds) + _others(request, (task.seeds + request.extra_seeds)[-1:])
    return _own(task.seeds[:1] + request.extra_seeds[:1])


def _own(seeds: tuple[int, ...]) -> tuple[_Draw, ...]:
    return tuple(_Draw(seed, REFERENCE) for seed in seeds)


def _others(request: EvaluationRequest, seeds: tuple[int, ...]) -> tuple[_Draw, ...]:
    return tuple(_Draw(seed, name) for name in request.task.distributions[1:] for seed in seeds)


def _same_bits_twice(request: EvaluationRequest, toolchain: Toolchain, compiled: _Compiled) -> None:
    """Raises _Wrong when two executions of one artifact on the same inputs differ in a bit."""
    inputs = compiled.reference.inputs(request.task.seeds[0])
    tensors = [a for a in compiled.reference.kernel_arguments(inputs) if isinstance(a, np.ndarray)]
    first, second = (toolchain.run(compiled.artifact, tensors, request.limits.run_timeout_s) for _ in range(2))
    for number, (one, other) in enumerate(zip(first, second)):
        if one.tobytes() != other.tobytes():
            raise _Wrong(
                Incorrect(
                    CheckFailure(
                        seed=request.task.seeds[0],
                        preset=compiled.preset.name,
                        output=number,
                        reason="two executions on the same inputs give different bits",
                    )
                )
            )


def _compile(request: EvaluationRequest, toolchain: Toolchain, preset: ShapePreset, seed: int) -> _Compiled:
    reference = Reference(request.task, preset)
    arguments = reference.kernel_arguments(reference.inputs(seed))
    specs = argument_specs(arguments)
    tensor_bytes = sum(a.nbytes for a in arguments if isinstance(a, np.ndarray))
    artifact = toolchain.compile(request.candidate.source, specs, request.limits.compile_timeout_s)
    return _Compiled(preset, reference, artifact, tensor_bytes)


def _verify(
    request: EvaluationRequest,
    toolchain: Toolchain,
    compiled: _Compiled,
    draws: Sequence[_Draw],
    cache: ReferenceCache,
    checks: list[str],
) -> float:
    """Worst relative L2 on the reference's own inputs. Raises _Wrong at the first failing check."""

    def check(number: int) -> float | None | Evaluation:
        draw = draws[number]
        inputs = compiled.reference.inputs(draw.seed, draw.distribution)
        expected = cache.expected(compiled.reference, draw.seed, inputs, draw.distribution)
        tolerance = request.task.tolerance
        if draw.distribution != REFERENCE:
            least = cache.float32_error(compiled.reference, draw.seed, inputs, draw.distribution, expected)
            if FLOAT32_SLACK * least > WORTHLESS:
                return None
            tolerance = max(tolerance, FLOAT32_SLACK * least)
        tensors = [a for a in compiled.reference.kernel_arguments(inputs) if isinstance(a, np.ndarray)]
        raw = toolchain.run(compiled.artifact, tensors, request.limits.run_timeout_s)
        outputs = compiled.reference.outputs(raw, expected)
        if len(outputs) != len(expected):
            return CompileFailed(f"the kernel returns {len(outputs)} tensors, the reference {len(expected)}")
        worst = 0.0
        for output, (got, want) in enumerate(zip(outputs, expected)):
            distance, failure = check_output(
                got,
                want,
                seed=draw.seed,
                preset=compiled.preset.name,
                output=output,
                tolerance=tolerance,
                distribution=draw.distribution,
            )
            if failure is not None:
                return _blank(got, want) or Incorrect(failure)
            worst = max(worst, distance)
        return worst

    worst = 0.0
    undefined: list[str] = []
    verdicts = side_by_side(check, range(len(draws)), compiled.tensor_bytes, toolchain.parallel_runs)
    for draw, verdict in zip(draws, verdicts):
        if verdict is None:
            undefined.append(draw.distribution)
        elif not isinstance(verdict, float):
            raise _Wrong(verdict)
        elif draw.distribution == REFERENCE:
            worst = max(worst, verdict)
    checks.append(
        f"{compiled.preset.name} ({compiled.preset.describe()}): {_count(draws)}, "
        f"worst relative L2 {worst:.2g} <= {request.task.tolerance:.2g}"
        + (f"; beyond float32, left out: {', '.join(dict.fromkeys(undefined))}" if undefined else "")
    )
    return worst


FLOAT32_SLACK = 8
"""On changed inputs, the tolerance is at least this many times what NumPy's float32 reaches there itself."""

WORTHLESS = 0.05
"""A tolerance above this would tell nothing: such inputs are left out, and that is said."""


def _blank(got: np.ndarray, expected: np.ndarray) -> Implausible | None:
    """For an output of one value only where the reference has several."""
    if got.size < 2 or got.shape != expected.shape or np.ptp(expected) == 0:
        return None
    value = got.reshape(-1)[0]
    if not np.isfinite(value) or not (got == value).all():
        return None
    return Implausible(f"every element of the output is {float(value):g}, whatever the inputs are")


def _time(request: EvaluationRequest, toolchain: Toolchain, compiled: _Compiled, progress: Progress) -> Timing:
    """Measure; measure again while the spread is too wide, at most `remeasure` times; keep the calmest."""
    limits = request.limits
    inputs = compiled.reference.inputs(request.task.seeds[0]) if not toolchain.simulated else []
    tensors = [a for a in compiled.reference.kernel_arguments(inputs) if isinstance(a, np.ndarray)] if inputs else []
    best: Timing | None = None
    for attempt in range(1 + limits.remeasure):
        timing = toolchain.time(compiled.artifact, tensors, limits.warmup, limits.iterations, limits.run_timeout_s)
        if best is None or _spread(timing) < _spread(best):
            best = timing
        if _spread(best) <= limits.max_spread:
            break
        if attempt < limits.remeasure:
            progress(
                Step.BENCHMARK, f"spread {100 * _spread(timing):.1f} % is above {100 * limits.max_spread:g} %: again"
            )
    assert best is not None
    return best


def _spread(timing: Timing) -> float:
    low = min(timing.samples_us)
    return (max(timing.samples_us) - low) / low if low > 0 else 0.0


def _measured(
    request: EvaluationRequest,
    toolchain: Toolchain,
    timing: Timing,
    facts: Facts,
    checks: tuple[str, ...],
    verified_full: bool,
    worst: float,
) -> Evaluation:
    latency = statistics.median(timing.samples_us)
    if not latency > 0:
        return Implausible(f"a latency of {latency} µs: nothing was executed", latency)
    if facts.low_precision and request.task.precision is PrecisionPolicy.FLOAT32_FAITHFUL:
        reason = f"the task is float32-faithful, but instructions compute in {', '.join(facts.low_precision)}"
        return Incorrect(
            CheckFailure(seed=request.task.seeds[0], preset=request.task.full.name, output=0, reason=reason)
        )
    floor = facts.resource_bound_us
    if floor is not None and latency < 0.999 * floor:
        return Implausible(
            f"{latency:,.1f} µs is below the {floor:,.1f} µs that its own instructions need at least "
            f"on {toolchain.machine}",
            latency,
        )
    bounds = bounds_for(request.task, facts, toolchain.machine)
    profile = Profile(dict(facts.fields), bounds, facts.hot_lines, gaps_for(facts, bounds, latency, toolchain.machine))
    return Measured(
        latency,
        min(timing.samples_us),
        max(timing.samples_us),
        len(timing.samples_us),
        toolchain.simulated,
        toolchain.name,
        profile,
        checks,
        verified_full,
        worst,
    )


@dataclass
class KernelResult:
    """NKIBench's result: three flags and a dictionary."""

    compiled: bool
    runnable: bool
    correct: bool
    metadata: dict[str, Any]
    evaluation: Evaluation


class NKIKernel:
    """A kernel file and its NumPy reference, profiled as NKIBench's users know it.

    `evaluate` runs an EvaluationRequest somewhere; `infra.targets.kernel_wrapper` builds one of these
    with the simulator or a host behind it.
    """

    def __init__(self, program_path: str, base_numpy_path: str, *, evaluate: Callable[[str, str], Evaluation]) -> None:
        self.program_path = program_path
        self.base_numpy_path = base_numpy_path
        self._evaluate = evaluate

    def profile(self, save_fields: list[str] | None = None) -> KernelResult:
        """Latencies in the metadata are in milliseconds, as NKIBench has them; `save_fields` in profiler units."""
        result = self._evaluate(self.program_path, self.base_numpy_path)
        compiled = not isinstance(result, CompileFailed)
        if not isinstance(result, Measured):
            runnable = isinstance(result, (Incorrect, Implausible))
            return KernelResult(compiled, runnable, False, {"error": result}, result)
        fields = result.profile.fields
        wanted = list(save_fields or [])
        missing = [name for name in wanted if name not in fields]
        if missing:
            raise KeyError(f"the profiler has no field {', '.join(missing)}; it has {', '.join(sorted(fields))}")
        metadata: dict[str, Any] = {
            "latency": result.latency_us / 1e3,
            "min_ms": result.min_us / 1e3,
            "max_ms": result.max_us / 1e3,
            "rel_diffs": result.spread,
            "simulated": result.simulated,
            "machine": result.machine,
        }
        metadata.update({name: fields[name] for name in wanted})
        return KernelResult(True, True, True, metadata, result)
