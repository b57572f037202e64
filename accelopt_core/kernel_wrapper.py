"""Judging one kernel: compile, verify, time, in that order, stopping at the first fault.

`judge` is the procedure, the same on a laptop and on an instance. `NKIKernel` is what users of NKIBench know of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accelopt_core.bounds import bounds_for, gaps_for
from accelopt_core.candidate import Candidate
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
    RivalTiming,
    TimedOut,
    explain,
)
from accelopt_core.plausibility import contradiction, one_value, same_bits
from accelopt_core.ports import EvaluationRequest, Progress, Step
from accelopt_core.side_by_side import side_by_side
from accelopt_core.static_checks import dialect, forbidden
from accelopt_core.task import PrecisionPolicy, ShapePreset
from accelopt_core.timing import time_alone, time_in_turns
from accelopt_core.toolchain import (
    ArgumentSpec,
    CandidateFault,
    CompileError,
    Facts,
    RunError,
    StepTimeout,
    Timing,
    Toolchain,
)
from accelopt_core.verification import (
    BadReference,
    Reference,
    ReferenceCache,
    UnusableOutputs,
    argument_specs,
    check_output,
)


@dataclass(frozen=True)
class _Compiled:
    preset: ShapePreset
    reference: Reference
    specs: tuple[ArgumentSpec, ...]
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
        timing, rival = _time(request, toolchain, full, progress, checks)
        facts = toolchain.facts(full.artifact)
        return _measured(request, toolchain, full, timing, facts, tuple(checks), verify_full, worst, rival)
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
    try:
        request.candidate.source.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CompileError(f"character {error.start} of the file is half a character: not UTF-8") from None
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
    artifact = _artifact(request, toolchain, request.candidate, specs)
    return _Compiled(preset, reference, specs, artifact, tensor_bytes)


def _artifact(
    request: EvaluationRequest, toolchain: Toolchain, candidate: Candidate, specs: tuple[ArgumentSpec, ...]
) -> Any:
    """The user's own kernel may lean on a compiler that reorders, as AWS's tutorials do; a proposed one must not."""
    proposed = candidate.parent_id is not None
    return toolchain.compile(candidate.source, specs, request.limits.compile_timeout_s, in_order=proposed)


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
        if draw.distribution == REFERENCE and not all(np.isfinite(e).any() for e in expected if e.size):
            raise BadReference(
                f"forward() of {request.task.name} gives no finite value at {compiled.preset.describe()} with seed "
                f"{draw.seed}: nothing can be compared with that (docs/tasks.md)"
            )
        tolerance = request.task.tolerance
        if draw.distribution != REFERENCE:
            least = cache.float32_error(compiled.reference, draw.seed, inputs, draw.distribution, expected)
            if FLOAT32_SLACK * least > WORTHLESS:
                return None
            tolerance = max(tolerance, FLOAT32_SLACK * least)
        tensors = [a for a in compiled.reference.kernel_arguments(inputs) if isinstance(a, np.ndarray)]
        raw = toolchain.run(compiled.artifact, tensors, request.limits.run_timeout_s)
        try:
            outputs = compiled.reference.outputs(raw, expected)
        except UnusableOutputs as error:
            reason = f"transform_nki_outputs cannot take the outputs: {error}"
            return Incorrect(CheckFailure(draw.seed, compiled.preset.name, 0, reason, distribution=draw.distribution))
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
                return made_up(draw, raw, expected, one_value(got, want)) or Incorrect(failure)
            worst = max(worst, distance)
        return worst

    def made_up(
        draw: _Draw, raw: Sequence[np.ndarray], expected: tuple[np.ndarray, ...], blank: str | None
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


class _RivalFault(Exception):
    """The rival, not the candidate, does not compile or run any more."""


def _time(
    request: EvaluationRequest, toolchain: Toolchain, compiled: _Compiled, progress: Progress, checks: list[str]
) -> tuple[Timing, RivalTiming | None]:
    """On inputs that were verified and, where there is one, of a secret seed: a kernel cannot know them by heart."""
    tensors: list[np.ndarray] = []
    if not toolchain.simulated:
        inputs = compiled.reference.inputs((request.extra_seeds or request.task.seeds)[0])
        tensors = [a for a in compiled.reference.kernel_arguments(inputs) if isinstance(a, np.ndarray)]
    rival = request.rival if request.final or not toolchain.exact_timing else None
    if rival is not None:
        progress(Step.BENCHMARK, f"against {rival.id}: {'once each' if toolchain.exact_timing else 'in turns'}")
        try:
            return _time_beside(rival, request, toolchain, compiled, tensors, progress)
        except _RivalFault as fault:
            checks.append(f"{rival.id} could not be timed beside it: {fault}")
            progress(Step.BENCHMARK, checks[-1])
    return time_alone(toolchain, compiled.artifact, tensors, request.limits, progress), None


def _time_beside(
    rival: Candidate,
    request: EvaluationRequest,
    toolchain: Toolchain,
    compiled: _Compiled,
    tensors: Sequence[np.ndarray],
    progress: Progress,
) -> tuple[Timing, RivalTiming]:
    """The rival's latency is given as the device was when it ran the candidate: by the ratio of the two."""
    limits = request.limits
    try:
        artifact = _artifact(request, toolchain, rival, compiled.specs)
    except CandidateFault as fault:
        raise _RivalFault(str(fault)) from None

    def rival_block(count: int, left_s: float) -> Sequence[float]:
        try:
            return toolchain.time(artifact, tensors, limits.warmup, count, left_s).samples_us
        except CandidateFault as fault:
            raise _RivalFault(str(fault)) from None

    if toolchain.exact_timing:
        latency_us = statistics.median(rival_block(limits.iterations, limits.run_timeout_s))
        timing = time_alone(toolchain, compiled.artifact, tensors, limits, progress)
        return timing, RivalTiming(rival.content_hash, latency_us, 0.0)
    contest = time_in_turns(
        lambda count, left_s: toolchain.time(compiled.artifact, tensors, limits.warmup, count, left_s).samples_us,
        rival_block,
        limits,
        progress,
    )
    latency_us = statistics.median(contest.candidate.samples_us) / contest.ratio
    if not latency_us > 0:
        raise _RivalFault("a latency of 0 µs was measured")
    return contest.candidate, RivalTiming(rival.content_hash, latency_us, contest.noise)


def _measured(
    request: EvaluationRequest,
    toolchain: Toolchain,
    compiled: _Compiled,
    timing: Timing,
    facts: Facts,
    checks: tuple[str, ...],
    verified_full: bool,
    worst: float,
    rival: RivalTiming | None,
) -> Evaluation:
    task = request.task
    latency = statistics.median(timing.samples_us)
    traced = toolchain.traced(request.candidate.source, compiled.specs, request.limits.compile_timeout_s)
    narrow = dict.fromkeys(facts.low_precision + (traced.low_precision if traced is not None else ()))
    if narrow and task.precision is PrecisionPolicy.FLOAT32_FAITHFUL:
        reason = f"the task is float32-faithful, but instructions compute in {', '.join(narrow)}"
        return Incorrect(CheckFailure(seed=task.seeds[0], preset=task.full.name, output=0, reason=reason))
    why = contradiction(task, facts, traced, latency, toolchain.machine)
    if why is not None:
        return Implausible(why, latency)
    bounds = bounds_for(task, facts, toolchain.machine)
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
        rival,
    )


@dataclass
class KernelResult:
    """NKIBench's result: three flags and a dictionary; and the evaluation they were read from."""

    compiled: bool
    runnable: bool
    correct: bool
    metadata: dict[str, Any]
    evaluation: Evaluation


class NKIKernel:
    """A kernel file and its NumPy reference, profiled as NKIBench's users know it; the last result is `res`.

    `evaluate` takes the two paths and judges the kernel somewhere. `infra.nki_kernel.NKIKernel` is this class with the
    simulator, a device or a host behind it, and needs the two paths only.
    """

    def __init__(self, program_path: str, base_numpy_path: str, *, evaluate: Callable[[str, str], Evaluation]) -> None:
        self.program_path = program_path
        self.base_numpy_path = base_numpy_path
        self.res: KernelResult | None = None
        self._evaluate = evaluate

    def profile(self, save_fields: Sequence[str] = ()) -> KernelResult:
        """Whatever is wrong with the kernel is in the result, in the words of docs/tasks.md."""
        self.res = kernel_result(self._evaluate(self.program_path, self.base_numpy_path), save_fields)
        return self.res


_BEFORE_A_RUN = ("compile", Step.UPLOAD.value, Step.VERIFY.value)
"""Steps in which nothing of the kernel has been executed for certain."""


def kernel_result(evaluation: Evaluation, save_fields: Sequence[str] = ()) -> KernelResult:
    """Latencies in ms, as NKIBench has them; `save_fields` by the profiler's names, in its units.

    A field that this profiler does not report is listed in `missing_fields`: schemas change with every SDK.
    """
    said = explain(evaluation)
    match evaluation:
        case CompileFailed():
            return KernelResult(False, False, False, {"compilation_error": said}, evaluation)
        case Incorrect():
            return KernelResult(True, True, False, {"correctness_error": said}, evaluation)
        case Implausible(latency_us=latency_us):
            which = "correctness_error" if latency_us is None else "benchmarking_error"
            return KernelResult(True, True, False, {which: said}, evaluation)
        case TimedOut(step=step) | Crashed(step=step):
            if step in _BEFORE_A_RUN:
                return KernelResult(False, False, False, {"compilation_error": said}, evaluation)
            if step == "run":
                return KernelResult(True, False, False, {"correctness_error": said}, evaluation)
            return KernelResult(True, True, False, {"benchmarking_error": said}, evaluation)
        case Measured() as measured:
            fields = measured.profile.fields
            metadata: dict[str, Any] = {
                "latency": measured.latency_us / 1e3,
                "min_ms": measured.min_us / 1e3,
                "max_ms": measured.max_us / 1e3,
                "rel_diffs": measured.spread,
                "simulated": measured.simulated,
                "machine": measured.machine,
                **{name: fields[name] for name in save_fields if name in fields},
            }
            missing = [name for name in save_fields if name not in fields]
            if missing:
                metadata["missing_fields"] = missing
            return KernelResult(True, True, True, metadata, evaluation)
