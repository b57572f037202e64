"""`show --html`: a run, or a suite, as one file that opens offline; beside a run's page the timelines to zoom into."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import config
from accelopt_core.candidate import Candidate
from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.registry import language_named
from accelopt_core.ports import TargetError, TaskFault
from infra.assembly.problem import resumed_problem
from infra.assembly.targets import predictor_of
from infra.documents.run_document import SuiteDocument
from infra.journal import JournalError, make_folder, replace_file, utc_now
from infra.prediction.timelines import EngineTimeline, NoTimeline
from infra.report import drawing
from infra.report.page_file import Timelines, TraceLink, Written, run_html, suite_html
from infra.report.run_page import run_page
from infra.report.suite_page import suite_page
from infra.runs.run_folder import RunFolder
from infra.settings_reader import SettingsError
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.seed_index import TaskNotFound
from infra.terminal.report import RunSummary
from infra.terminal.wording import latency, one_line

RUN_PAGE = "report.html"
"""In the run's folder, where no other file is named."""
TRACES = "timelines"
"""A folder in the run's: a file for ui.perfetto.dev of each kernel that was drawn."""
SAME = 1e-3
"""Fraction within which a latency of today is the one on file."""


def run_report(invocation: config.Invocation, summary: RunSummary) -> Path:
    """The page's path. The input and the best kernel are simulated for their timelines: some seconds.

    Raises SettingsError where it cannot be drawn, and JournalError where it cannot be written.
    """
    _drawable()
    path = invocation.html or summary.folder.path / RUN_PAGE
    timelines = _timelines(invocation, summary, path)
    return _written(path, run_html(run_page(summary), timelines, _now()))


def suite_report(invocation: config.Invocation, document: SuiteDocument) -> Path:
    """As `run_report`; without another name `<suite id>.html` among the runs."""
    _drawable()
    path = invocation.html or invocation.settings.run.checkpoints / f"{document.suite_id}.html"
    return _written(path, suite_html(suite_page(document), _now()))


def _drawable() -> None:
    try:
        drawing.available()
    except drawing.NoPlots as error:
        raise SettingsError(f"show --html: {error}") from None


def _now() -> Written:
    return Written(config.VERSION, utc_now().isoformat(timespec="seconds"))


def _written(path: Path, html: str) -> Path:
    if not path.parent.is_dir():
        raise SettingsError(f"show --html: there is no folder {path.parent}")
    replace_file(path, html.encode("utf-8", "backslashreplace"))
    return path


# --- timelines ------------------------------------------------------------------------------------


def _timelines(invocation: config.Invocation, summary: RunSummary, page: Path) -> Timelines:
    if summary.baseline is None or summary.best is None:
        return Timelines(notes=("No kernel was measured.",))
    kernels = [("input", summary.baseline.candidate, summary.baseline.result.latency_us)]
    if summary.improved:
        kernels.append(("best", summary.best.candidate, summary.best.result.latency_us))
    try:
        made = _simulated(invocation, summary, [(name, candidate) for name, candidate, _ in kernels])
    except (NoTimeline, SettingsError, TaskFault, TaskInvalid, TaskNotFound, TargetError, JournalError) as error:
        why = one_line(str(error))
        print(f"show --html: no timelines: {why}", file=sys.stderr)
        return Timelines(notes=(f"No timelines: {why}",))
    on_file = {name: us for name, _, us in kernels}
    notes = []
    for name, line in made:
        notes += _notes(name, line, on_file[name], summary.manifest.target.simulated)
    return Timelines(tuple(made), tuple(notes), tuple(_kept(summary.folder, name, line, page) for name, line in made))


def _simulated(
    invocation: config.Invocation, summary: RunSummary, kernels: list[tuple[str, Candidate]]
) -> list[tuple[str, EngineTimeline]]:
    """On this machine, by the machine's model that the run went by."""
    folder, info = summary.folder, summary.manifest.target
    settings = invocation.over(config.from_document(folder.config(), f"run {folder.run_id}"))
    task = resumed_problem(settings, folder).task
    if task.language != NKI.key:
        raise NoTimeline(f"{language_named(task.language).name} kernels are not simulated")
    made = []
    with closing(predictor_of(settings, task, info)) as predictor:
        for name, candidate in kernels:
            print(f"show --html: simulating the timeline of {name} ({candidate.id})", file=sys.stderr)
            made.append((name, predictor.timeline(candidate.source)))
    return made


def _notes(name: str, line: EngineTimeline, on_file_us: float, simulated: bool) -> list[str]:
    notes = []
    if not simulated:
        notes.append(f"{name}: simulated; the device took {latency(on_file_us)}")
    elif abs(line.latency_us - on_file_us) > SAME * on_file_us:
        today, then = latency(line.latency_us), latency(on_file_us)
        notes.append(f"{name}: the simulator of today says {today}, and that of the run said {then}")
    if line.cores > 1:
        notes.append(f"{name}: of its {line.cores} cores the first")
    return notes


def _kept(folder: RunFolder, name: str, line: EngineTimeline, page: Path) -> TraceLink:
    make_folder(folder.path / TRACES)
    trace = folder.path / TRACES / f"{name}.json.gz"
    replace_file(trace, line.trace)
    href = os.path.relpath(trace.absolute(), page.absolute().parent)
    return TraceLink(name, quote(Path(href).as_posix()))
