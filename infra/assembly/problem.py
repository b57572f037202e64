"""What a run optimizes: a kernel and what it is held against, as settings name them or as a run's folder kept them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import config
from accelopt_core.dispatch.weights import names_of
from accelopt_core.evaluation import Evaluation
from accelopt_core.language import Language
from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.plugin import LanguagePlugin, how_to_add, plugin_of_file, plugins
from accelopt_core.languages.registry import language_named, language_of
from accelopt_core.loop.rounds import BaselineRejected
from accelopt_core.task import PrecisionPolicy, Task
from infra.assembly import migrating
from infra.assembly.language_parts import GivenKernel, Origin
from infra.assembly.languages import parts_of_plugin
from infra.runs.run_folder import Loaded, RunFolder
from infra.settings_reader import SettingsError
from infra.tasks.kernel_file import kernel_text, surroundings_of
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.seed_index import TaskNotFound, find_reference, load_seed, task_from_files, task_from_text
from infra.tasks.shapes_file import at_shape, read_shapes
from infra.terminal import report
from infra.terminal.rejected import rejected


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
    written: str | None = None
    """The reference module's text, where a plugin made it: no file has it yet."""
    origin: Origin | None = None
    """Where the task is another project's."""
    shape: tuple[str, ...] = ()
    """As `--shape` named it."""

    def settled(self, settings: config.Settings) -> config.Settings:
        """With the language that the kernel told, where nobody named one."""
        return replace(settings, run=replace(settings.run, language=self.task.language))

    @property
    def loaded(self) -> Loaded:
        return Loaded(self.task.around, tuple(preset.name for preset in self.task.presets), self.text)

    def rejected(self, evaluation: Evaluation) -> BaselineRejected:
        """Of the input kernel, in words of the user's files."""
        alone = not self.task.around.neighbours and self.task.language == NKI.key  # what it suggests is nki_sim's
        rewritten = self.source != self.text
        kernel = report.shown_path(self.kernel)
        reference = report.shown_path(self.reference) if self.reference is not None else ""
        precision = self.task.precision
        said = rejected(
            evaluation, kernel, reference, alone=alone, rewritten=rewritten, precision=precision, shape=self.shape
        )
        return BaselineRejected(evaluation, said)


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
    kernel, given = found.kernel, found.given
    text = kernel_text(kernel) if given is None else given.text
    language = _language(settings, text)
    if given is None:
        around = surroundings_of(kernel, text, settings.run.function, language)
    else:
        around = given.around
    if found.origin is not None and language.key != found.language:
        wanted = language_named(found.language).name
        raise TaskInvalid(f"{kernel}: a {language.name} kernel, and {found.origin.name} is for {wanted}'s")
    task = replace(found.task, around=around, language=language.key)
    written, origin, shape = found.written, found.origin, settings.run.shape
    problem = Problem(task, kernel, found.reference, text, text, found.notes, written, origin, shape)
    if language is not NKI:
        if settings.run.migrate:
            raise SettingsError(f"migrate: {kernel} is a {language.name} kernel, and --migrate is for older NKI")
        return problem
    if settings.run.migrate:
        return _migrated(problem, settings.run.view != "quiet")
    return _of_its_dialect(problem, simulated=not settings.target.host or settings.target.remote_simulator)


def nki_problem_of(settings: config.Settings, command: str) -> Problem:
    """For what rests on the simulated Trainium. Raises SettingsError for a kernel of another language, and what
    `problem_of` does."""
    problem = problem_of(settings)
    language = language_named(problem.task.language)
    if language is not NKI:
        raise SettingsError(
            f"{command}: {problem.kernel} is a {language.name} kernel, and {command} is for NKI kernels: no machine of "
            "the others' is simulated"
        )
    return problem


def _language(settings: config.Settings, text: str) -> Language:
    """As the user says, or as the file tells; NKI, where it tells nothing."""
    named = settings.run.language
    return language_named(named) if named is not None else language_of(text) or NKI


def resumed_problem(settings: config.Settings, folder: RunFolder) -> Problem:
    """The kernel that the run began with, and its neighbours, even where the user's files have changed since."""
    if not folder.input_kernel.exists():
        return problem_of(settings)
    loaded = folder.loaded()
    if folder.own_reference.exists():  # also where the run's folder was moved since
        settings = replace(settings, run=replace(settings.run, problem=folder.own_reference, shape=()))
    language = folder.manifest().language
    plugin = plugins().get(language)
    origin = parts_of_plugin(plugin).origin_of(folder.path) if plugin is not None else None
    name = origin.name if origin is not None else None
    found = _task_and_kernel(settings, gone=loaded is not None, name=name)
    source = folder.input_kernel.read_text(encoding="utf-8")
    if loaded is None:
        return Problem(found.task, found.kernel, found.reference, source, source, found.notes)
    presets = tuple(preset for preset in found.task.presets if preset.name in loaded.presets)
    task = replace(found.task, presets=presets, around=loaded.around, language=language)
    return Problem(task, found.kernel, found.reference, source, loaded.text, found.notes, origin=origin)


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
    given: GivenKernel | None = None
    """Where the kernel is no file of its own."""
    written: str | None = None
    origin: Origin | None = None
    """Both as a Problem's."""
    language: str = NKI.key
    """Whose plugin read it, where it is another project's."""


def _task_and_kernel(
    settings: config.Settings, gone: bool = False, reference: str | None = None, name: str | None = None
) -> _Found:
    """`gone`: the kernel's file may be, where its reference is named. `name`: of the task; without it, the kernel's."""
    if settings.run.kernel is None:
        seed = load_seed(settings.run.task)
        return _Found(_adjusted(seed.task(), settings, seed.kernel_path), seed.kernel_path, seed.reference_path)
    kernel = settings.run.kernel
    problem = settings.run.problem
    if not kernel.is_file() and not (gone and problem is not None):
        raise TaskNotFound(f"{kernel}: no such kernel file")
    given = [path for path in (problem, None if gone else kernel) if path is not None and reference is None]
    plugin = next((each for path in given if (each := plugin_of_file(path)) is not None), None)
    if plugin is not None:
        return _of_plugin(plugin, settings, kernel, problem)
    if foreign := [path for path in given if path.suffix == ".json"]:
        raise TaskInvalid(f"{foreign[0]}: no language that is installed reads it: {how_to_add()}")
    if reference is not None:
        task = task_from_text(reference, f"the reference of {kernel.name}", kernel.stem)
        return _Found(_adjusted(task, settings, kernel), kernel, None)
    if problem is not None:
        task = task_from_files(problem, name or kernel.stem, settings.run.shape)
        written = task.reference_source if settings.run.shape else None
        return _Found(_adjusted(task, settings, kernel), kernel, problem, written=written)
    adopted = find_reference(kernel, shapes=settings.run.shape)
    written = adopted.task.reference_source if settings.run.shape else None
    said = f"reference: {report.shown_path(adopted.reference)} ({adopted.why})"
    return _Found(_adjusted(adopted.task, settings, kernel), kernel, adopted.reference, (said,), written=written)


def _of_plugin(plugin: LanguagePlugin, settings: config.Settings, kernel: Path, problem: Path | None) -> _Found:
    """What another project's files say, and a kernel of theirs or a plain one."""
    read = parts_of_plugin(plugin).read_task(settings.run, kernel, problem, settings.run.function)
    task = _adjusted(task_from_text(read.reference, str(read.file), read.name), settings, kernel)
    what, origin = read.of_presets[task.full.name]
    said = f"reference: {report.shown_path(read.file)}, {what}"
    return _Found(task, kernel, read.file, (said,), read.kernel, read.reference, origin, plugin.key)


def check_suits(settings: config.Settings) -> None:
    """Raises SettingsError and TaskNotFound, before anything is begun, where the task lacks what the settings name."""
    _task_and_kernel(settings)


def _at_shape(task: Task, table: Path, name: str | None, kernel: Path) -> Task:
    shapes = read_shapes(table, task, kernel).shapes
    shape = next((each for each in shapes if each.name == name), None)
    if shape is None:
        wrong = f"{table} has no {name!r}, only" if name else f"which of those in {table}? --preset NAME, one of"
        raise SettingsError(f"{'preset' if name else 'shapes'}: {wrong} {names_of(shapes)}")
    return at_shape(task, shape)


def _adjusted(task: Task, settings: config.Settings, kernel: Path) -> Task:
    wanted = settings.verification
    if settings.run.shapes is not None:
        task = _at_shape(task, settings.run.shapes, settings.run.preset, kernel)
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
        exact=wanted.exact,
    )
