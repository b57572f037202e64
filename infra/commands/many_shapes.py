"""One kernel for a set of shapes: a run for each, and one file that chooses among what they came to by shape.

What a run has found is in its folder, and the joined kernel's evaluations are in the set's: after `kill -9` the same
set goes on where it stopped.
"""

from __future__ import annotations

import difflib
import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

import config
from accelopt_core.dispatch.joining import check
from accelopt_core.dispatch.kernel_file import CannotJoin
from accelopt_core.dispatch.weights import ShapeSet
from accelopt_core.evaluation import Step
from accelopt_core.loop.events import Ending
from accelopt_core.loop.rounds import BaselineRejected
from accelopt_core.task import Task
from accelopt_core.toolchain import ArgumentSpec, TensorArgument
from infra.assembly.following import A_PERSON, Following
from infra.assembly.problem import Problem, nki_problem_of
from infra.assembly.rounds import limits_of
from infra.assembly.targets import predictor_of, target_of
from infra.commands import optimize
from infra.commands.joined_kernel import JoinedKernel, Joining, Tuned
from infra.commands.optimize import write_back
from infra.commands.profile import tensor
from infra.journal import JournalError, utc_now
from infra.prediction.predictor import kernel_arguments
from infra.runs import suite
from infra.runs.evaluation_store import EvaluationStore
from infra.runs.run_folder import RunFolder, RunNotFound, new_run_id
from infra.runs.shape_set import SetFolder, SetManifest, SetRow, SetTable, find_set, latest_set
from infra.settings_reader import ARGUMENT, SettingsError
from infra.targets.remembering import RememberingTarget
from infra.tasks.model_shapes import ModelRow, shapes_text
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.shapes_file import model_rows, read_shapes
from infra.terminal import report
from nki_sim.timing import ties

FLAG = "--shapes"
"""Where the settings of a set's runs are said to come from, so that they hold for a run that is gone on with too."""


@dataclass(frozen=True)
class SetOutcome:
    folder: SetFolder
    ending: Ending
    """FINISHED where every shape that has a result is in the joined kernel."""
    table: SetTable
    written_over: Path | None = None
    """The copy of the user's own file, where the joined kernel was written over that."""


def wants_a_set(invocation: config.Invocation) -> bool:
    """Whether a command line is about a set of shapes, and not about one run."""
    wanted = invocation.settings.run
    if wanted.resume is not None and find_set(wanted.checkpoints, wanted.resume) is not None:
        return wanted.preset is None
    if wanted.resume is not None and suite.has_begun(RunFolder(wanted.checkpoints / wanted.resume)):
        return False  # also where a settings file names a table
    return wanted.shapes is not None and wanted.preset is None


def carried_out(invocation: config.Invocation, console: Console, following: Following = A_PERSON) -> SetOutcome:
    """A set from its beginning, or from where it was interrupted. Lines for each shape go to `console`.

    Raises what is wrong before it begins (SettingsError, TaskInvalid, TaskNotFound, TaskFault, JournalError,
    TargetError, ModelError), and TargetError and JournalError on the way.
    """
    with ExitStack() as stack:
        begun = _begun(invocation, stack)
        _say_how_to_go_on(console, begun.folder)
        done = begun.folder.table()
        if done is not None and _is_of_its_runs(done, begun):
            return SetOutcome(begun.folder, Ending.FINISHED, done, _written_over(begun, begun.folder.joined()))
        if begun.is_written_over:
            raise _changed(begun.folder)
        try:
            ending, missing = _runs(begun, console, following)
        except KeyboardInterrupt:  # between two runs
            ending, missing = Ending.INTERRUPTED, {}
        table = table_of(begun.folder)
        results = {shape.name: _tuned(begun.folder.run(shape.name)) for shape in begun.shapes.shapes}
        tuned = {name: found for name, found in results.items() if found is not None}
        if ending is Ending.INTERRUPTED or not tuned:
            return SetOutcome(begun.folder, ending, replace(table, missing={**table.missing, **missing}))
        try:
            made = _joined(begun, tuned, console, stack)
        except KeyboardInterrupt:  # what was verified is kept
            return SetOutcome(begun.folder, Ending.INTERRUPTED, replace(table, missing={**table.missing, **missing}))
        table = replace(made.table, missing=missing, seconds=_seconds(begun.folder, begun.shapes))
        begun.folder.end(made.source, _diff(begun.problem, made.source), table)
        return SetOutcome(begun.folder, ending, table, _written_over(begun, made.source))


def _written_over(begun: _Begun, joined: str) -> Path | None:
    """The copy of the user's file, where the joined kernel is to take its place and has not yet."""
    if not begun.settings.run.in_place or joined == begun.problem.text:
        return None
    return write_back(begun.problem.kernel, begun.problem.text, joined)


def table_of(folder: SetFolder) -> SetTable:
    """What a set came to, or has come to so far. Raises RunNotFound where nothing was measured, and JournalError."""
    done = folder.table()
    if done is not None:
        return done
    shapes = folder.manifest().shapes
    tuned = {shape.name: _tuned(folder.run(shape.name)) for shape in shapes.shapes}
    there = {name: found for name, found in tuned.items() if found is not None}
    first = next(iter(there.values()), None)
    missing = {name: _why_missing(folder.run(name)) for name, found in tuned.items() if found is None}
    if first is None:
        return SetTable("", True, "", shapes.counting, (), (), missing)
    calls = shapes.calls({name: found.input_us for name, found in there.items()})
    rows = tuple(
        SetRow(
            shape.name, shape.preset.describe(), shape.weight, calls[shape.name], there[shape.name].input_us,
            there[shape.name].best.latency_us, None, 0,
        )
        for shape in shapes.shapes
        if shape.name in there
    )  # fmt: skip
    result = first.baseline
    return SetTable(
        result.machine, result.simulated, result.caveat, shapes.counting, rows, (), missing,
        seconds=_seconds(folder, shapes),
    )  # fmt: skip


# --- its beginning --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Begun:
    invocation: config.Invocation
    settings: config.Settings
    folder: SetFolder
    problem: Problem
    """At the reference's own presets."""
    shapes: ShapeSet
    arguments: dict[str, tuple[ArgumentSpec, ...]]
    is_written_over: bool = False
    """The user's file holds the joined kernel already, and not what the set began with."""


def _begun(invocation: config.Invocation, stack: ExitStack) -> _Begun:
    wanted = invocation.settings.run
    if wanted.resume is None:
        return _new(invocation, stack)
    folder = latest_set(wanted.checkpoints) if wanted.shapes is not None and wanted.resume == config.LATEST else None
    folder = folder or find_set(wanted.checkpoints, wanted.resume)
    if folder is None:
        raise RunNotFound(f"{wanted.resume!r} is no set of shapes in {wanted.checkpoints}: `runs` lists what there is")
    settings = invocation.over(config.from_document(folder.config(), f"set {folder.set_id}"))
    settings = replace(settings, run=replace(settings.run, resume=None, shapes=folder.shapes))
    folder.hold()
    stack.callback(folder.close)
    manifest = folder.manifest()
    problem, shapes, arguments = _asked(settings, folder.shapes)
    said = invocation.origins.get("run.shapes", "").startswith(("--", ARGUMENT)) and wanted.shapes
    given = read_shapes(said, problem.task, problem.kernel) if said else shapes
    is_written_over = manifest.task_hash != _hash(problem) and settings.run.in_place and problem.text == folder.joined()
    if (manifest.task_hash != _hash(problem) and not is_written_over) or not manifest.shapes == shapes == given:
        raise _changed(folder)
    return _Begun(invocation, settings, folder, problem, shapes, arguments, is_written_over)


def _changed(folder: SetFolder) -> JournalError:
    return JournalError(
        f"the kernel, its reference or its shapes are not what they were when set {folder.set_id} began: put them "
        "back, or start a new set"
    )


def _new(invocation: config.Invocation, stack: ExitStack) -> _Begun:
    settings = invocation.settings
    assert settings.run.shapes is not None
    problem, shapes, arguments = _asked(settings, settings.run.shapes)
    now = utc_now()
    folder = SetFolder(settings.run.checkpoints, settings.run.run_id or new_run_id(problem.task.name, now))
    _check_names(folder, shapes)
    manifest = SetManifest(
        folder.set_id, now.isoformat(timespec="milliseconds"), str(problem.kernel.resolve()), problem.task.name,
        _hash(problem), shapes,
    )  # fmt: skip
    of_model = model_rows(settings.run.shapes, problem.kernel)
    text = shapes_text(of_model) if of_model is not None else settings.run.shapes.read_text(encoding="utf-8")
    settings = replace(settings, run=replace(settings.run, run_id=folder.set_id, shapes=folder.shapes.absolute()))
    folder.create(manifest, text, config.to_document(settings))
    stack.callback(folder.close)
    return _Begun(invocation, settings, folder, problem, shapes, arguments)


def _check_names(folder: SetFolder, shapes: ShapeSet) -> None:
    """Raises SettingsError and JournalError where its runs cannot be called as they are to be."""
    for shape in shapes.shapes:
        run = folder.run(shape.name)
        if len(run.run_id) > config.LONGEST_RUN_ID:
            raise SettingsError(
                f"run-id: {run.run_id!r} would be one of its runs, and is longer than {config.LONGEST_RUN_ID} "
                "characters: choose a shorter one"
            )
        if suite.has_begun(run):
            raise JournalError(f"{run.path} is there already, and no run of this set: choose another --run-id")


def _asked(settings: config.Settings, table: Path) -> tuple[Problem, ShapeSet, dict[str, tuple[ArgumentSpec, ...]]]:
    """What there is to optimize, and the kernel's arguments at each shape. Raises what is wrong with any of it."""
    problem = nki_problem_of(replace(settings, run=replace(settings.run, shapes=None, preset=None)), "shapes")
    shapes = read_shapes(table, problem.task, problem.kernel)
    try:
        check(problem.source, problem.task.around.entry_points)
    except CannotJoin as error:
        raise TaskInvalid(
            f"{problem.kernel}: nothing can be joined to it: {error}; --shapes {table} --preset NAME runs one shape"
        ) from None
    everything: Task = replace(problem.task, presets=tuple(shape.preset for shape in shapes.shapes))
    names = [shape.name for shape in shapes.shapes]
    arguments = dict(zip(names, kernel_arguments(everything)))
    for number, name in enumerate(names):
        alike = next((other for other in names[:number] if arguments[other] == arguments[name]), None)
        if alike is not None:
            raise TaskInvalid(f"{table}: {alike} and {name} give the kernel the same arguments: leave one away")
    for row, given in zip(model_rows(table, problem.kernel) or (), arguments.values()):
        _check_tensors(row, given)
    return problem, shapes, arguments


def _check_tensors(row: ModelRow, given: tuple[ArgumentSpec, ...]) -> None:
    """Raises TaskInvalid where a model's table says other tensors than its reference makes."""
    makes = [each for each in given if isinstance(each, TensorArgument)]
    if row.tensors and [tensor("shapes", each) for each in row.tensors] != makes:
        made = ", ".join(f"{'x'.join(map(str, each.shape))}:{each.dtype}" for each in makes)
        raise TaskInvalid(
            f"{row.where}: at these values the reference makes {made}, and the table says {', '.join(row.tensors)}: "
            "correct one of them"
        )


def _hash(problem: Problem) -> str:
    return hashlib.sha256(f"{problem.task.content_hash}\n{problem.source}".encode()).hexdigest()[:16]


def _say_how_to_go_on(console: Console, folder: SetFolder) -> None:
    console.print(f"set {folder.set_id}; if it is interrupted: --resume {folder.set_id}", soft_wrap=True)


# --- its runs -------------------------------------------------------------------------------------


def _runs(begun: _Begun, console: Console, following: Following) -> tuple[Ending, dict[str, str]]:
    """One after the other, less those that are finished; how they ended, and the shapes without a result."""
    missing: dict[str, str] = {}
    ending = Ending.FINISHED
    for shape in begun.shapes.shapes:
        folder = begun.folder.run(shape.name)
        if _is_open(folder):
            try:
                outcome = optimize.carried_out(_of_shape(begun, shape.name, folder), following)
            except BaselineRejected as error:
                missing[shape.name] = str(error)
                console.print(f"{shape.name}: {error}", soft_wrap=True, markup=False, highlight=False)
                continue
            if outcome.ending is not Ending.FINISHED:
                ending = outcome.ending
        console.print(f"{shape.name:24}", end="", highlight=False)
        report.print_line(console, report.summary_of(folder))
        if ending is Ending.INTERRUPTED:
            break
    return ending, missing


def _is_of_its_runs(table: SetTable, begun: _Begun) -> bool:
    """Whether it has what they came to; one of them may have been given more rounds since."""
    known = {row.name for row in table.rows} | set(table.missing)
    if not table.is_complete or any(shape.name not in known for shape in begun.shapes.shapes):
        return False
    for row in table.rows:
        run = begun.folder.run(row.name)
        tuned = None if _is_open(run) else _tuned(run)
        if tuned is None or tuned.best.latency_us != row.alone_us:
            return False
    return True


def _is_open(folder: RunFolder) -> bool:
    return not (suite.has_begun(folder) and folder.manifest().status == "finished")


def _of_shape(begun: _Begun, name: str, folder: RunFolder) -> config.Invocation:
    given = begun.settings.run
    rounds = given.rounds if "run.rounds" in begun.invocation.origins else suite.ROUNDS
    resume = folder.run_id if suite.has_begun(folder) else None
    run = replace(given, preset=name, run_id=folder.run_id, resume=resume, rounds=rounds, in_place=False)
    said = {f"run.{each}": FLAG for each in ("shapes", "preset", "rounds", "in_place")}
    return replace(
        begun.invocation, settings=replace(begun.settings, run=run), origins={**begun.invocation.origins, **said}
    )


def _tuned(folder: RunFolder) -> Tuned | None:
    """None where its input kernel was not measured."""
    if not suite.has_begun(folder):
        return None
    baseline, winner = folder.baseline(), folder.winner()
    if baseline is None or winner is None:
        return None
    return Tuned(baseline.result, winner.candidate.source, winner.result)


def _why_missing(folder: RunFolder) -> str:
    if not suite.has_begun(folder):
        return "not begun"
    return folder.manifest().reason or "not measured yet"


def _seconds(folder: SetFolder, shapes: ShapeSet) -> float:
    runs = (folder.run(shape.name) for shape in shapes.shapes)
    joined = EvaluationStore(folder.path.parent, folder.set_id).seconds()
    return joined + sum(run.seconds_used() for run in runs if suite.has_begun(run))


# --- the joined kernel ----------------------------------------------------------------------------


def _joined(begun: _Begun, tuned: dict[str, Tuned], console: Console, stack: ExitStack) -> JoinedKernel:
    settings = begun.settings
    store = EvaluationStore(settings.run.checkpoints, begun.folder.set_id)
    target = target_of(settings)
    stack.callback(target.close)
    info = target.describe()

    def told(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False, highlight=False)

    def progress(step: Step, detail: str) -> None:
        """The lines of `told` are enough."""

    return Joining(
        begun.problem.task, begun.shapes, begun.problem.source, tuned, begun.arguments,
        RememberingTarget(target, store), lambda task: predictor_of(settings, task, info, target),
        limits_of(settings), settings.verification.extra_seeds, ties.shipped().within, progress, told,
    ).kernel()  # fmt: skip


def _diff(problem: Problem, source: str) -> str:
    lines = difflib.unified_diff(
        problem.source.splitlines(), source.splitlines(), problem.kernel.name, "best_kernel.py", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)
