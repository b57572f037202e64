"""The command line: read it, have it carried out, say how it ended.   python3 orchestrator.py --help"""

from __future__ import annotations

import bootstrap

if __name__ == "__main__":
    bootstrap.enter(__file__)

import os
import sys
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console

import config
from accelopt_core.loop.events import Ending
from accelopt_core.loop.rounds import BaselineRejected, RunResult
from accelopt_core.ports import ModelError, TargetError, TaskFault
from infra import assembly
from infra.journal import JournalError, utc_now
from infra.llm.prices import BadPriceFile
from infra.llm.provider import UnknownProvider
from infra.runs import suite
from infra.runs.in_place import write_back
from infra.runs.run_folder import find_run
from infra.settings_reader import SettingsError
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.seed_index import TaskNotFound, seed_index
from infra.terminal import report
from infra.terminal.gap_table import print_explanation
from infra.terminal.next_steps import after_suite, print_next
from infra.terminal.started_as import program, started_as
from infra.terminal.suite_table import print_suite

FINISHED, USAGE, BASELINE, UNREACHABLE, STOPPED = 0, 2, 3, 4, 5

USAGE_ERRORS = (SettingsError, TaskNotFound, TaskInvalid, TaskFault, UnknownProvider, BadPriceFile, JournalError)


def main(arguments: list[str]) -> int:
    try:
        invocation = config.read(arguments)
        return COMMANDS[invocation.command](invocation)
    except USAGE_ERRORS as error:
        return _complain(error, USAGE)
    except BaselineRejected as error:
        return _complain(error, BASELINE)
    except (TargetError, ModelError) as error:
        return _complain(error, UNREACHABLE)
    except KeyboardInterrupt:
        return _complain("interrupted", STOPPED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` is no error of ours
        return STOPPED


def _complain(problem: object, status: int) -> int:
    print(f"{program().removesuffix('.py')}: {started_as(str(problem))}", file=sys.stderr)
    return status


def _status(result: RunResult) -> int:
    if result.ending is Ending.FINISHED:
        return FINISHED
    return UNREACHABLE if result.ending is Ending.FAILED else STOPPED


# --- runs -----------------------------------------------------------------------------------------


def run(invocation: config.Invocation) -> int:
    if invocation.settings.run.suite is not None:
        return run_suite(invocation)
    done = assembly.carry_out(invocation)
    console = Console()
    report.print_report(console, report.summary_of(done.folder))
    if done.settings.run.in_place and done.result.best.source != done.problem.text:
        copy = write_back(done.problem.kernel, done.problem.text, done.result.best.source)
        console.print(f"{done.problem.kernel} now holds the best kernel; what was there is {copy.name}", soft_wrap=True)
    return _status(done.result)


def run_suite(invocation: config.Invocation) -> int:
    """One run after the other, each with its line; one table at the end."""
    wanted = invocation.settings.run
    assert wanted.suite is not None
    if "run.task" in invocation.origins:
        raise SettingsError("suite: it runs all of its tasks: leave --task away, or leave --suite away")
    tasks = [seed.name for seed in seed_index()]
    if wanted.resume is None:
        suite_id = wanted.run_id or suite.new_suite_id(wanted.suite, utc_now())
    else:
        latest = wanted.resume == config.LATEST
        suite_id = suite.latest_suite(wanted.checkpoints, tasks) if latest else wanted.resume
    console, status = Console(), FINISHED
    console.print(f"suite {suite_id}; if it is interrupted: --suite {wanted.suite} --resume {suite_id}", soft_wrap=True)
    for task, folder in suite.runs_to_do(wanted.checkpoints, suite_id, tasks):
        begun = suite.has_begun(folder)
        try:
            done = assembly.carry_out(_of_suite(invocation, task, folder.run_id, begun))
        except BaselineRejected as error:
            status = _complain(f"{task}: {error}", BASELINE)
            continue
        report.print_line(console, report.summary_of(folder))
        if done.result.ending is not Ending.FINISHED:
            status = _status(done.result)
        if done.result.ending is Ending.INTERRUPTED:
            break
    table = suite.table_of_runs(wanted.checkpoints, suite_id, tasks)
    print_suite(console, table)
    worst_first = sorted(table.rows, key=lambda row: (row.after or row.before).percent_of_peak)
    seen = [f"{suite_id}.{row.task}" for row in worst_first]
    console.print()
    print_next(console, after_suite(wanted.suite, suite_id, seen, not table.missing, wanted.checkpoints))
    return status


def _of_suite(invocation: config.Invocation, task: str, run_id: str, begun: bool) -> config.Invocation:
    given = invocation.settings.run
    rounds = given.rounds if "run.rounds" in invocation.origins else suite.ROUNDS
    run = replace(given, suite=None, task=task, run_id=run_id, resume=run_id if begun else None, rounds=rounds)
    return replace(
        invocation,
        settings=replace(invocation.settings, run=run),
        origins={**invocation.origins, "run.task": "the suite"},
    )


def runs(invocation: config.Invocation) -> int:
    report.print_runs(Console(), invocation.settings.run.checkpoints)
    return FINISHED


def show(invocation: config.Invocation) -> int:
    report.print_report(Console(), report.summary_of(find_run(invocation.settings.run.checkpoints, invocation.run_id)))
    return FINISHED


def explain(invocation: config.Invocation) -> int:
    """Of a kernel, or of the best one of a run: where its time is lost, and what keeps the catalogue from it."""
    from infra.commands import explain as explaining

    found = explaining.explain(invocation)
    print_explanation(Console(), found.title, found.result, found.explanation)
    return FINISHED


def diff(invocation: config.Invocation) -> int:
    report.print_diff(Console(), report.summary_of(find_run(invocation.settings.run.checkpoints, invocation.run_id)))
    return FINISHED


# --- the rest -------------------------------------------------------------------------------------


def doctor(invocation: config.Invocation) -> int:
    from infra import doctor as examination

    wanted = invocation.settings.target
    if not wanted.host:
        return examination.show(examination.examine(wanted.machine))
    status = examination.USABLE
    for number, host in enumerate(wanted.host):
        target = assembly.host_target(invocation.settings, host)
        try:
            report_of_host = target.examine()
        except TargetError as error:
            status = _complain(error, UNREACHABLE)
            continue
        finally:
            target.close()
        if number:
            print()
        status = max(
            status,
            examination.show(
                report_of_host, neuron_wanted=not wanted.remote_simulator, clock_skew_s=target.clock_skew_s
            ),
        )
        for note in target.notes():
            print(f"note         {note}")
        if report_of_host.evaluates_on_neuron:
            found = assembly.calibration_of_host(invocation.settings, host, report_of_host)
            print(f"calibration  {started_as(found)}")
    return status


def calibrate(invocation: config.Invocation) -> int:
    """Measure a device's constants and keep them; or write out what was measured."""
    console = Console()
    if invocation.settings.calibration.export is not None:
        console.print(assembly.export_measurements(invocation.settings), soft_wrap=True)
        return FINISHED
    try:
        kept = assembly.calibrate(invocation.settings, console)
    except KeyboardInterrupt:
        return _complain("interrupted; what was measured is kept, and the same command goes on", STOPPED)
    return FINISHED if kept else STOPPED


def show_config(invocation: config.Invocation) -> int:
    print(config.to_toml(invocation), end="")
    return FINISHED


COMMANDS: dict[str, Callable[[config.Invocation], int]] = {
    "run": run,
    "doctor": doctor,
    "calibrate": calibrate,
    "explain": explain,
    "runs": runs,
    "show": show,
    "diff": diff,
    "config": show_config,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
