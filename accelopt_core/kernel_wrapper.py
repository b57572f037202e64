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
from accelopt_core.correctness import (
    Compiled,
    Wrong,
    count,
    draws_at_a_gate,
    draws_at_full_shape,
    same_bits_twice,
    verify,
)
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
from accelopt_core.plausibility import contradiction
from accelopt_core.ports import EvaluationRequest, Progress, Step
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
from accelopt_core.verification import Reference, ReferenceCache, argument_specs


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
            draws = draws_at_a_gate(request)
            progress(Step.VERIFY, f"{preset.describe()}: compile, then {count(draws)}")
            compiled = _compile(request, toolchain, preset, task.seeds[0])
            step = "run"
            same_bits_twice(request, toolchain, compiled)
            worst = max(worst, verify(request, toolchain, compiled, draws, cache, checks))
            step = "compile"
        progress(Step.VERIFY, f"{task.full.describe()}: compile")
        full = _compile(request, toolchain, task.full, task.seeds[0])
        step = "run"
        estimate = toolchain.estimate_us(full.artifact)
        limit = request.verify_full_below_us
        verify_full = limit is None or estimate is None or estimate < limit
        if verify_full:
            if request.final or len(task.presets) == 1:
                same_bits_twice(request, toolchain, full)
            draws = draws_at_full_shape(request)
            progress(Step.VERIFY, f"{task.full.describe()}: {count(draws)}")
            worst = max(worst, verify(request, toolchain, full, draws, cache, checks))
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
    except Wrong as wrong:
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


def _compile(request: EvaluationRequest, toolchain: Toolchain, preset: ShapePreset, seed: int) -> Compiled:
    reference = Reference(request.task, preset)
    arguments = reference.kernel_arguments(reference.inputs(seed))
    specs = argument_specs(arguments)
    tensor_bytes = sum(a.nbytes for a in arguments if isinstance(a, np.ndarray))
    artifact = _artifact(request, toolchain, request.candidate, specs)
    return Compiled(preset, reference, specs, artifact, tensor_bytes)


def _artifact(
    request: EvaluationRequest, toolchain: Toolchain, candidate: Candidate, specs: tuple[ArgumentSpec, ...]
) -> Any:
    """The user's own kernel may lean on a compiler that reorders, as AWS's tutorials do; a proposed one must not."""
    proposed = candidate.parent_id is not None
    return toolchain.compile(candidate.source, specs, request.limits.compile_timeout_s, in_order=proposed)


class _RivalFault(Exception):
    """The rival, not the candidate, does not compile or run any more."""


def _time(
    request: EvaluationRequest, toolchain: Toolchain, compiled: Compiled, progress: Progress, checks: list[str]
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
    compiled: Compiled,
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
    compiled: Compiled,
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
    gaps = gaps_for(facts, bounds, latency, toolchain.machine)
    profile = Profile(dict(facts.fields), bounds, facts.hot_lines, gaps, facts.idle)
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
