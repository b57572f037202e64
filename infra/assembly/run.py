"""One run on one kernel: its problem, target, proposer, folder and loop put together, and carried out."""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import config
from accelopt_core.catalogue.explaining import LIMIT_S
from accelopt_core.evaluation import Untimed, explain
from accelopt_core.loop import events
from accelopt_core.loop.rounds import BaselineRejected, Loop, Past, RunResult
from accelopt_core.model.prompting import prompts_version
from accelopt_core.ports import Target, TargetInfo, TargetMisconfigured
from infra.assembly.following import A_PERSON, Following, interruptible, unhurried
from infra.assembly.language_parts import Winner
from infra.assembly.languages import parts_of
from infra.assembly.problem import QUICK_START, Problem, problem_of, quick_start, resumed_problem
from infra.assembly.proposing import Proposing, provider_of
from infra.assembly.rounds import guide_of, loop_settings, width_of
from infra.assembly.targets import compilers_own_of, residuals_of, target_of
from infra.engines.ray_engine import RayEngine
from infra.journal import utc_now
from infra.llm.contenders import CATALOGUE
from infra.llm.retry import Stopping
from infra.prediction.explaining import explain_end
from infra.prediction.progress import NothingPriced, PlanningWatch
from infra.runs.evaluation_store import EvaluationStore
from infra.runs.event_log import EventLog, Observers
from infra.runs.memory_file import kept_for, memory_for
from infra.runs.run_folder import Manifest, RunFolder, RunJournal, find_run, new_run_id
from infra.runs.spending import Spending, TimeLimits
from infra.scratch_folder import clear_left_over
from infra.settings_reader import SettingsError
from infra.targets.on_engine import EngineTarget
from infra.targets.pool import TargetPool
from infra.targets.remembering import MeteredTarget, RememberingTarget
from infra.terminal import report
from infra.tracing.export import NotTraced, open_spans
from infra.tracing.spans import RunSpans


@dataclass(frozen=True)
class FinishedRun:
    settings: config.Settings
    problem: Problem
    folder: RunFolder
    result: RunResult


def carry_out(
    invocation: config.Invocation, following: Following = A_PERSON, reference: str | None = None
) -> FinishedRun:
    """One run on one kernel, from its beginning or from where it was interrupted; best.diff is written.

    `reference`: the text of the reference module, where no file has it yet; the run's folder keeps it. Raises what is
    wrong before it begins (SettingsError, TaskNotFound, TaskInvalid, TaskFault, JournalError, TargetError, ModelError),
    and BaselineRejected.
    """
    cleared = clear_left_over()
    resumed, nothing_left = invocation.settings.run.resume, ""
    if resumed is None:
        settings = quick_start(invocation)
        problem, folder = problem_of(settings, reference), None
        reference = reference if reference is not None else problem.written
        if reference is not None:
            run_id = settings.run.run_id or new_run_id(problem.task.name, utc_now())
            kept = RunFolder(settings.run.checkpoints / run_id).own_reference
            settings = replace(settings, run=replace(settings.run, run_id=run_id, problem=kept))
    else:
        folder = find_run(invocation.settings.run.checkpoints, resumed)
        settings = invocation.over(config.from_document(folder.config(), f"run {folder.run_id}"))
        problem = resumed_problem(settings, folder)
    settings = problem.settled(settings)
    with ExitStack() as outermost, ExitStack() as stack:
        target = target_of(settings)
        stack.callback(target.close)
        info = target.describe()
        provider = provider_of(settings)
        width = width_of(settings, target, info.simulated, provider)
        settings = replace(settings, run=replace(settings.run, width=width))
        if folder is None:
            folder = _folder(settings, problem, info, provider)
            folder.load(problem.loaded)
            if reference is not None:
                folder.keep(folder.own_reference.name, reference)
            if problem.origin is not None:
                folder.keep(*problem.origin.kept)
        else:
            nothing_left = _nothing_left(invocation, folder, provider)
            _continue(folder, info, settings.run.rounds)
        stack.callback(folder.close)
        if isinstance(target, TargetPool):
            target.remember_in(folder.path / "remote")
        log = stack.enter_context(EventLog(folder.log))
        view = following.open_view(settings.run.view)
        stack.callback(view.close)
        spans, not_traced = _spans()
        if spans is not None:
            stack.callback(spans.close)
        observer = Observers(log, view, *([spans] if spans is not None else []))
        if isinstance(target, EngineTarget) and isinstance(target.engine, RayEngine):
            target.engine.tell = lambda line: observer.tell(events.Notice(line, "warning"))
        if cleared:
            observer.tell(events.Notice(cleared))
        for line in not_traced:
            observer.tell(events.Notice(line, "warning"))
        stopping = Stopping()
        interrupted = outermost.enter_context(interruptible(observer, following, stopping))
        try:
            begun = _Begun(settings, problem, provider, target, info, folder, observer, spans, nothing_left)
            result = _optimize(begun, stopping, interrupted)
            if not interrupted():
                with suppress(KeyboardInterrupt):  # asked for twice: the run has come to its end all the same
                    _time_compilers_own(begun, result)
            outermost.enter_context(unhurried(following))
        except BaseException as error:
            log.trace(traceback.format_exc())
            folder.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", str(error))
            raise
        folder.end(result.ending.value, result.reason, result.nothing_left)
        for line in _written_for_its_origin(begun, result):
            observer.tell(events.Notice(line))
        observer.tell(events.RunEnded(result.ending, result.reason))
        report.write_diff(report.summary_of(folder))
    return FinishedRun(settings, problem, folder, result)


@dataclass(frozen=True)
class _Begun:
    """A run that has its target and its folder, and whose events are heard."""

    settings: config.Settings
    problem: Problem
    provider: str
    target: Target
    info: TargetInfo
    folder: RunFolder
    observer: Observers
    spans: RunSpans | None
    nothing_left: str = ""
    """As a Past's."""


def _optimize(run: _Begun, stopping: Stopping, interrupted: Callable[[], bool]) -> RunResult:
    settings, problem, info, folder, observer = run.settings, run.problem, run.info, run.folder, run.observer
    seconds_before = folder.seconds_used()
    spending = Spending(
        TimeLimits(settings.budget.max_hours, settings.budget.max_device_minutes), observer,
        seconds_before=seconds_before, on_time=folder.keep_time,
    )  # fmt: skip
    shared = settings.run.memory
    memory = memory_for(folder.path, shared, lambda line: observer.tell(events.Notice(line, "warning")))
    of_loop = loop_settings(settings, run.provider)
    with ExitStack() as stack:
        parts = parts_of(problem.task.language)
        predictor = parts.predictor(settings, problem.task, info, run.target)
        if predictor is not None:
            stack.callback(predictor.close)
        residuals = residuals_of(shared, info) if predictor is not None and not info.simulated else None
        proposing = Proposing(
            settings, run.provider, problem.source, info, folder, spending, observer, parts, predictor, stopping,
            run.spans,
        )  # fmt: skip
        proposer = proposing.proposer()
        observer.tell(
            events.RunStarted(
                run_id=folder.run_id,
                task=problem.task.name,
                shape=problem.task.full.describe(),
                kernel=str(problem.kernel),
                target=info,
                proposer=proposer.name,
                rounds=settings.run.rounds,
                patience=settings.run.patience,
                folder=str(folder.path),
                experiences=len(memory.load()),
                max_hours=settings.budget.max_hours,
                hours_before=seconds_before / 3600,
                width=of_loop.candidates,
            )
        )
        for notice in _notices(run):
            observer.tell(events.Notice(notice))
        store = EvaluationStore(settings.run.checkpoints, folder.run_id)
        spending.device_used(store.seconds())
        clock = run.target.clock if isinstance(run.target, EngineTarget) else time.monotonic
        metered = MeteredTarget(run.target, spending.device_used, clock)
        guide = None
        if predictor is not None:
            guide = guide_of(predictor, info, of_loop.candidates, run.target.width, observer)
        if guide is not None and residuals is not None:
            known = residuals_of(kept_for(folder.path) or shared, info)
            guide = replace(guide, earlier=known.of_other_runs(folder.run_id))
        watch = stack.enter_context(PlanningWatch(observer.tell, predictor or NothingPriced()))
        loop = Loop(
            problem.task,
            problem.source,
            RememberingTarget(metered, store, clock=clock),
            proposer,
            RunJournal(folder, memory, residuals),
            spending,
            Observers(observer, watch),
            of_loop,
            interrupted,
            _past(folder, run.nothing_left),
            guide=guide,
            language=parts.language,
        )
        try:
            try:
                result = loop.run()
            except BaselineRejected as error:
                if isinstance(error.evaluation, Untimed):
                    raise TargetMisconfigured(
                        f"{report.shown_path(problem.kernel)} is {explain(error.evaluation)}; a run needs "
                        "latencies, so name a machine that has one: `orchestrator.py USER@HOST --language "
                        f"{problem.task.language} ...` (`evaluate` checks kernels without)"
                    ) from None
                raise problem.rejected(error.evaluation) from None
            proposing.remember(result)
            if predictor is not None:
                limit_s = LIMIT_S if run.provider == CATALOGUE else min(LIMIT_S, settings.model.menu_s)
                with watch.over("what is left to gain"):
                    explain_end(result, predictor, folder, observer.tell, limit_s)
            return result
        finally:
            spending.note_time()


def _time_compilers_own(run: _Begun, result: RunResult) -> None:
    """Once for a run that came to its end: the third baseline, beside the input kernel and the bound."""
    wanted = run.settings.run.compiler_baseline and not run.info.simulated
    if not wanted or result.ending is not events.Ending.FINISHED or run.folder.compilers_own() is not None:
        return
    run.observer.tell(events.Notice("timing what the compiler makes of the reference by itself"))
    run.folder.keep_compilers_own(compilers_own_of(run.settings, run.info, run.problem.task))


def _written_for_its_origin(run: _Begun, result: RunResult) -> Iterator[str]:
    """A faster kernel for another project's task, in that project's format, in the run's folder."""
    problem, folder, winner = run.problem, run.folder, None
    if problem.origin is None:
        return
    if result.best.source != problem.source:
        file = problem.kernel.name if problem.kernel.suffix == ".py" else "kernel.py"
        winner = Winner(result.best.source, problem.task.around, file, result.best_result, result.baseline, run.info)
    yield problem.origin.written(folder.path, folder.run_id, winner, utc_now())


def _spans() -> tuple[RunSpans | None, tuple[str, ...]]:
    """And why there are none, where the environment asks for them: a run goes on without."""
    try:
        return open_spans(os.environ, config.VERSION), ()
    except NotTraced as error:
        return None, (str(error),)


def _notices(run: _Begun) -> Iterator[str]:
    settings, problem, info = run.settings, run.problem, run.info
    if info.calibration is not None:
        yield f"simulated latencies are of {info.machine}, {info.calibration.label}"
    if run.provider == CATALOGUE and settings.model.provider == "auto":
        yield (
            "no API key found, so the built-in catalogue proposes the changes; for a language model set "
            "ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENAI_BASE_URL"
        )
    yield from problem.notes
    if settings.run.preset == QUICK_START and settings.run.kernel is None:
        yield f"a quick start at {problem.task.full.describe()}; for NKIBench's shape add --preset full"


def _past(folder: RunFolder, nothing_left: str) -> Past | None:
    baseline = folder.baseline()
    return None if baseline is None else Past(baseline.result, folder.attempts(), nothing_left)


AS_BEFORE = ("run.resume", "run.rounds", "run.view", "run.checkpoints", "run.in_place")
"""Settings that a resumed run may be given anew, and its planner is asked the same."""


def _nothing_left(invocation: config.Invocation, folder: RunFolder, provider: str) -> str:
    """Why the run's planner had nothing left, where it is the catalogue of this release and is asked the same again."""
    manifest = folder.manifest()
    said_anew = [name for name, where in invocation.origins.items() if where.startswith("--") and name not in AS_BEFORE]
    is_same = provider == CATALOGUE and manifest.versions == _versions() and not said_anew
    return manifest.reason if manifest.nothing_left and is_same else ""


def _versions() -> dict[str, str]:
    return {"nki-optimizer": config.VERSION, "python": platform.python_version(), "prompts": prompts_version()}


def _continue(folder: RunFolder, info: TargetInfo, rounds: int) -> None:
    folder.hold()
    before = folder.manifest().target
    if before.fingerprint != info.fingerprint:
        folder.close()
        raise SettingsError(
            f"resume: run {folder.run_id} was measured on {before.name}, which is not what answers now ({info.name}); "
            "latencies of the two cannot be compared: start a new run"
        )
    folder.go_on(rounds)


def _folder(settings: config.Settings, problem: Problem, info: TargetInfo, provider: str) -> RunFolder:
    manifest = Manifest(
        run_id=settings.run.run_id or new_run_id(problem.task.name, utc_now()),
        created=utc_now().isoformat(timespec="milliseconds"),
        task=problem.task.name,
        shape=problem.task.full.describe(),
        kernel=str(problem.kernel.resolve()),
        target=info,
        proposer=", ".join(each.name for each in settings.model.take_turns) or provider,
        versions=_versions(),
        rounds=settings.run.rounds,
        language=problem.task.language,
    )
    return RunFolder.create(settings.run.checkpoints, manifest, config.to_document(settings))
