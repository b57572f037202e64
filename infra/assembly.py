"""From settings to a finished run: its target, its proposer, its folder and its loop, put together.

Beside `orchestrator.py` and `infra/commands` the only file that reads `config`; whatever it builds knows no settings.
"""

from __future__ import annotations

import datetime
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from rich.console import Console

import config
from accelopt_core.catalogue import sweep
from accelopt_core.catalogue.explaining import LIMIT_S
from accelopt_core.catalogue.menu import CatalogueMenu
from accelopt_core.catalogue.proposer import catalogue_proposer
from accelopt_core.evaluation import Evaluation
from accelopt_core.loop import events
from accelopt_core.loop.choosing import Contender, TakingTurns, pulls_of
from accelopt_core.loop.lane import MOST_AT_ONCE
from accelopt_core.loop.rounds import BaselineRejected, Loop, LoopSettings, Past, RunResult
from accelopt_core.loop.screening import BEST_BY_SIMULATION, Guide
from accelopt_core.machine_facts import machine_facts
from accelopt_core.model.prompting import Dialect, PromptSettings, prompts_version
from accelopt_core.model.proposer import proposer_from_model
from accelopt_core.ports import (
    EvaluationLimits,
    LanguageModel,
    Role,
    Target,
    TargetError,
    TargetInfo,
    TargetMisconfigured,
    TaskFault,
    Usage,
)
from accelopt_core.proposer import Proposer
from accelopt_core.task import PrecisionPolicy, Task
from infra import migrating
from infra.calibration import calibrating
from infra.calibration import export as exporting
from infra.calibration.file import Calibrations
from infra.calibration.report import ConsoleView, print_outcome
from infra.doctor import DoctorReport
from infra.engines.engine_names import address_of
from infra.engines.examining import ExaminedNode, examine_nodes
from infra.engines.ray_engine import RayEngine
from infra.journal import utc_now
from infra.judging.simulator_toolchain import simulator_fingerprint
from infra.llm.contenders import Named
from infra.llm.ledger import Ledger, LedgerEntry, ModelBudget
from infra.llm.prices import SHIPPED_PRICES, load_prices
from infra.llm.provider import ProviderSettings
from infra.llm.recording import Exchange, exchange_to_json
from infra.llm.registry import provider_from_environment, settings_from_environment
from infra.llm.retry import Patience
from infra.llm.roles import models_for_roles
from infra.llm.stopping import Stopping
from infra.neuron.routes import SDK_OF_NKI, installed, machine_of
from infra.prediction.explaining import explain_end
from infra.prediction.predictor import WORKERS, Predictor
from infra.prediction.price_book import PriceBookFile
from infra.prediction.progress import PlanningWatch
from infra.runs.evaluation_store import EvaluationStore
from infra.runs.event_log import EventLog, Observers
from infra.runs.memory_file import MemoryFile
from infra.runs.proposer_memory import ProposerMemory
from infra.runs.residual_file import ResidualFile
from infra.runs.run_folder import Loaded, Manifest, RunFolder, RunJournal, find_run, new_run_id
from infra.runs.spending import Spending, TimeLimits
from infra.scratch_folder import clear_left_over
from infra.settings_reader import SettingsError
from infra.ssh.config import SshSettings
from infra.targets.local import LocalTarget
from infra.targets.metered import MeteredTarget
from infra.targets.on_engine import EngineTarget
from infra.targets.over_ssh import SshTarget
from infra.targets.pool import TargetPool
from infra.targets.remembering import RememberingTarget
from infra.tasks.kernel_file import kernel_text, surroundings_of
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.seed_index import TaskNotFound, find_reference, load_seed, task_from_files, task_from_text
from infra.terminal import report
from infra.terminal.dashboard import View, open_view
from infra.terminal.rejected import rejected
from infra.tracing.export import NotTraced, open_spans
from infra.tracing.spans import RunSpans
from ka_extensions.bandit import CostAware, Spent
from ka_extensions.divergence_guard import DivergenceGuard
from ka_extensions.idea_bans import BanRule
from nki_sim import ties
from nki_sim.calibration import calibrated_machine
from nki_sim.lint import LAST_PARSED, VERSIONS, valid_in
from nki_sim.reference import api_reference, instruction_list, nki_text


@dataclass(frozen=True)
class Problem:
    task: Task
    kernel: Path
    reference: Path | None
    """None where it is a function of the caller's."""
    source: str
    """What the run begins with."""
    text: str
    """The user's file: another where that was migrated."""
    notes: tuple[str, ...] = ()
    """For the user, at the beginning of a run."""

    @property
    def loaded(self) -> Loaded:
        return Loaded(self.task.around, tuple(preset.name for preset in self.task.presets), self.text)

    def rejected(self, evaluation: Evaluation) -> BaselineRejected:
        """Of the input kernel, in words of the user's files."""
        alone, rewritten = not self.task.around.neighbours, self.source != self.text
        kernel = report.shown_path(self.kernel)
        reference = report.shown_path(self.reference) if self.reference is not None else ""
        said = rejected(evaluation, kernel, reference, alone=alone, rewritten=rewritten)
        return BaselineRejected(evaluation, said)


@dataclass(frozen=True)
class FinishedRun:
    settings: config.Settings
    problem: Problem
    folder: RunFolder
    result: RunResult


@dataclass(frozen=True)
class Following:
    """Who follows a run beside its log, and who may end it."""

    open_view: Callable[[str], View] = open_view
    """By the setting `view`."""
    should_stop: Callable[[], bool] = lambda: False
    """Asked after each step; True ends the run there, saved, as Ctrl-C does."""
    takes_signals: bool = True
    """Whether Ctrl-C and SIGTERM let the step finish, and end the run then."""


A_PERSON = Following()
"""At the command line."""


def carry_out(
    invocation: config.Invocation, following: Following = A_PERSON, reference: str | None = None
) -> FinishedRun:
    """One run on one kernel, from its beginning or from where it was interrupted; best.diff is written.

    `reference`: the text of the reference module, where no file has it yet; the run's folder keeps it. Raises what is
    wrong before it begins (SettingsError, TaskNotFound, TaskInvalid, TaskFault, JournalError, TargetError, ModelError),
    and BaselineRejected.
    """
    cleared = clear_left_over()
    resumed = invocation.settings.run.resume
    if resumed is None:
        settings = quick_start(invocation)
        problem, folder = problem_of(settings, reference), None
        if reference is not None:
            run_id = settings.run.run_id or new_run_id(problem.task.name, utc_now())
            kept = RunFolder(settings.run.checkpoints / run_id).own_reference
            settings = replace(settings, run=replace(settings.run, run_id=run_id, problem=kept))
    else:
        folder = find_run(invocation.settings.run.checkpoints, resumed)
        settings = invocation.over(config.from_document(folder.config(), f"run {folder.run_id}"))
        problem = resumed_problem(settings, folder)
    with ExitStack() as stack:
        target = target_of(settings)
        stack.callback(target.close)
        info = target.describe()
        provider = _provider(settings)
        width = _width(settings, target, info.simulated, provider)
        settings = replace(settings, run=replace(settings.run, width=width))
        if folder is None:
            folder = _folder(settings, problem, info, provider)
            folder.load(problem.loaded)
            if reference is not None:
                folder.keep(folder.own_reference.name, reference)
        else:
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
        if cleared:
            observer.tell(events.Notice(cleared))
        for line in not_traced:
            observer.tell(events.Notice(line, "warning"))
        try:
            result = _optimize(settings, problem, provider, target, info, folder, observer, following, spans)
        except BaseException as error:
            log.trace(traceback.format_exc())
            folder.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", str(error))
            raise
        folder.end(result.ending.value, result.reason)
        observer.tell(events.RunEnded(result.ending, result.reason))
    report.write_diff(report.summary_of(folder))
    return FinishedRun(settings, problem, folder, result)


def _optimize(
    settings: config.Settings, problem: Problem, provider: str, target: Target, info: TargetInfo, folder: RunFolder,
    observer: Observers, following: Following, spans: RunSpans | None,
) -> RunResult:  # fmt: skip
    seconds_before = folder.seconds_used()
    spending = Spending(
        TimeLimits(settings.budget.max_hours, settings.budget.max_device_minutes), observer,
        seconds_before=seconds_before, on_time=folder.keep_time,
    )  # fmt: skip
    memory = MemoryFile(settings.run.memory, lambda line: observer.tell(events.Notice(line, "warning")))
    residuals = None if info.simulated else residuals_of(settings, info)
    with ExitStack() as stack:
        predictor = predictor_of(settings, problem.task, info, target)
        stack.callback(predictor.close)
        stopping = Stopping()
        proposer = _proposer(settings, problem, provider, info, folder, spending, observer, predictor, stopping, spans)
        proposer = _sweeping(proposer, _swept_settings(settings, provider), predictor, observer)
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
                width=loop_settings(settings, provider).candidates,
            )
        )
        for notice in _notices(settings, problem, provider, info):
            observer.tell(events.Notice(notice))
        store = EvaluationStore(settings.run.checkpoints, folder.run_id)
        spending.device_used(store.seconds())
        clock = target.clock if isinstance(target, EngineTarget) else time.monotonic
        metered = MeteredTarget(target, spending.device_used, clock)
        guide = _guide(predictor, info, loop_settings(settings, provider).candidates, target.width, observer)
        if guide is not None and residuals is not None:
            guide = replace(guide, earlier=residuals.of_other_runs(folder.run_id))
        watch = stack.enter_context(PlanningWatch(observer.tell, predictor))
        with _interruptible(observer, following, stopping) as interrupted:
            loop = Loop(
                problem.task,
                problem.source,
                RememberingTarget(metered, store, replay=settings.run.replay, clock=clock),
                proposer,
                RunJournal(folder, memory, residuals),
                spending,
                Observers(observer, watch),
                loop_settings(settings, provider),
                interrupted,
                _past(folder),
                guide=guide,
            )
            try:
                try:
                    result = loop.run()
                except BaselineRejected as error:
                    raise problem.rejected(error.evaluation) from None
                limit_s = LIMIT_S if provider == "catalogue" else min(LIMIT_S, settings.model.menu_s)
                if provider == SEVERAL:
                    pulls = pulls_of(result.attempts, result.baseline)
                    _proposer_memory(settings, folder, observer).record(pulls)
                with watch.over("what is left to gain"):
                    explain_end(problem.task, result, predictor, folder, observer.tell, limit_s)
                return result
            finally:
                spending.note_time()


def _spans() -> tuple[RunSpans | None, tuple[str, ...]]:
    """And why there are none, where the environment asks for them: a run goes on without."""
    try:
        return open_spans(os.environ, config.VERSION), ()
    except NotTraced as error:
        return None, (str(error),)


def _notices(settings: config.Settings, problem: Problem, provider: str, info: TargetInfo) -> Iterator[str]:
    if info.calibration is not None:
        yield f"simulated latencies are of {info.machine}, {info.calibration.label}"
    if provider == "catalogue" and settings.model.provider == "auto":
        yield (
            "no API key found, so the built-in catalogue proposes the changes; for a language model set "
            "ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENAI_BASE_URL"
        )
    yield from problem.notes
    if settings.run.preset == QUICK_START and settings.run.kernel is None:
        yield f"a quick start at {problem.task.full.describe()}; for NKIBench's shape add --preset full"


def _past(folder: RunFolder) -> Past | None:
    baseline = folder.baseline()
    return None if baseline is None else Past(baseline.result, folder.attempts())


def resumed_problem(settings: config.Settings, folder: RunFolder) -> Problem:
    """The kernel that the run began with, and its neighbours, even where the user's files have changed since."""
    if not folder.input_kernel.exists():
        return problem_of(settings)
    loaded = folder.loaded()
    if folder.own_reference.exists():  # also where the run's folder was moved since
        settings = replace(settings, run=replace(settings.run, problem=folder.own_reference))
    found = _task_and_kernel(settings, gone=loaded is not None)
    source = folder.input_kernel.read_text(encoding="utf-8")
    if loaded is None:
        return Problem(found.task, found.kernel, found.reference, source, source, found.notes)
    presets = tuple(preset for preset in found.task.presets if preset.name in loaded.presets)
    task = replace(found.task, presets=presets, around=loaded.around)
    return Problem(task, found.kernel, found.reference, source, loaded.text, found.notes)


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


@contextmanager
def _interruptible(observer: Observers, following: Following, stopping: Stopping) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the step finish; the second stops at once. SIGTERM, which nobody may be there to repeat,
    does not wait for a model to finish it."""
    asked = False
    if not following.takes_signals:
        yield following.should_stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        if number == signal.SIGTERM:
            stopping.asked = True
        again = "the same signal" if stopping.asked else "Ctrl-C"
        observer.tell(events.Notice(f"finishing this step, then saving; {again} again stops at once", "warning"))

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked or following.should_stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- what is optimised ------------------------------------------------------------------------------

QUICK_START = "medium"
"""The preset of a first try with no arguments: real, and over in a minute."""


def quick_start(invocation: config.Invocation) -> config.Settings:
    settings = invocation.settings
    if {"run.kernel", "run.task", "run.preset"} & set(invocation.origins):
        return settings
    return replace(settings, run=replace(settings.run, preset=QUICK_START))


def problem_of(settings: config.Settings, reference: str | None = None) -> Problem:
    """`reference`: its text, in place of the file that the settings name or that is found.

    Raises TaskInvalid where the kernel cannot be loaded as it is, with what to add to the command line.
    """
    found = _task_and_kernel(settings, reference=reference)
    kernel, text = found.kernel, kernel_text(found.kernel)
    around = surroundings_of(kernel, text, settings.run.function)
    problem = Problem(replace(found.task, around=around), kernel, found.reference, text, text, found.notes)
    if settings.run.migrate:
        return _migrated(problem, settings.run.view != "quiet")
    return _of_its_dialect(problem, simulated=not settings.target.host or settings.target.remote_simulator)


def _of_its_dialect(problem: Problem, simulated: bool) -> Problem:
    """The problem, with a word on what is not read everywhere. Raises TaskInvalid where nothing here reads it."""
    old = migrating.outdated(problem.text)
    if old is None:
        return problem
    said = f"{problem.kernel} is written in NKI {old.dialect}"
    if old.only_in_old_sdks and simulated:
        raise TaskInvalid(
            f"{said}, which only SDKs up to 2.26 run: --migrate rewrites it for NKI 0.7 and goes on with that (`python "
            f"-m nki_sim migrate {problem.kernel} --problem REF.py -o NEW.py` shows what that comes to)"
        )
    old_words = f"{said}, and NKI 0.7 does not read all of it; --migrate rewrites it first"
    return replace(problem, notes=(*problem.notes, old_words))


def _migrated(problem: Problem, aloud: bool) -> Problem:
    task, kernel = problem.task, problem.kernel
    if aloud:
        print(f"migrating {kernel.name} to NKI 0.7, on the inputs of its reference", file=sys.stderr)
    made = migrating.rewrite(kernel, problem.text, task)
    said = f"{kernel.name} {'was migrated to' if made.source != problem.text else 'needs no rewriting for'} NKI 0.7"
    presets = tuple(preset for preset in task.presets if preset.name in made.shapes)
    notes = (*problem.notes, f"{said}; {made.proof}" if made.proof else said, *made.left_out)
    return replace(problem, task=replace(task, presets=presets), source=made.source, notes=notes)


@dataclass(frozen=True)
class _Found:
    """What the settings name: a kernel's file, and what it is held against."""

    task: Task
    kernel: Path
    reference: Path | None
    """None where it is a function of the caller's."""
    notes: tuple[str, ...] = ()


def _task_and_kernel(settings: config.Settings, gone: bool = False, reference: str | None = None) -> _Found:
    """`gone`: the kernel's file may be, where its reference is named."""
    if settings.run.kernel is None:
        seed = load_seed(settings.run.task)
        return _Found(_adjusted(seed.task(), settings), seed.kernel_path, seed.reference_path)
    kernel = settings.run.kernel
    problem = settings.run.problem
    if not kernel.is_file() and not (gone and problem is not None):
        raise TaskNotFound(f"{kernel}: no such kernel file")
    if reference is not None:
        task = task_from_text(reference, f"the reference of {kernel.name}", kernel.stem)
        return _Found(_adjusted(task, settings), kernel, None)
    if problem is not None:
        return _Found(_adjusted(task_from_files(problem, name=kernel.stem), settings), kernel, problem)
    adopted = find_reference(kernel)
    said = f"reference: {report.shown_path(adopted.reference)} ({adopted.why})"
    return _Found(_adjusted(adopted.task, settings), kernel, adopted.reference, (said,))


def _adjusted(task: Task, settings: config.Settings) -> Task:
    wanted = settings.verification
    presets = {preset.name: preset for preset in task.presets}
    chosen = settings.run.preset or task.full.name
    if chosen not in presets:
        raise SettingsError(f"preset: {task.name} has no {chosen!r}, only {', '.join(presets)}")
    last = list(presets).index(chosen)
    return replace(
        task,
        presets=task.presets[: last + 1],
        seeds=wanted.seeds or task.seeds,
        tolerance=wanted.tolerance or task.tolerance,
        precision=PrecisionPolicy(wanted.precision) if wanted.precision else task.precision,
    )


# --- where --------------------------------------------------------------------------------------------


def target_of(settings: config.Settings, *, one_kernel: bool = False) -> Target:
    """`one_kernel`: all that it will be asked for is one evaluation."""
    wanted = settings.target
    address = address_of(wanted.engine)
    if address is not None:
        return _cluster_target(settings, RayEngine(address))
    if not wanted.host:
        calibration = calibrations_of(settings).for_simulator(wanted.machine)
        return LocalTarget("simulator", wanted.machine, calibration, one_kernel=one_kernel)
    return TargetPool([host_target(settings, host) for host in wanted.host])


def _cluster_target(settings: config.Settings, engine: RayEngine) -> EngineTarget:
    wanted, calibrations = settings.target, calibrations_of(settings)
    if not wanted.neuron_cores:
        return EngineTarget(engine, "simulator", wanted.machine, calibrations.for_simulator(wanted.machine))
    try:
        there = engine.neuron_cores
        if there < wanted.neuron_cores:
            raise TargetMisconfigured(
                f"{engine.name} has {there} neuron_cores, and --neuron-cores {wanted.neuron_cores} asks for more: "
                "start its nodes on Trainium instances, where Ray finds them by itself"
            )
    except TargetError:
        engine.close()
        raise
    return EngineTarget(
        engine, "auto", wanted.machine, calibration_of=calibrations.for_device, neuron_cores=wanted.neuron_cores,
        groups=there // wanted.neuron_cores, core_wait_s=wanted.core_wait_s,
    )  # fmt: skip


def examined_nodes(settings: config.Settings) -> Iterator[ExaminedNode]:
    """Of the cluster. Raises TargetError where it is out of reach."""
    address = address_of(settings.target.engine)
    assert address is not None, "asked for with an engine only"
    with closing(RayEngine(address)) as engine:
        yield from examine_nodes(engine, settings.target.machine)


def host_target(settings: config.Settings, host: str) -> SshTarget:
    wanted = settings.target
    ssh = SshSettings(
        config_file=wanted.ssh_config,
        known_hosts_files=(wanted.known_hosts,) if wanted.known_hosts else (),
        identity_files=(wanted.identity,) if wanted.identity else (),
        accept_new_host_key=wanted.accept_new_host_key,
        connect_timeout_s=wanted.connect_timeout_s,
        reconnect_for_s=wanted.reconnect_s,
    )
    calibrations = calibrations_of(settings)
    destination = f"{host}:{wanted.ssh_port}" if wanted.ssh_port is not None else host
    return SshTarget(
        destination,
        machine=wanted.machine,
        remote_simulator=wanted.remote_simulator,
        remote_python=wanted.remote_python,
        settings=ssh,
        root=wanted.remote_dir,
        cores=wanted.cores,
        core_wait_s=wanted.core_wait_s,
        calibration=calibrations.for_simulator(wanted.machine) if wanted.remote_simulator else None,
        calibration_of=calibrations.for_device,
    )


CHOSEN_FROM = 2 * BEST_BY_SIMULATION
"""Ideas of the catalogue that a round on a device has to choose from: they cost no device time, and what it showed so
far may put another one first."""


def _width(settings: config.Settings, target: Target, simulated: bool, provider: str) -> int:
    """Of a round: what the user wants, or enough for a device to choose from. With a language model each candidate
    costs calls, so none is added. A search with an archive tries the same candidates however many are at work at once,
    so an engine is used whole."""
    if settings.run.width:
        return settings.run.width
    if isinstance(target, EngineTarget) and loop_settings(settings, provider).by_archive:
        return min(target.places, MOST_AT_ONCE)
    chosen = CHOSEN_FROM if provider == "catalogue" and not simulated else 1
    return min(max(target.width, chosen), MOST_AT_ONCE)


def calibrations_of(settings: config.Settings) -> Calibrations:
    wanted = settings.calibration
    return Calibrations(wanted.calibrations, wanted.calibration, wanted.shipped_model)


def _folder(settings: config.Settings, problem: Problem, info: TargetInfo, provider: str) -> RunFolder:
    manifest = Manifest(
        run_id=settings.run.run_id or new_run_id(problem.task.name, utc_now()),
        created=utc_now().isoformat(timespec="milliseconds"),
        task=problem.task.name,
        shape=problem.task.full.describe(),
        kernel=str(problem.kernel.resolve()),
        target=info,
        proposer=", ".join(each.name for each in settings.model.take_turns) or provider,
        versions={
            "nki-optimizer": config.VERSION,
            "python": platform.python_version(),
            "prompts": prompts_version(),
        },
        rounds=settings.run.rounds,
    )
    return RunFolder.create(settings.run.checkpoints, manifest, config.to_document(settings))


EXPLORATION_STEPS = 2
"""With a language model, unless the user says otherwise: one over a slower kernel, one that pays."""


def loop_settings(settings: config.Settings, provider: str) -> LoopSettings:
    target, verification, guard = settings.target, settings.verification, settings.guard
    exploration = guard.max_exploration
    if exploration is None:
        exploration = 0 if provider == "catalogue" else EXPLORATION_STEPS
    return LoopSettings(
        rounds=settings.run.rounds,
        patience=settings.run.patience,
        max_repairs=guard.max_repairs,
        width=settings.run.width or 1,
        beam=settings.run.beam,
        plans=settings.run.plans,
        samples=settings.run.samples,
        guard=DivergenceGuard(guard.revert_above, guard.noise, exploration),
        bans=BanRule(guard.ban_after, guard.ban_rounds),
        recurring_after=guard.recurring_after,
        model_failures=guard.model_failures * max(1, len(settings.model.proposers)),
        reflexion_window=guard.reflexion_window,
        experiences=guard.experiences,
        secret_seeds=verification.extra_seeds,
        bound_percent=guard.stop_at_percent,
        limits=EvaluationLimits(
            target.compile_timeout_s, target.run_timeout_s, int(target.memory_gib * (1 << 30)),
            verification.warmup, verification.iterations, verification.max_spread, verification.remeasure,
        ),
    )  # fmt: skip


# --- who proposes ---------------------------------------------------------------------------------


SEVERAL = "several"
"""In place of a provider, where proposers take turns."""


def _provider(settings: config.Settings) -> str:
    if settings.model.proposers:
        return SEVERAL
    if settings.model.provider != "auto":
        return settings.model.provider
    return provider_from_environment() or "catalogue"


def _proposer(
    settings: config.Settings,
    problem: Problem,
    provider: str,
    info: TargetInfo,
    folder: RunFolder,
    spending: Spending,
    observer: Observers,
    predictor: Predictor,
    stopping: Stopping,
    spans: RunSpans | None,
) -> Proposer:
    """Raises a ModelError where a model cannot be built, and SettingsError where its cost cannot be kept."""
    if provider == "catalogue":
        return _catalogue(predictor)
    ledger = _ledger(settings, folder, spending)
    wanted = settings.model
    folders = [folder.path]
    if wanted.replies is not None and provider == "replay":
        folders += [wanted.replies, wanted.replies.parent]
    menu = _menu(settings, folders, predictor)
    if provider != SEVERAL:
        told = _told(settings, observer, stopping)
        role_models = {
            Role.PLANNER: wanted.planner_model,
            Role.EXECUTOR: wanted.executor_model,
            Role.SUMMARIZER: wanted.summarizer_model,
            Role.REFLEXION: wanted.reflexion_model,
        }
        named = Named(provider, provider)
        models = _models(named, replace(told, model=wanted.model), ledger, folder, spans, role_models=role_models)
        return _model_proposer(settings, problem, provider, info, models, menu)
    contenders = []
    for each in wanted.take_turns:
        if not each.is_model:
            typical, predicted_us = CATALOGUE_ROUND, menu.best_gain_us if menu is not None else None
            contenders.append(Contender(_catalogue(predictor), typical, predicted_us))
            continue
        told = each.settings(_told(settings, observer, stopping))
        if each.provider != wanted.provider:  # a base URL is of the one provider that is named beside it
            told = replace(told, base_url=None)
        models = _models(each, told, ledger, folder, spans, proposer=each.name)
        made = _model_proposer(settings, problem, each.provider, info, models, menu)
        usd = ledger.price_usd(models[Role.EXECUTOR], TYPICAL_ROUND)
        if usd is None:
            usd = 0.0
            observer.tell(events.Notice(f"{each.name}: its price is unknown, so it counts as free but for its time"))
        contender = replace(made, name=each.name, spent_usd=ledger.cost_usd)
        contenders.append(Contender(contender, Spent(usd, TYPICAL_ROUND_S)))
    before = _proposer_memory(settings, folder, observer)
    turns = TakingTurns(
        contenders, CostAware(wanted.usd_per_hour), folder, folder.run_id, before.tracks, before.record,
        lambda line: observer.tell(events.Notice(line, "warning")), settings.run.patience,
    )  # fmt: skip
    return turns.together()


TYPICAL_ROUND = Usage(60_000, 20_000)
"""Of the four calls that a round takes when nothing is repaired: what a model is taken to cost before it was asked."""
TYPICAL_ROUND_S = 180.0
CATALOGUE_ROUND = Spent(0.0, 60.0)


def _proposer_memory(settings: config.Settings, folder: RunFolder, observer: Observers) -> ProposerMemory:
    return ProposerMemory(
        settings.run.memory, folder.run_id, lambda line: observer.tell(events.Notice(line, "warning"))
    )


def _catalogue(predictor: Predictor) -> Proposer:
    within = ties.shipped().within
    return catalogue_proposer(predictor, datetime.date.today, tie=within, arguments=predictor.arguments)


def _ledger(settings: config.Settings, folder: RunFolder, spending: Spending) -> Ledger:
    def spent(entry: LedgerEntry) -> None:
        folder.spend(entry)
        spending.model_called(entry)

    ledger = Ledger(
        load_prices(settings.model.prices or SHIPPED_PRICES),
        ModelBudget(settings.budget.max_cost_usd, settings.budget.max_tokens),
        entries=folder.model_calls(),
        on_entry=spent,
    )
    spending.attach(ledger)
    return ledger


def _told(settings: config.Settings, observer: Observers, stopping: Stopping) -> ProviderSettings:
    """What every model is told, whosever it is."""
    wanted = settings.model
    return ProviderSettings(
        base_url=wanted.base_url,
        timeout_s=wanted.reply_timeout_s,
        patience=Patience(
            sleep=stopping.sleep, on_wait=lambda line: observer.tell(events.Notice(line)), stopping=stopping
        ),
        model_command=wanted.model_command,
        mailbox=wanted.mailbox,
        replies=wanted.replies,
    )


def _models(
    named: Named,
    told: ProviderSettings,
    ledger: Ledger,
    folder: RunFolder,
    spans: RunSpans | None,
    *,
    role_models: Mapping[Role, str | None] | None = None,
    proposer: str = "",
) -> dict[Role, LanguageModel]:
    """`proposer`: for whom they are asked, where several take turns."""
    model_settings = settings_from_environment(named.provider, told)
    secrets = [model_settings.api_key] if model_settings.api_key else []

    def keep(exchange: Exchange) -> None:
        folder.keep_exchange(exchange.request.role.value, exchange_to_json(exchange, secrets))
        if spans is not None:
            spans.called(exchange, named.provider)

    models = models_for_roles(
        named.provider,
        model_settings,
        ledger,
        keep,
        role_models={role: name for role, name in (role_models or {}).items() if name},
        recorded=folder.exchanges(),
        proposer=proposer,
    )
    unpriced = ledger.unpriced(models.values())
    if unpriced:
        raise SettingsError(
            f"max-cost: no price is known of {', '.join(unpriced)}, so no cost can be kept: add a "
            '[models."NAME"] to a price file and name it with --prices, or limit --max-tokens instead'
        )
    return models


def _menu(settings: config.Settings, folders: list[Path], predictor: Predictor) -> CatalogueMenu | None:
    """`folders`: where prices of it may be recorded; new ones go to the first."""
    if settings.model.menu_s <= 0:
        return None
    return CatalogueMenu(predictor, settings.model.menu_s, PriceBookFile(folders), tie=ties.shipped().within)


def _model_proposer(
    settings: config.Settings,
    problem: Problem,
    provider: str,
    info: TargetInfo,
    models: Mapping[Role, LanguageModel],
    menu: CatalogueMenu | None,
) -> Proposer:
    versions = nki_versions(info, problem.source)
    return proposer_from_model(
        models,
        lambda source, also: api_reference(source, info.machine, versions, also),
        instruction_list(info.machine),
        replace(_prompt_settings(settings, info, versions), sweeps=_swept_settings(settings, provider) >= 2),
        datetime.date.today,
        menu,
    )


def _swept_settings(settings: config.Settings, provider: str) -> int:
    """Of a kernel that was written; fewer than two are none."""
    if settings.run.sweep is not None:
        return settings.run.sweep
    return sweep.MOST if loop_settings(settings, provider).by_archive else 0


def _sweeping(proposer: Proposer, most: int, predictor: Predictor, observer: Observers) -> Proposer:
    if most < 2:
        return proposer
    swept = sweep.SweepingExecutor(proposer.executor, predictor, most, lambda line: observer.tell(events.Notice(line)))
    return replace(proposer, executor=swept)


MOST_PRICED_ON_A_CLUSTER = 64
"""Kernels at a time; a planner has seldom more to price, and each worker's first takes it a second longer."""


def predictor_of(settings: config.Settings, task: Task, info: TargetInfo, target: Target | None = None) -> Predictor:
    """target: kernels are priced on its engine, where it has one; else on this machine."""
    engine = target.engine if isinstance(target, EngineTarget) else None
    on_cluster = address_of(settings.target.engine) is not None
    return Predictor(
        task, info.machine, settings.target.compile_timeout_s, MOST_PRICED_ON_A_CLUSTER if on_cluster else WORKERS,
        info.calibration, engine,
    )  # fmt: skip


def _guide(predictor: Predictor, info: TargetInfo, lanes: int, at_once: int, observer: Observers) -> Guide | None:
    """None where there is nothing to tell apart or to choose, or nobody here who could: the user is told then."""
    if info.simulated and lanes == 1:
        return None
    try:
        predictor.arguments()
    except (TargetError, TaskFault) as error:
        every = "every kernel is evaluated" if info.simulated else "every kernel goes to the device"
        observer.tell(
            events.Notice(f"the simulator cannot be asked about this task here, so {every}: {error}", "warning")
        )
        return None
    within = ties.shipped().within
    return Guide(predictor, within, prices=not info.simulated, least=max(BEST_BY_SIMULATION, at_once))


def residuals_of(settings: config.Settings, info: TargetInfo) -> ResidualFile:
    """What that device took for what is predicted here."""
    return ResidualFile(settings.run.memory, info.fingerprint, simulator_fingerprint(info.machine, info.calibration))


def nki_versions(info: TargetInfo, source: str) -> tuple[str, ...]:
    """What candidates are to be valid in: the device's NKI, or else every one that the user's kernel is valid in."""
    there = next((f"{a}.{b}" for (a, b), sdk in SDK_OF_NKI.items() if sdk == info.installed.sdk), "")
    return (there,) if there in VERSIONS else valid_in(source)


def _prompt_settings(settings: config.Settings, info: TargetInfo, versions: tuple[str, ...]) -> PromptSettings:
    longest, temperature = settings.model.max_reply_tokens, settings.model.temperature
    core = calibrated_machine(info.machine, info.calibration)
    traced = VERSIONS.index(versions[0]) > VERSIONS.index(LAST_PARSED)
    told = PromptSettings(machine_facts(core), Dialect(nki_text(versions), traced), temperature=temperature)
    return told if longest is None else replace(told, max_tokens={role: longest for role in Role})


# --- calibrating ------------------------------------------------------------------------------------


def calibrate(settings: config.Settings, console: Console) -> bool:
    """Whether a calibration is kept. Raises SettingsError, TargetError and JournalError."""
    wanted = settings.calibration
    if len(settings.target.host) != 1:
        raise SettingsError("calibrate: on which one device? orchestrator.py calibrate USER@HOST")
    (host,) = settings.target.host
    as_shipped = replace(settings, calibration=replace(wanted, calibration=None, shipped_model=True))
    target, view = host_target(as_shipped, host), ConsoleView(console)
    try:
        outcome = calibrating.calibrate(
            target,
            Calibrations(wanted.calibrations),
            budget_s=60 * wanted.calibrate_minutes,
            again=wanted.calibrate_again,
            view=view,
        )
    finally:
        view.close()
    print_outcome(console, outcome, host)
    return outcome.path is not None


def export_measurements(settings: config.Settings) -> str:
    """Writes the newest measurements, or those beside the named calibration, as a table; says what it did."""
    wanted = settings.calibration
    assert wanted.export is not None
    beside = wanted.calibration and wanted.calibration.with_suffix(".rows.jsonl")
    return exporting.export(wanted.export, beside, wanted.calibrations)


def calibration_of_host(settings: config.Settings, host: str, found: DoctorReport) -> str:
    """For the doctor: what predictions on that host rest on."""
    name = machine_of(found.instance_type)
    assert name is not None, "a device that evaluates is a known machine"
    calibration = calibrations_of(settings).for_device(name, installed(dict(found.packages), found.instance_type))
    if calibration is not None:
        return calibration.line
    return f"none; `orchestrator.py calibrate {host}` measures this machine's own constants in ten minutes"
