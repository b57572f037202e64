"""`explain`: a kernel that is measured now, or the best of a run as it was measured, and why its gaps are there."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass

import config
from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.evaluation import Measured, Step
from accelopt_core.explanation import Explanation
from accelopt_core.ports import TargetInfo
from accelopt_core.task import Task
from infra.assembly.problem import nki_problem_of, quick_start, resumed_problem
from infra.assembly.targets import predictor_of
from infra.commands.evaluate import evaluated
from infra.prediction.explaining import explanation_of
from infra.runs.run_folder import find_run
from infra.settings_reader import SettingsError

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
