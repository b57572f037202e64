"""One kernel compiled, verified and timed, without a run: `nki_optimizer.evaluate`, and what `explain` begins with."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import config
from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.evaluation import Crashed, Evaluation, Measured, Step, TimedOut
from accelopt_core.evaluation import explain as said_of
from accelopt_core.explanation import Explanation
from accelopt_core.ports import EvaluationRequest, Progress, TargetInfo
from accelopt_core.task import REFERENCE, Task
from infra.assembly.problem import Problem, nki_problem_of, problem_of, quick_start, resumed_problem
from infra.assembly.rounds import limits_of
from infra.assembly.targets import predictor_of, target_of
from infra.commands.optimize import RAISED, KernelFile, Reference, called
from infra.documents.kernel_document import EvaluationDocument, evaluation_document
from infra.journal import utc_now
from infra.judging.shipment import judge_fingerprint
from infra.prediction.explaining import explanation_of
from infra.runs.evaluation_store import EvaluationStore, evaluation_key
from infra.runs.evaluations import Stored
from infra.runs.run_folder import find_run
from infra.settings_reader import SettingsError
from infra.tasks.kernel_file import kernel_text
from infra.tasks.plain_reference import Inputs
from infra.tasks.seed_index import TaskNotFound, find_reference
from infra.terminal.rejected import may_be_narrow
from infra.terminal.started_as import raised_as_here, started_as
from infra.terminal.wording import printable

FOR_RUNS = ("rounds", "patience", "resume", "run_id", "replay")
"""Settings that say nothing of one kernel."""


def evaluated(
    settings: config.Settings,
    problem: Problem,
    progress: Progress,
    *,
    is_input: bool,
    original: Candidate | None = None,
    gates_only: bool = False,
) -> tuple[TargetInfo, Evaluation]:
    """`is_input`: it is what a run begins with, so that what it gets wrong on changed inputs is left out, and said.
    `original`: the kernel that it was made from; it is then held to what a proposed kernel is, and proved equal to that
    one where it can be. `gates_only`: its latency is wanted, and the full shape is not verified."""
    limits = limits_of(settings)
    seeds = tuple(secrets.randbelow(1 << 31) for _ in range(settings.verification.extra_seeds))
    candidate = Candidate("input" if original is None else "changed", problem.source)
    if original is not None:
        candidate = replace(candidate, parent_id=original.id)
    request = EvaluationRequest(
        problem.task, candidate, limits, extra_seeds=seeds, is_input=is_input, original=original,
        verify_full_below_us=0.0 if gates_only else None,
    )  # fmt: skip
    with closing(target_of(problem.settled(settings))) as target:
        info = target.describe()
        if settings.run.verdicts is None:
            return info, target.evaluate(request, progress)
        kept = EvaluationStore(settings.run.verdicts, "verdicts")
        judged_by = f"{info.fingerprint} judged by {judge_fingerprint(problem.task.language)}"
        # A text that is right on its own, or beside another, is a right input kernel too.
        unnamed = replace(request, task=replace(problem.task, name=""))  # a task is called as the kernel's file is
        text = EvaluationRequest(unnamed.task, Candidate("", problem.source), limits)
        own, alone = evaluation_key(unnamed, judged_by), evaluation_key(text, f"right, {judged_by}")
        for stored in map(kept.get, (own, alone) if is_input else (own,)):
            known = stored.evaluation if stored is not None else None
            if known is not None and (not isinstance(known, Measured) or gates_only or known.verified_full):
                return info, known
        result = target.evaluate(request, progress)
        if not isinstance(result, (TimedOut, Crashed)):  # which may be otherwise where less is going on
            for key in (own, alone) if isinstance(result, Measured) else (own,):
                kept.put(key, Stored(kept.run_id, utc_now().isoformat(timespec="seconds"), info.name, result))
        return info, result


def evaluation(
    settings: config.Settings, kernel: str, progress: Progress, original: Path | None = None
) -> EvaluationDocument:
    """The verdict on the settings' kernel. `kernel`: as it was named; `original`: what it was made from, which may be
    itself: then it is judged as a run judges its input.

    Whatever is wrong with the kernel is in the verdict; raises what `evaluate` raises.
    """
    problem = _with_a_reference(settings, original)
    before, is_input = _made_from(problem, original)
    info, result = evaluated(settings, problem, progress, is_input=is_input, original=before)
    document = evaluation_document(kernel, problem.task, info, result)
    if before is not None and original is not None and isinstance(result, Measured):
        return replace(document, **_beside(settings, problem, progress, before, original, result))
    failure = document.failure
    if original is None and failure is not None and failure.distribution != REFERENCE:
        as_a_run = started_as(f"python3 orchestrator.py evaluate {kernel} --original {kernel}")
        return replace(document, said=f"{document.said}; a run would leave such inputs out, as `{as_a_run}` does")
    narrow = may_be_narrow(failure, problem.task.precision) if failure is not None and original is None else ""
    return replace(document, said=f"{document.said}; {started_as(narrow)}") if narrow else document


def _with_a_reference(settings: config.Settings, original: Path | None) -> Problem:
    """The original's reference, where the kernel has none of its own. Raises as `problem_of`."""
    try:
        return problem_of(settings)
    except TaskNotFound:
        if original is None or settings.run.problem is not None:
            raise
    adopted = find_reference(original).reference
    return problem_of(replace(settings, run=replace(settings.run, problem=adopted)))


def _beside(
    settings: config.Settings, problem: Problem, progress: Progress, before: Candidate, original: Path, result: Measured
) -> dict[str, Any]:
    """Of a document: how much faster than the original, timed as the input of a run is; where that cannot be, why."""
    as_given = replace(problem, source=before.source, text=before.source)
    timed = evaluated(settings, as_given, progress, is_input=True, gates_only=True)[1]
    if not isinstance(timed, Measured):
        return {"said": printable(f"{said_of(result)}; {original} itself has no latency: {said_of(timed)}")}
    speedup = timed.latency_us / result.latency_us
    said = f"{said_of(result)}: {speedup:.2f}x the speed of {original} ({timed.latency_us:,.1f} µs)"
    return {"said": printable(said), "original_us": timed.latency_us, "speedup": speedup}


def _made_from(problem: Problem, original: Path | None) -> tuple[Candidate | None, bool]:
    """What the kernel was made from, where that is another one; and whether it is that very kernel.

    Raises SettingsError where outputs must equal a kernel's in every bit that nobody named."""
    if original is None:
        if problem.task.exact:
            raise SettingsError("exact: equal to which kernel in every bit? name it with --original FILE")
        return None, False
    before = Candidate("input", kernel_text(original))
    is_input = before.content_hash == Candidate("", problem.source).content_hash
    return None if is_input else before, is_input


def evaluate(
    kernel: KernelFile,
    reference: Reference | None = None,
    *,
    original: KernelFile | None = None,
    inputs: Inputs | None = None,
    on_step: Callable[[Step, str], object] | None = None,
    **settings: Any,
) -> Evaluation:
    """The verdict on one kernel: exactly one of the types in `accelopt_core.evaluation`; only Measured has a latency.

    `kernel`, `reference`, `inputs` and `settings` as for `optimize`; of the settings those count that say where
    (`host`, `machine`), what (`function`, `preset`, `migrate`) and how it is verified. `original`: the kernel that it
    was made from, which it is proved equal to where it can be, and with `exact=True` must equal in every bit of its
    outputs; it may be itself. `on_step` is told as each step begins, with one line of detail.

    Whatever is wrong with the kernel is in the verdict. Raises SettingsError, TaskNotFound, TaskInvalid and TaskFault
    for what is wrong with the call or the reference, and TargetError where nothing can be evaluated.
    """
    for word in settings:
        if word.replace("-", "_") in FOR_RUNS:
            raise SettingsError(f"{word} is of runs, and evaluate judges one kernel: leave it away")

    def progress(step: Step, detail: str) -> None:
        if on_step is not None:
            on_step(step, detail)

    with raised_as_here(*RAISED):
        invocation, text = called("evaluate", kernel, reference, inputs, settings)
        problem = problem_of(invocation.settings, text)
        before, is_input = _made_from(problem, None if original is None else Path(original))
        return evaluated(invocation.settings, problem, progress, is_input=is_input, original=before)[1]


LIMIT_S = 120.0
"""Most seconds for pricing what can be done to a kernel that somebody asks about; the end of a run takes less."""


@dataclass(frozen=True)
class ExplainedKernel:
    title: str
    result: Measured
    explanation: Explanation


def explain(invocation: config.Invocation) -> ExplainedKernel:
    """Raises what a run raises before it begins, BaselineRejected among it; JournalError for a run that is none."""
    names_a_kernel = {"run.kernel", "run.task"} & set(invocation.origins)
    return _kernel(invocation) if names_a_kernel and invocation.run_id == config.LATEST else _best_of_run(invocation)


def _kernel(invocation: config.Invocation) -> ExplainedKernel:
    """Compiled, verified and timed as a run's input kernel."""
    settings = quick_start(invocation)
    problem = nki_problem_of(settings, "explain")
    task = problem.task

    def progress(step: Step, detail: str) -> None:
        if settings.run.view != "quiet":
            print(f"{step.value}: {detail}", file=sys.stderr)

    info, result = evaluated(settings, problem, progress, is_input=True)
    if not isinstance(result, Measured):
        raise problem.rejected(result)
    title = f"{problem.kernel.name}  {task.full.describe()}  on {info.name}"
    return _explained(title, settings, task, info, Candidate("input", problem.source), result)


def _best_of_run(invocation: config.Invocation) -> ExplainedKernel:
    folder = find_run(invocation.settings.run.checkpoints, invocation.run_id)
    settings = invocation.over(config.from_document(folder.config(), f"run {folder.run_id}"))
    best, info = folder.winner(), folder.manifest().target
    if best is None:
        raise SettingsError(f"explain: run {folder.run_id} ended before its input kernel was measured")
    task = resumed_problem(settings, folder).task
    title = f"{best.candidate.id} of run {folder.run_id}  {task.full.describe()}  on {info.name}"
    return _explained(title, settings, task, info, best.candidate, best.result, folder.attempts())


def _explained(
    title: str,
    settings: config.Settings,
    task: Task,
    info: TargetInfo,
    candidate: Candidate,
    result: Measured,
    history: tuple[Attempt, ...] = (),
) -> ExplainedKernel:
    with closing(predictor_of(settings, task, info)) as predictor:
        explanation = explanation_of(candidate, result, predictor, history, LIMIT_S)
    return ExplainedKernel(title, result, explanation)
