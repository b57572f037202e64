"""Judging one kernel: compile, verify, time, in that order, stopping at the first fault.

`judge` is the procedure, the same on a laptop and on an instance. `NKIKernel` is the interface that
users of NKIBench know.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from accelopt_core.bounds import bounds_for, gaps_for
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
        for preset in task.presets[:-1]:
            seeds = task.seeds + request.extra_seeds
            progress(Step.VERIFY, f"{preset.describe()}: compile, then {len(seeds)} seeds")
            compiled = _compile(request, toolchain, preset, seeds[0])
            step = "run"
            worst = max(worst, _verify(request, toolchain, compiled, seeds, cache, checks))
            step = "compile"
        progress(Step.VERIFY, f"{task.full.describe()}: compile")
        full = _compile(request, toolchain, task.full, task.seeds[0])
        step = "run"
        estimate = toolchain.estimate_us(full.artifact)
        limit = request.verify_full_below_us
        verify_full = limit is None or estimate is None or estimate < limit
        if verify_full:
            seeds = _full_seeds(request)
            progress(Step.VERIFY, f"{task.full.describe()}: {len(seeds)} seeds")
            worst = max(worst, _verify(request, toolchain, full, seeds, cache, checks))
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


def _full_seeds(request: EvaluationRequest) -> tuple[int, ...]:
    """At the full shape: everything for the final winner or a task of one shape, else one of each kind."""
    task = request.task
    if request.final or len(task.presets) == 1:
        return task.seeds + request.extra_seeds
    return task.seeds[:1] + request.extra_seeds[:1]


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
    seeds: tuple[int, ...],
    cache: ReferenceCache,
    checks: list[str],
) -> float:
    """Worst relative L2. Raises _Wrong at the first failing check."""

    def check(seed: int) -> float | Evaluation:
        inputs = compiled.reference.inputs(seed)
        expected = cache.expected(compiled.reference, seed, inputs)
        tensors = [a for a in compiled.reference.kernel_arguments(inputs) if isinstance(a, np.ndarray)]
        raw = toolchain.run(compiled.artifact, tensors, request.limits.run_timeout_s)
        outputs = compiled.reference.outputs(raw, expected)
        if len(outputs) != len(expected):
            return CompileFailed(f"the kernel returns {len(outputs)} tensors, the reference {len(expected)}")
        worst = 0.0
        for number, (got, want) in enumerate(zip(outputs, expected)):
            distance, failure = check_output(
                got, want, seed=seed, preset=compiled.preset.name, output=number, tolerance=request.task.tolerance
            )
            if failure is not None:
                return Incorrect(failure)
            worst = max(worst, distance)
        return worst

    worst = 0.0
    for verdict in side_by_side(check, seeds, compiled.tensor_bytes, toolchain.parallel_runs):
        if not isinstance(verdict, float):
            raise _Wrong(verdict)
        worst = max(worst, verdict)
    checks.append(
        f"{compiled.preset.name} ({compiled.preset.describe()}): {len(seeds)} seeds, "
        f"worst relative L2 {worst:.2g} <= {request.task.tolerance:.2g}"
    )
    return worst


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
