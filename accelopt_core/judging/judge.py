"""Judging one kernel: compile, verify, time, in that order, stopping at the first fault: here and on a host."""

from __future__ import annotations

import re
import statistics
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache as cache_of_function
from pathlib import PurePath
from typing import Any

import numpy as np

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import (
    CheckFailure,
    CompileFailed,
    Crashed,
    Duplicate,
    Evaluation,
    Implausible,
    Incorrect,
    IncumbentTiming,
    Measured,
    Profile,
    Proof,
    Step,
    TimedOut,
    Untimed,
    is_proved_equal,
)
from accelopt_core.judging.bounds import bounds_for
from accelopt_core.judging.checks import Compiled, Verified
from accelopt_core.judging.correctness import Excuses, Verifier, Wrong
from accelopt_core.judging.inputs.draws import LONG, Draw, count, draws_at_a_gate, draws_at_full_shape
from accelopt_core.judging.plausibility import contradiction
from accelopt_core.judging.proving import proved
from accelopt_core.judging.quoting import quoting, spoken
from accelopt_core.judging.reference.verification import BadReference, Reference, ReferenceCache, argument_specs
from accelopt_core.judging.same_program import Compilations
from accelopt_core.judging.timing import time_alone, time_paired
from accelopt_core.judging.tolerance.storage import STORAGE
from accelopt_core.language import Finding, Language
from accelopt_core.ports import EvaluationRequest, Progress
from accelopt_core.task import REFERENCE, PrecisionPolicy, ShapePreset
from accelopt_core.toolchain import (
    ArgumentSpec,
    CandidateFault,
    CompileError,
    ConstantArgument,
    Facts,
    NotTimed,
    RunError,
    StepTimeout,
    TensorArgument,
    Timing,
    Toolchain,
    ToolchainMissing,
)


def judge(request: EvaluationRequest, toolchain: Toolchain, progress: Progress, cache: ReferenceCache) -> Evaluation:
    """Every fault of the candidate becomes an Evaluation, and so does whatever else stops judging it.

    Raises BadReference for a fault of the task, ToolchainMissing for one of the machine, and MemoryError.
    """
    seed = request.task.seeds[0]
    compilations = Compilations(
        request.task.presets, toolchain, lambda preset: _compile(request, toolchain, preset, seed, cache)
    )
    return spoken(compilations.signed(_judged(request, toolchain, progress, cache, compilations)))


def _judged(
    request: EvaluationRequest,
    toolchain: Toolchain,
    progress: Progress,
    cache: ReferenceCache,
    compilations: Compilations,
) -> Evaluation:
    """Its text, its program at the cheapest shape, whether that is new, the cheap shapes, the price, and the shape that
    counts: it goes as far as the first stage that settles it."""
    step = Step.COMPILE
    checks: list[str] = []
    worst = 0.0
    identical = 0
    types: tuple[str, ...] = ()
    try:
        shared_faults: list[str] = []
        proofs: tuple[Proof, ...] = ()
        task = request.task
        _refuse_hostile_text(request, toolchain.language, progress)
        known = compilations.duplicate(request.known)
        if known is not None:
            return Duplicate(known.candidate_id, known.came_to)
        for preset in task.presets[:-1]:
            progress(Step.VERIFY, f"{preset.describe()}: compile")
            compiled = compilations.at(preset)
            _note_device_doubts(request, toolchain, compiled, checks, progress)
            step = Step.RUN
            cheapest = preset is task.presets[0]
            if cheapest and request.final:
                proofs = proved(request, toolchain, compiled, cache, progress)
            settled = toolchain.simulated and _is_settled(request, proofs)
            draws = draws_at_a_gate(request, settled, compiled.reference.moves)
            progress(Step.VERIFY, f"{preset.describe()}: {count(draws)}")
            verified = _verified(request, toolchain, compiled, cache, draws, twice=True)
            checks.append(verified.line)
            shared_faults += verified.shared_faults
            worst = max(worst, verified.relative_l2)
            identical, types = identical + verified.identical, verified.types
            if cheapest and not request.final:  # dearer than the draws, of which most wrong kernels fail one
                proofs = proved(request, toolchain, compiled, cache, progress)
            step = Step.COMPILE
        progress(Step.VERIFY, f"{task.full.describe()}: compile")
        full = compilations.at(task.full)
        _note_device_doubts(request, toolchain, full, checks, progress)
        step = Step.RUN
        estimate = toolchain.estimate_us(full.artifact)
        limit = request.verify_full_below_us
        may_win = limit is None or estimate is None or estimate < limit
        if is_proved_equal(proofs) and _is_as_given(request, toolchain, compilations.at(task.presets[0])):
            proofs = proved(request, toolchain, full, cache, progress)
        settled = toolchain.simulated and (request.is_input or _is_settled(request, proofs))
        may_wait = settled and request.by_tool and not request.final and len(task.presets) > 1
        verify_full = may_win and not may_wait
        furthest = None
        if verify_full:
            draws = draws_at_full_shape(request, settled, full.reference.moves, toolchain.instructions(full.artifact))
            progress(Step.VERIFY, f"{task.full.describe()}: {count(draws)}")
            # the simulator gives the same bits for the same program, which was executed twice at the gates
            twice = (request.final and not toolchain.simulated) or len(task.presets) == 1
            verified = _verified(request, toolchain, full, cache, draws, twice)
            checks.append(verified.line)
            furthest = verified.furthest
            shared_faults += verified.shared_faults
            worst = max(worst, verified.relative_l2)
            identical, types = identical + verified.identical, verified.types
        elif may_win:
            waits = f"proved equal at {proofs[0].shape}, executed in the winner's last check"
            checks.append(f"{task.full.name} ({task.full.describe()}): {waits}")
            progress(Step.VERIFY, f"{task.full.describe()}: {waits}")
        else:
            progress(Step.VERIFY, f"{task.full.describe()}: skipped, {estimate:,.1f} µs cannot become the best")
        _refuse_own_numbers(request, toolchain, compilations.at(task.presets[0]))
        if len(task.presets) == 1:
            proofs = proved(request, toolchain, full, cache, progress)
        step = Step.BENCHMARK
        progress(Step.BENCHMARK, f"{task.full.describe()} on {toolchain.name}")
        timing, incumbent = _time(request, toolchain, full, progress, checks, cache)
        facts = toolchain.facts(full.artifact)
        result = _measured(
            request, toolchain, full, timing, facts, tuple(checks), verify_full, worst, incumbent, proofs, types
        )
        if not isinstance(result, Measured):
            return result
        return replace(result, shared_faults=tuple(shared_faults), furthest=furthest, identical_draws=identical)
    except CompileError as error:
        return CompileFailed(error.message, error.line)
    except StepTimeout as error:
        return TimedOut(error.step, error.limit_s)
    except RunError as error:
        return Crashed(step, str(error))
    except Wrong as wrong:
        return wrong.evaluation
    except NotTimed as error:
        if not checks:
            raise ToolchainMissing(f"{toolchain.name} cannot execute it even at its cheapest shape: {error}") from None
        return Untimed(str(error), tuple(checks), worst)
    except (BadReference, ToolchainMissing, MemoryError):
        raise
    except Exception as error:  # no candidate ends a run: another may do better
        where = traceback.extract_tb(error.__traceback__)[-1]  # for whoever mends the judge
        said = " ".join(f"{PurePath(where.filename).name}:{where.lineno}: {type(error).__name__}: {error}".split())
        return Crashed(step, f"it cannot be judged: {said[:_LONGEST_REASON]}")


def _is_settled(request: EvaluationRequest, proofs: Sequence[Proof]) -> bool:
    """Is there a proof that draws need not repeat? One up to reassociation says nothing of bits."""
    return is_proved_equal(proofs) and not request.task.exact


def _is_as_given(request: EvaluationRequest, toolchain: Toolchain, gate: Compiled) -> bool:
    """Is it the input kernel's own program at a gate? Then a proof there says nothing of what is timed."""
    if request.original is None or request.is_input:
        return False
    limit_s = request.limits.compile_timeout_s
    given = toolchain.compile(request.original.source, gate.specs, limit_s, request.task.around)
    digest = toolchain.program_digest(gate.artifact)
    return digest != "" and digest == toolchain.program_digest(given)


_LONGEST_REASON = 300
"""Characters, of what went wrong in the judge."""


def _refuse_hostile_text(request: EvaluationRequest, language: Language, progress: Progress) -> None:
    """A proposed kernel that reaches out is not run; the user's own is run as carefully, and the user is told."""
    try:
        request.candidate.source.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CompileError(f"character {error.start} of the file is half a character: not UTF-8") from None
    found = language.forbidden(request.candidate.source, request.task.around.importable)
    if request.candidate.parent_id is not None:
        known = set() if request.original is None else _places(request, language, request.original.source)
        for finding in found:
            if _place(finding, request.candidate.source) not in known:
                raise CompileError(finding.message + f" ({finding.rule})", finding.line)
    for finding in (*found, *language.notes(request.candidate.source))[:3]:
        progress(Step.VERIFY, f"note: {finding.describe()}")


def _places(request: EvaluationRequest, language: Language, source: str) -> set[tuple[str, str, str]]:
    """What the user's own kernel has: whoever makes it faster keeps its lines."""
    return {_place(finding, source) for finding in language.forbidden(source, request.task.around.importable)}


_OF_A_VARIANT = re.compile(r"""(?<=\w)_v\d+\b(?=[^"']*(?:["'][^"']*["'][^"']*)*$)""")
"""What a kernel for several shapes adds to each name of its variants (`accelopt_core.dispatch`); not within a text."""


def _place(finding: Finding, source: str) -> tuple[str, str, str]:
    line = source.splitlines()[finding.line - 1].strip()
    return finding.rule, finding.message, _OF_A_VARIANT.sub("", line)


def _compile(
    request: EvaluationRequest, toolchain: Toolchain, preset: ShapePreset, seed: int, cache: ReferenceCache
) -> Compiled:
    reference = Reference(request.task, preset)
    cache.movements(reference)
    specs, tensor_bytes = cache.arguments(reference, seed)
    artifact = _artifact(request, toolchain, request.candidate, specs)
    return Compiled(preset, reference, specs, artifact, tensor_bytes)


def _artifact(
    request: EvaluationRequest, toolchain: Toolchain, candidate: Candidate, specs: tuple[ArgumentSpec, ...]
) -> Any:
    """Raises CompileError for a kernel on another number of cores than the task's input."""
    artifact = toolchain.compile(candidate.source, specs, request.limits.compile_timeout_s, request.task.around)
    cores = toolchain.cores(artifact)
    if request.cores is not None and cores != request.cores:
        several = toolchain.language.several_cores.format(cores=cores)
        raise CompileError(
            f"the kernel runs on {cores} {toolchain.language.core}s and the task's input on {request.cores}: times on "
            f"other numbers of cores are not compared; write it for {request.cores}, without {several}"
        )
    return artifact


def _note_device_doubts(
    request: EvaluationRequest, toolchain: Toolchain, compiled: Compiled, checks: list[str], progress: Progress
) -> None:
    """Say of the input kernel what the simulator has right and no device is known to. Raises CompileError for any
    other kernel that has such a place."""
    for doubt in toolchain.device_doubts(compiled.artifact):
        if not request.is_input:
            raise CompileError(f"not proved for a device: {doubt.message} ({doubt.rule})", doubt.line)
        line = f"not proved for a device: {doubt.describe()}"
        if line not in checks:
            checks.append(line)
            progress(Step.VERIFY, f"note: {line}")


def _verified(
    request: EvaluationRequest,
    toolchain: Toolchain,
    compiled: Compiled,
    cache: ReferenceCache,
    draws: Sequence[Draw],
    twice: bool,
) -> Verified:
    """What the candidate passed. What the input kernel fails too is held against it no further than that is off; in a
    winner's last check also where those are the reference's own inputs."""
    original = request.original

    @cache_of_function
    def input_kernel() -> Verifier:
        assert original is not None
        artifact = _artifact(request, toolchain, original, compiled.specs)
        return Verifier(request, toolchain, replace(compiled, artifact=artifact), cache, kept_as=original.content_hash)

    excuses = None
    if request.is_input:
        excuses = Excuses(None)
    elif original is not None:
        excuses = Excuses(input_kernel, own_too=request.final)
    twin = None
    if request.task.exact and original is not None and not request.is_input:
        twin = _artifact(request, toolchain, original, compiled.specs)
    return Verifier(request, toolchain, compiled, cache, twin).verify(draws, twice, excuses)


def _refuse_own_numbers(request: EvaluationRequest, toolchain: Toolchain, gate: Compiled) -> None:
    """Raises Wrong for a kernel with numbers of its own in place of those that it is given, which no draw changes: it
    is compiled for others. What it, the input kernel or the reference does not take of these is left out."""
    seed, original = request.task.seeds[0], request.original
    has_numbers = any(isinstance(each, ConstantArgument) for each in gate.specs)
    is_cheap = 0 < toolchain.instructions(gate.artifact) < LONG  # a device's compiler is slow
    if original is None or request.is_input or not has_numbers or not (is_cheap or request.final):
        return
    draws = [Draw(seed, name) for name in (REFERENCE, "small", "mixed") if name in request.task.distributions]

    def is_right(one: Candidate) -> bool:
        compiled = replace(gate, reference=reference, specs=specs, artifact=_artifact(request, toolchain, one, specs))
        with suppress(Wrong):
            Verifier(request, toolchain, compiled, ReferenceCache(None)).verify(draws)
            return True
        return False

    for kind in "fi":
        reference = Reference(request.task, gate.preset)
        reference.movements, reference.changes_numbers = gate.reference.movements, kind
        with suppress(BadReference, CandidateFault):
            specs = argument_specs(reference.kernel_arguments(reference.inputs(seed)))
            if specs != gate.specs and not is_right(request.candidate) and is_right(original):
                reason = "with numbers half as large again as those that it is given: it computes with its own instead"
                raise Wrong(Incorrect(CheckFailure(seed, gate.preset.name, 0, reason)))


class _IncumbentFault(Exception):
    """The incumbent, not the candidate, does not compile or run any more."""


def _time(
    request: EvaluationRequest,
    toolchain: Toolchain,
    compiled: Compiled,
    progress: Progress,
    checks: list[str],
    cache: ReferenceCache,
) -> tuple[Timing, IncumbentTiming | None]:
    """On inputs that were verified and, where there is one, of a secret seed: a kernel cannot know them by heart."""
    tensors: list[np.ndarray] = []
    if not toolchain.simulated:
        inputs = compiled.reference.inputs((request.extra_seeds or request.task.seeds)[0])
        tensors = [a for a in compiled.reference.kernel_arguments(inputs) if isinstance(a, np.ndarray)]
    incumbent = request.incumbent if request.final or not toolchain.simulated else None
    if incumbent is not None:
        progress(Step.BENCHMARK, f"against {incumbent.id}: {'once each' if toolchain.simulated else 'in turns'}")
        try:
            return _time_beside(incumbent, request, toolchain, compiled, tensors, progress, cache)
        except _IncumbentFault as fault:
            checks.append(f"{incumbent.id} could not be timed beside it: {fault}")
            progress(Step.BENCHMARK, checks[-1])
    return time_alone(toolchain, compiled.artifact, tensors, request.limits, progress), None


def _time_beside(
    incumbent: Candidate,
    request: EvaluationRequest,
    toolchain: Toolchain,
    compiled: Compiled,
    tensors: Sequence[np.ndarray],
    progress: Progress,
    cache: ReferenceCache,
) -> tuple[Timing, IncumbentTiming]:
    """The incumbent's latency is given as the device was when it ran the candidate: by the ratio of the two."""
    limits = request.limits
    try:
        artifact = _artifact(request, toolchain, incumbent, compiled.specs)
        Verifier(request, toolchain, compiled, cache).count(
            artifact, draws_at_full_shape(request, moves=compiled.reference.moves)
        )
    except CandidateFault as fault:
        raise _IncumbentFault(str(fault)) from None

    def incumbent_block(count: int, left_s: float) -> Sequence[float]:
        try:
            return toolchain.time(artifact, tensors, limits.warmup, count, left_s).samples_us
        except CandidateFault as fault:
            raise _IncumbentFault(str(fault)) from None

    if toolchain.simulated:
        latency_us = statistics.median(incumbent_block(limits.iterations, limits.run_timeout_s))
        timing = time_alone(toolchain, compiled.artifact, tensors, limits, progress)
        return timing, IncumbentTiming(incumbent.content_hash, latency_us, 0.0)
    paired = time_paired(
        lambda count, left_s: toolchain.time(compiled.artifact, tensors, limits.warmup, count, left_s).samples_us,
        incumbent_block,
        limits,
        progress,
    )
    latency_us = statistics.median(paired.candidate.samples_us) / paired.ratio
    if not latency_us > 0:
        raise _IncumbentFault("a latency of 0 µs was measured")
    return paired.candidate, IncumbentTiming(incumbent.content_hash, latency_us, paired.noise)


def _arithmetic(taken: Sequence[str], narrow: Sequence[str], given: Sequence[str]) -> str:
    """For people: of which types floating arguments, arithmetic and outputs are; empty where all are float32."""
    among = [list(dict.fromkeys(name for name in names if "float" in name)) for names in (taken, given)]
    if not narrow and not any(name in STORAGE for names in among for name in names):
        return ""
    takes, gives = (" and ".join(names) or "integers" for names in among)
    return f"{takes} in, {' and '.join(narrow) or 'float32'} arithmetic, {gives} out"


def _measured(
    request: EvaluationRequest,
    toolchain: Toolchain,
    compiled: Compiled,
    timing: Timing,
    facts: Facts,
    checks: tuple[str, ...],
    verified_full: bool,
    worst: float,
    incumbent: IncumbentTiming | None,
    proofs: tuple[Proof, ...],
    types: tuple[str, ...],
) -> Evaluation:
    task = request.task
    latency = statistics.median(timing.samples_us)
    limit_s = request.limits.compile_timeout_s
    traced = toolchain.traced(request.candidate.source, compiled.specs, limit_s, task.around)
    taken = [spec.dtype for spec in compiled.specs if isinstance(spec, TensorArgument)]
    seen = facts.low_precision
    if traced is not None:  # a profile does not tell what is moved, widened or stored from what is computed with
        seen = (*(name for name in seen if name not in (*taken, *types)), *traced.low_precision)
    narrow = tuple(dict.fromkeys(seen))
    if narrow and task.precision is PrecisionPolicy.FLOAT32_FAITHFUL:
        reason = (
            f"the task is float32-faithful, but results are rounded to {', '.join(narrow)} and used: compute in "
            'float32, or let the reference declare PRECISION = "bf16-allowed" and TOLERANCE = 5e-3 (docs/tasks.md)'
        )
        return Incorrect(CheckFailure(seed=task.seeds[0], preset=task.full.name, output=0, reason=reason))
    cores = toolchain.cores(compiled.artifact)
    machine = toolchain.machine if cores == 1 else toolchain.machine.of_cores(cores)
    why = contradiction(task, facts, traced, latency, machine)
    if why is not None:
        return Implausible(why, latency)
    bounds = bounds_for(task, facts, machine)
    gaps = machine.gaps(facts, bounds, latency)
    profile = Profile(dict(facts.fields), bounds, facts.hot_lines, gaps, facts.idle)
    measured = Measured(
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
        incumbent,
        toolchain.caveat,
        cores,
        facts.likely,
        proofs,
        contested=tuple(dict.fromkeys(facts.contested + (traced.contested if traced is not None else ()))),
        output_types=types,
        arithmetic=_arithmetic(taken, narrow, types),
    )
    return quoting(measured, request.candidate.source)
