"""What the built-in catalogue may do to one kernel, priced; and one of these changes, carried out."""

from __future__ import annotations

import difflib
from contextlib import closing
from pathlib import Path

import config
from accelopt_core.candidate import Candidate
from accelopt_core.catalogue.explaining import LIMIT_S
from accelopt_core.catalogue.kernel_trees import NoTree, StepName, StepRefused, steps_in
from accelopt_core.catalogue.menu import CatalogueMenu
from accelopt_core.evaluation import Measured
from accelopt_core.languages.nki.language import NKI
from accelopt_core.ports import Progress
from accelopt_core.proposer import RoundContext
from infra.assembly.problem import nki_problem_of, resumed_problem
from infra.assembly.targets import predictor_of
from infra.commands.evaluate import evaluated
from infra.documents.kernel_document import ChangedDocument, MenuDocument
from infra.prediction.predictor import Predictor
from infra.settings_reader import SettingsError
from infra.tasks.user_files import Folder
from infra.terminal.report import RunSummary, kernel_after, kernel_of
from nki_sim.timing import ties


def menu(settings: config.Settings, kernel: str, progress: Progress, *, limit_s: float = LIMIT_S) -> MenuDocument:
    """`kernel`: as it was named. `limit_s`: most seconds for pricing.

    The kernel is compiled, tested at its cheaper shapes, or its only one, and timed. Raises what a run raises before it
    begins, BaselineRejected among it.
    """
    problem = nki_problem_of(settings, "menu")
    task, candidate = problem.task, Candidate("input", problem.source)
    info, result = evaluated(settings, problem, progress, is_input=True, gates_only=len(task.presets) > 1)
    if not isinstance(result, Measured):
        raise problem.rejected(result)
    context = RoundContext(1, task, candidate, result, candidate, result, result.latency_us, NKI)
    with closing(predictor_of(settings, task, info)) as predictor:
        offers = CatalogueMenu(predictor, limit_s, tie=ties.shipped().within).offers(context)
    return MenuDocument(
        kernel, task.name, task.full.describe(), result.latency_us, result.simulated, result.caveat, result.checks,
        offers.offers, dict(offers.tools or {}), offers.tie_us, offers.not_priced, offers.blocked, offers.note,
        offers.left_out,
    )  # fmt: skip


def change(
    settings: config.Settings, kernel: str, tool: str, site: str, folder: Folder, output: str, *, overwrite: bool
) -> ChangedDocument:
    """Carries out the change of a menu that `tool` and `site` name, and writes the new kernel to `output` in `folder`.

    Raises SettingsError for a change that there is not, Outside where the file may not be written, and what is wrong
    with the kernel as `menu` does.
    """
    path = folder.new_file(output, overwrite=overwrite)
    problem = nki_problem_of(settings, "apply")
    with closing(Predictor(problem.task, settings.target.machine, settings.target.compile_timeout_s)) as predictor:
        try:
            made = predictor.carried_out(problem.source, [StepName(tool, site)])
        except (NoTree, StepRefused) as error:
            raise SettingsError(
                f"{tool} cannot be used at {site!r} of this kernel ({error}): ask for its menu again, and copy "
                "tool and site from there"
            ) from None
    overwrote = written(folder, path, made, overwrite=overwrite)
    return ChangedDocument(kernel, tool, site, output, overwrote, difference(problem.source, made, kernel, output))


def kernel_of_run(
    summary: RunSummary, round: int | None, folder: Folder, output: str, *, overwrite: bool
) -> ChangedDocument:
    """Writes the best kernel of a run, as it stood after `round` (at the end), to `output` in `folder`.

    Raises SettingsError for a run that has none, and Outside where the file may not be written.
    """
    path, best = folder.new_file(output, overwrite=overwrite), kernel_after(summary, round)
    overwrote = written(folder, path, best.source, overwrite=overwrite)
    before = summary.baseline.candidate.source if summary.baseline is not None else ""
    name = f"{summary.manifest.run_id}: {best.id}"
    return ChangedDocument(name, "", "", output, overwrote, difference(before, best.source, "input", output))


def steps_of_run(
    invocation: config.Invocation, summary: RunSummary, steps: int, folder: Folder, output: str
) -> ChangedDocument:
    """Writes what the first `steps` steps of one round make of the kernel that it began with.

    The round is the invocation's, or that of the best kernel. Raises SettingsError for a round that no steps of the
    catalogue made, or fewer of them, and Outside where the file may not be written.
    """
    path = folder.new_file(output, overwrite=invocation.overwrite)
    best, run = summary.best, summary.manifest.run_id
    tried = [each for each in summary.attempts if each.candidate is not None and each.plan is not None]
    if invocation.round is not None:
        chosen = [each for each in tried if each.round == invocation.round]
    else:
        chosen = [each for each in tried if best is not None and each.id == best.candidate.id]
    known = [(each, steps_in(each.plan.details)) for each in chosen if each.plan is not None]
    attempt, names = next(((each, found) for each, found in known if found), (None, ()))
    if attempt is None:
        raise SettingsError(
            f"--step: no steps of the catalogue made that kernel of run {run}: `show {run}` has its rounds"
        )
    if not 1 <= steps <= len(names):
        raise SettingsError(f"--step {steps}: round {attempt.round} of run {run} has steps 1 to {len(names)}")
    settings = invocation.over(config.from_document(summary.folder.config(), f"run {run}"))
    before = kernel_of(summary, attempt.parent_id)
    task = resumed_problem(settings, summary.folder).task
    with closing(Predictor(task, settings.target.machine, settings.target.compile_timeout_s)) as predictor:
        try:
            made = predictor.carried_out(before, [name for name, _ in names[:steps]])
        except (NoTree, StepRefused) as error:
            raise SettingsError(f"--step {steps}: this release carries them out differently ({error})") from None
    overwrote = written(folder, path, made, overwrite=invocation.overwrite)
    name = f"{run}: {attempt.id}, steps 1 to {steps}"
    return ChangedDocument(name, "", "", output, overwrote, difference(before, made, attempt.parent_id, output))


def written(folder: Folder, path: Path, text: str, *, overwrite: bool) -> bool:
    """Whether something was there before. Raises SettingsError and Outside."""
    before = path.exists()
    try:
        folder.write(path, text, overwrite=overwrite)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror}") from None
    return before


def difference(before: str, after: str, old: str, new: str) -> str:
    """Unified."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), old, new, lineterm="")
    return "".join(f"{line}\n" for line in lines)
