"""The commands, each by its name: carried out, told to people, and given to scripts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import config
from accelopt_core.evaluation import Step, latency_label, microseconds
from accelopt_core.explanation import in_short
from accelopt_core.languages.registry import UnknownLanguage
from accelopt_core.loop.events import Ending
from accelopt_core.loop.rounds import BaselineRejected
from accelopt_core.ports import ModelError, Progress, TargetError, TaskFault
from infra.assembly.following import unhurried
from infra.assembly.problem import check_suits
from infra.commands import many_shapes, optimize
from infra.commands.answer import BASELINE, FINISHED, STOPPED, UNREACHABLE, USAGE, Answer, complain, end
from infra.commands.suite_side_by_side import at_once_of, runs_side_by_side, share_of
from infra.documents.kernel_document import DoctorDocument, ExaminedMachine, ExplanationDocument
from infra.documents.model_document import ModelDocument
from infra.documents.run_document import kernel_document, run_document, runs_document, shapes_document, suite_document
from infra.journal import JournalError, utc_now
from infra.llm.prices import BadPriceFile
from infra.llm.provider import UnknownProvider
from infra.runs import suite
from infra.runs.memory_file import keep_memory
from infra.runs.run_folder import RunFolder, find_run
from infra.runs.shape_set import SetFolder
from infra.settings_reader import SettingsError
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.seed_index import TaskNotFound, seeds_of
from infra.tasks.user_files import Folder
from infra.terminal import report
from infra.terminal.next_steps import after_set, after_suite, print_next
from infra.terminal.shape_table import print_set
from infra.terminal.started_as import started_as
from infra.terminal.suite_table import print_suite
from infra.terminal.tables import (
    Row,
    print_benchmark,
    print_explanation,
    print_found,
    print_menu,
    print_projection,
    print_verdict,
)

USAGE_ERRORS = (
    SettingsError, TaskNotFound, TaskInvalid, TaskFault, UnknownLanguage, UnknownProvider, BadPriceFile, JournalError,
)  # fmt: skip


Carry = Callable[[config.Invocation, Answer], int]
"""Carries a command out; the exit status."""


def carried_out(command: Carry, invocation: config.Invocation, answer: Answer) -> int:
    try:
        return command(invocation, answer)
    except USAGE_ERRORS as error:
        return end(error, USAGE, answer)
    except BaselineRejected as error:
        return end(error, BASELINE, answer)
    except (TargetError, ModelError) as error:
        return end(error, UNREACHABLE, answer)


def _status(ending: Ending) -> int:
    if ending is Ending.FINISHED:
        return FINISHED
    return UNREACHABLE if ending is Ending.FAILED else STOPPED


# --- runs -----------------------------------------------------------------------------------------


def run(invocation: config.Invocation, answer: Answer) -> int:
    if invocation.settings.benchmark.then is not None:
        from infra.commands import model as benchmarking

        benchmarking.check_then(invocation.settings)
    if invocation.settings.run.suite is not None:
        return run_suite(invocation, answer)
    if many_shapes.wants_a_set(invocation):
        return run_shapes(invocation, answer)
    outcome = optimize.carried_out(invocation)
    console = Console()
    with unhurried():
        if outcome.written_over is not None:
            kernel, copy = outcome.summary.manifest.kernel, outcome.written_over.name
            console.print(f"{kernel} now holds the best kernel; what was there is {copy}", soft_wrap=True)
        report.print_end(console, outcome.summary)
    last = _judged_by_model_next(invocation, outcome)
    if last is None:
        answer.give(run_document(outcome.summary))
        return _status(outcome.ending)
    from infra.commands import model as benchmarking

    console.print()
    judged = benchmarking.benchmark(last, _harness_aloud(last), outcome)
    answer.give(judged)
    return _print_benchmark(console, judged)


def _judged_by_model_next(invocation: config.Invocation, outcome: optimize.RunOutcome) -> config.Settings | None:
    """Of a run with --then model that ended with a faster kernel."""
    stored = config.from_document(outcome.summary.folder.config(), f"run {outcome.run_id}")
    settings = invocation.over(stored)
    if settings.benchmark.then is None or outcome.ending is not Ending.FINISHED:
        return None
    if not outcome.improved:
        Console().print("the model is not asked: the run ended without a faster kernel")
        return None
    return settings


def run_suite(invocation: config.Invocation, answer: Answer) -> int:
    """One run after the other, or some side by side, each with its line; one table at the end."""
    wanted = invocation.settings.run
    assert wanted.suite is not None
    if "run.task" in invocation.origins:
        raise SettingsError("suite: it runs all of its tasks: leave --task away, or leave --suite away")
    seeds = seeds_of(config.SUITES[wanted.suite])
    tasks = [seed.name for seed in seeds]
    for name in tasks if wanted.resume is None else ():
        check_suits(replace(invocation.settings, run=replace(wanted, suite=None, task=name)))
    if wanted.resume is None:
        suite_id = wanted.run_id or suite.new_suite_id(wanted.suite, utc_now())
    else:
        latest = wanted.resume == config.LATEST
        suite_id = suite.latest_suite(wanted.checkpoints, tasks) if latest else wanted.resume
    console = Console()
    console.print(f"suite {suite_id}; if it is interrupted: --suite {wanted.suite} --resume {suite_id}", soft_wrap=True)
    to_do = suite.runs_to_do(wanted.checkpoints, suite_id, tasks)
    at_once = at_once_of(invocation.settings)
    if at_once > 1:
        waiting = dict(to_do)
        folders = {name: waiting[name] for name in suite.longest_first(seeds) if name in waiting}
        if folders:
            keep_memory(wanted.checkpoints, suite_id, wanted.memory, lambda line: console.print(line, soft_wrap=True))
        status = _runs_side_by_side(at_once, invocation, console, folders)
    else:
        status = _runs_in_turn(invocation, console, to_do)
    table = suite.table_of_runs(wanted.checkpoints, suite_id, tasks)
    answer.give(suite_document(suite_id, table))
    print_suite(console, table)
    worst_first = sorted(table.rows, key=lambda row: (row.after or row.before).percent_of_peak)
    seen = [f"{suite_id}.{row.task}" for row in worst_first]
    console.print()
    print_next(console, after_suite(wanted.suite, suite_id, seen, not table.missing, wanted.checkpoints))
    return status


def run_shapes(invocation: config.Invocation, answer: Answer) -> int:
    """A run for each shape of a table, each with its line; one kernel, and one table, at the end."""
    console = Console()
    outcome = many_shapes.carried_out(invocation, console)
    folder, table = outcome.folder, outcome.table
    answer.give(shapes_document(folder, table))
    print_set(console, table)
    console.print()
    if outcome.written_over is not None:
        name = report.shown_path(Path(folder.manifest().kernel))
        console.print(f"{name} now holds the joined kernel; what was there is {outcome.written_over.name}")
    elif table.rows and table.is_complete:
        console.print(f"kernel   {report.shown_path(folder.best_kernel)}", soft_wrap=True, highlight=False)
    print_next(console, after_set(folder.set_id, [row.name for row in table.rows], folder.path.parent))
    return BASELINE if table.missing and outcome.ending is Ending.FINISHED else _status(outcome.ending)


def _runs_in_turn(invocation: config.Invocation, console: Console, to_do: Iterable[tuple[str, RunFolder]]) -> int:
    status = FINISHED
    for task, folder in to_do:
        begun = suite.has_begun(folder)
        try:
            outcome = optimize.carried_out(_of_suite(invocation, task, folder.run_id, begun))
        except BaselineRejected as error:
            status = complain(f"{task}: {error}", BASELINE)
            continue
        report.print_line(console, outcome.summary)
        if outcome.ending is not Ending.FINISHED:
            status = _status(outcome.ending)
        if outcome.ending is Ending.INTERRUPTED:
            break
    return status


def _runs_side_by_side(
    at_once: int, invocation: config.Invocation, console: Console, folders: dict[str, RunFolder]
) -> int:
    shared = replace(
        invocation,
        settings=replace(
            invocation.settings,
            target=replace(invocation.settings.target, processes=share_of(invocation.settings, at_once)),
        ),
    )
    given = [
        (task, _of_suite(shared, task, folder.run_id, suite.has_begun(folder))) for task, folder in folders.items()
    ]
    statuses: dict[str, int] = {}
    for ended in runs_side_by_side(given, at_once):
        statuses[ended.task] = ended.status
        if suite.has_begun(folders[ended.task]):
            report.print_line(console, report.summary_of(folders[ended.task]))
        if ended.status not in (FINISHED, STOPPED):
            complain(f"{ended.task}: {ended.said}", ended.status)
    wrong = [statuses[task] for task in folders if statuses.get(task)]
    return wrong[-1] if wrong else FINISHED if len(statuses) == len(folders) else STOPPED


def _of_suite(invocation: config.Invocation, task: str, run_id: str, begun: bool) -> config.Invocation:
    given = invocation.settings.run
    rounds = given.rounds if "run.rounds" in invocation.origins else suite.ROUNDS
    run = replace(
        given, suite=None, tasks_at_once=None, task=task, run_id=run_id, resume=run_id if begun else None, rounds=rounds
    )
    return replace(
        invocation,
        settings=replace(invocation.settings, run=run),
        origins={**invocation.origins, "run.task": "the suite"},
    )


def runs(invocation: config.Invocation, answer: Answer) -> int:
    checkpoints = invocation.settings.run.checkpoints
    if answer.wanted:
        answer.give(runs_document(checkpoints))
    else:
        report.print_runs(Console(), checkpoints)
    return FINISHED


def show(invocation: config.Invocation, answer: Answer) -> int:
    """A run, or a suite or a set of shapes by its id."""
    checkpoints = invocation.settings.run.checkpoints
    for language in config.SUITES.values():
        tasks = [seed.name for seed in seeds_of(language)]
        if suite.is_suite(checkpoints, invocation.run_id, tasks):
            return _show_suite(invocation, answer, suite.table_of_runs(checkpoints, invocation.run_id, tasks))
    if (of_shapes := SetFolder(checkpoints, invocation.run_id)).exists:
        return _show_set(invocation, answer, of_shapes)
    summary = report.summary_of(find_run(checkpoints, invocation.run_id))
    answer.give(run_document(summary))
    if invocation.as_html:
        from infra.commands.show_html import run_report

        _say_where(run_report(invocation, summary))
    elif not answer.wanted and invocation.round is not None:
        report.print_round(Console(), summary, invocation.round)
    elif not answer.wanted:
        report.print_report(Console(), summary)
    return FINISHED


def _show_suite(invocation: config.Invocation, answer: Answer, table: suite.SuiteTable) -> int:
    document = suite_document(invocation.run_id, table)
    answer.give(document)
    if invocation.as_html:
        from infra.commands.show_html import suite_report

        _say_where(suite_report(invocation, document))
    elif not answer.wanted:
        print_suite(Console(), table)
    return FINISHED


def _show_set(invocation: config.Invocation, answer: Answer, folder: SetFolder) -> int:
    if invocation.as_html:
        raise SettingsError(
            f"--html: a set of shapes has no page; each of its runs has: show --html {folder.set_id}.NAME"
        )
    table = many_shapes.table_of(folder)
    answer.give(shapes_document(folder, table))
    if not answer.wanted:
        print_set(Console(), table)
    return FINISHED


def _say_where(page: Path) -> None:
    Console().print(f"{report.shown_path(page)}, {page.stat().st_size / 1e3:,.0f} kB", soft_wrap=True, highlight=False)


def explain(invocation: config.Invocation, answer: Answer) -> int:
    """Of a kernel, or of the best one of a run: where its time is lost, and what keeps the catalogue from it."""
    from infra.commands import evaluate as evaluating

    found = evaluating.explain(invocation)
    measured, short = kernel_document(found.title, found.result), in_short(found.explanation)
    answer.give(ExplanationDocument(found.title, measured, short, found.explanation))
    print_explanation(Console(), found.title, found.result, found.explanation, invocation.everything)
    return FINISHED


def evaluate(invocation: config.Invocation, answer: Answer) -> int:
    """One kernel compiled, verified and timed."""
    from infra.commands import evaluate as evaluating

    named = _named_kernel(invocation)
    document = evaluating.evaluation(invocation.settings, named, _aloud(invocation), invocation.original)
    answer.give(document)
    measured = document.measured
    print_verdict(
        Console(), f"{named}  {document.shape}  on {document.target}", document.said, right=document.right,
        lines=(*measured.verified, document.rests_on) if measured is not None else (),
        gaps=measured.gaps if measured is not None else (),
    )  # fmt: skip
    return FINISHED if document.right else BASELINE


def menu(invocation: config.Invocation, answer: Answer) -> int:
    """What the catalogue may do to a kernel, priced."""
    from infra.commands import menu as choosing

    named = _named_kernel(invocation)
    document = choosing.menu(invocation.settings, named, _aloud(invocation))
    answer.give(document)
    now = f"{latency_label(document.simulated, document.caveat)}{microseconds(document.latency_us)}"
    more = f"{document.left_out} more changes gain less, or are other sites of these" if document.left_out else ""
    late = f"{document.not_priced} more could not be priced in time" if document.not_priced else ""
    notes = (document.note, more, late)
    print_menu(Console(), f"{named}  {document.shape}  {now}", document.changes, document.blocked, notes)
    for best in document.changes[:1]:
        words = ["apply", named, *config.to_flags(invocation, ["run.kernel", "run.view"])]
        words += ["--tool", best.tool, "--site", best.site, "--output", "NEW.py"]
        print(f"the first of them: {started_as(f'python3 orchestrator.py {shlex.join(words)}')}")
    return FINISHED


def apply(invocation: config.Invocation, answer: Answer) -> int:
    """One change of the menu, written to a new file."""
    from infra.commands import menu as choosing

    output = invocation.output
    if invocation.from_run:
        wanted: tuple[tuple[str, object], ...] = (("--output", output),)
    else:
        named = _named_kernel(invocation)
        wanted = (("--tool", invocation.tool), ("--site", invocation.site), ("--output", output))
    for flag, given in wanted:
        if not given:
            what = (
                "the new file" if invocation.from_run else "a change has a tool and a site on the menu, and a new file"
            )
            raise SettingsError(f"apply: {flag} is missing: {what}")
    assert output is not None
    folder, overwrite = Folder(output.parent), invocation.overwrite
    if invocation.from_run:
        summary = report.summary_of(find_run(invocation.settings.run.checkpoints, invocation.from_run))
        if invocation.step is None:
            document = choosing.kernel_of_run(summary, invocation.round, folder, output.name, overwrite=overwrite)
            then = "it was verified in that run"
        else:
            document = choosing.steps_of_run(invocation, summary, invocation.step, folder, output.name)
            then = f"nothing of it was run yet: `evaluate {report.shown_path(output)}`, with that run's --problem"
    else:
        document = choosing.change(
            invocation.settings, named, invocation.tool, invocation.site, folder, output.name, overwrite=overwrite
        )
        flags = config.to_flags(invocation, ["run.kernel", "run.view"])
        words = shlex.join(["evaluate", report.shown_path(output), *flags])
        then = f"nothing of it was run yet: {started_as(f'python3 orchestrator.py {words}')}"
    answer.give(document)
    print(f"wrote {report.shown_path(output)}; {then}", file=sys.stderr)
    print(document.diff, end="")
    return FINISHED


def _named_kernel(invocation: config.Invocation) -> str:
    settings = invocation.settings
    if not {"run.kernel", "run.task"} & set(invocation.origins):
        raise SettingsError(f"{invocation.command}: which kernel? orchestrator.py {invocation.command} KERNEL.py")
    return report.shown_path(settings.run.kernel) if settings.run.kernel is not None else settings.run.task


def _aloud(invocation: config.Invocation) -> Progress:
    def told(step: Step, detail: str) -> None:
        if invocation.settings.run.view != "quiet":
            print(f"{step.value}: {detail}", file=sys.stderr)

    return told


def diff(invocation: config.Invocation, answer: Answer) -> int:
    report.print_diff(Console(), report.summary_of(find_run(invocation.settings.run.checkpoints, invocation.run_id)))
    return FINISHED


# --- the rest -------------------------------------------------------------------------------------


def doctor(invocation: config.Invocation, answer: Answer) -> int:
    from infra import doctor as examination
    from infra.commands.machines import examined as examined_machine

    wanted = invocation.settings.target
    if wanted.engine != "local":
        return _doctor_of_cluster(invocation.settings, answer)
    examined, status = [], examination.USABLE
    for host in wanted.host or ("",):
        found, told = examined_machine(invocation.settings, host)
        examined.append(found)
        if not found.is_examined:
            if told:
                print(told)
            status = complain(found.error, UNREACHABLE)
            continue
        status = max(status, examination.USABLE if found.usable else examination.UNUSABLE)
        if len(examined) > 1:
            print()
        print(told)
        for note in found.notes:
            print(f"note         {note}")
        if found.calibration is not None:
            print(f"calibration  {found.calibration}")
    answer.give(DoctorDocument(status == examination.USABLE, tuple(examined)))
    return status


def _doctor_of_cluster(settings: config.Settings, answer: Answer) -> int:
    """Its nodes, each with its versions and with what became of a known kernel there."""
    from infra import doctor as examination
    from infra.commands.machines import examined_nodes

    neuron_wanted = settings.target.neuron_cores > 0
    examined: list[ExaminedMachine] = []
    for found in examined_nodes(settings):
        print(("\n" if examined else "") + found.heading)
        if found.report is None:
            complain(f"{found.node.host}: {found.why}", UNREACHABLE)
            examined.append(ExaminedMachine(found.node.host, False, found.why, None))
            continue
        print(examination.render(found.report, neuron_wanted=neuron_wanted))
        usable = found.report.evaluates_on_neuron or (found.report.simulates and not neuron_wanted)
        examined.append(ExaminedMachine(found.node.host, usable, "", found.report))
    answer.give(DoctorDocument(all(each.usable for each in examined), tuple(examined)))
    return examination.USABLE if any(each.usable for each in examined) else examination.UNUSABLE


def calibrate(invocation: config.Invocation, answer: Answer) -> int:
    """Measure a device's constants and keep them; or write out what was measured."""
    from infra.commands import machines

    console = Console()
    if invocation.settings.calibration.export is not None:
        console.print(machines.export_measurements(invocation.settings), soft_wrap=True)
        return FINISHED
    try:
        kept = machines.calibrate(invocation.settings, console)
    except KeyboardInterrupt:
        return complain("interrupted; what was measured is kept, and the same command goes on", STOPPED)
    return FINISHED if kept else STOPPED


def show_config(invocation: config.Invocation, answer: Answer) -> int:
    print(config.to_toml(invocation), end="")
    return FINISHED


def init(invocation: config.Invocation, answer: Answer) -> int:
    from infra.commands import init as writing

    written = writing.write_reference(invocation, lambda line: print(f"init: {line}", file=sys.stderr))
    console = Console()
    for line in written.said:
        console.print(started_as(line), soft_wrap=True, highlight=False, markup=False)
    return FINISHED


def clean(invocation: config.Invocation, answer: Answer) -> int:
    from infra.commands import machines

    settings, remove, console, status = invocation.settings, not invocation.dry_run, Console(), FINISHED
    for host in settings.target.host:
        try:
            found = machines.clean_host(settings, host, remove=remove)
        except TargetError as error:
            status = complain(error, UNREACHABLE)
            continue
        print_found(console, host, found, removed=remove)
    if not settings.target.host:
        here = machines.clean_here(settings.run.checkpoints, remove=remove)
        print_found(console, "this machine", here, removed=remove)
    return status


def model(invocation: config.Invocation, answer: Answer) -> int:
    """Kernels inside a whole model: measured, put back, or projected."""
    from infra.commands import model as benchmarking

    settings, console = invocation.settings, Console()
    if settings.benchmark.undo:
        back = benchmarking.put_back(settings)
        answer.give(back)
        said = f"put back: {', '.join(back.files)}" if back.files else "as it was; nothing of ours is in it"
        console.print(f"{back.checkout} on {back.host}: {said}", soft_wrap=True, highlight=False)
        for copy in back.kept:
            console.print(f"  {copy} is a copy of a file that had been changed since", soft_wrap=True, highlight=False)
        return FINISHED
    if settings.benchmark.kernel_table is not None:
        projected = benchmarking.project(settings, _harness_aloud(settings))
        answer.give(projected)
        by = f"{100 * projected.covered:.0f} % of the step covered: "
        by += f"simulated, it is {projected.speedup:.3f} times as fast"
        if projected.step_us is not None and projected.projected_step_us is not None:
            by += f", {microseconds(projected.step_us)} becomes {microseconds(projected.projected_step_us)}"
        if projected.tokens_per_s is not None and projected.projected_tokens_per_s is not None:
            by += f", {projected.tokens_per_s:,.1f} tokens/s become {projected.projected_tokens_per_s:,.1f}"
        print_projection(
            console, projected.model, projected.kernels, said=by, machine=projected.machine, caveat=projected.caveat
        )
        return FINISHED
    document = benchmarking.benchmark(settings, _harness_aloud(settings))
    answer.give(document)
    return _print_benchmark(console, document)


def _print_benchmark(console: Console, document: ModelDocument) -> int:
    before, after, gain = document.baseline, document.kernels, document.gain
    rows: list[Row] = [
        (name, getattr(before, figure), getattr(after, figure, None), getattr(gain, of, None), written)
        for name, figure, of, written in (
            ("score", "score", "score", ",.4f"),
            ("latency, ms", "latency_ms", "latency", ",.2f"),
            ("first token, ms", "first_token_ms", "first_token", ",.2f"),
            ("per token, ms", "per_token_ms", "per_token", ",.3f"),
            ("tokens/s", "tokens_per_s", "throughput", ",.2f"),
            ("FLOPs in NKI", "nki_flop_share", "", ".1%"),
        )
    ]
    accuracy = f"accuracy {after.accuracy}; " if after is not None else ""
    place = "; the kernels are in place until `model --undo`" if document.in_place else "; the checkout is as it was"
    print_benchmark(
        console, f"{document.checkout} on {document.host}, by {document.harness}", rows,
        said=f"{document.verdict}: {accuracy}{document.why}{place}", good=document.verdict == "faster",
        notes=(*(after.notes if after is not None else ()), *document.notes),
    )  # fmt: skip
    return BASELINE if document.verdict == "failed" else FINISHED


def _harness_aloud(settings: config.Settings) -> Callable[[str], None]:
    def told(line: str) -> None:
        if settings.run.view != "quiet":
            print(line, file=sys.stderr)

    return told


COMMANDS: dict[str, Carry] = {
    "run": run,
    "init": init,
    "doctor": doctor,
    "calibrate": calibrate,
    "explain": explain,
    "evaluate": evaluate,
    "menu": menu,
    "apply": apply,
    "runs": runs,
    "show": show,
    "diff": diff,
    "clean": clean,
    "config": show_config,
    "model": model,
}
