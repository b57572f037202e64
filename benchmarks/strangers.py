"""What the catalogue makes of kernels that nobody here wrote, each run as a user would run it.

    python benchmarks/strangers.py --sdk DIR --autocomp DIR --library DIR ... [--half development] [--only TEXT]
    python benchmarks/strangers.py ... --inputs-only     are the kernels accepted and right, and how fast are they?
    python benchmarks/strangers.py ... --write docs/strangers.md     the tables, between the two marks of the page

The directories are checkouts of the repositories in strangers_cases.py; what is not given is left out. Each kernel is a
process of its own, `orchestrator.py --kernel FILE --function NAME --problem REFERENCE --provider catalogue`, with a
folder of runs and a memory that knows nothing. A row in which something failed says what, and counts as 1.00x.
Ends with status 1 when one did. Runs that --folder has already are read, not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accelopt_core.candidate import Candidate
from accelopt_core.catalogue.kernel_trees import steps_in
from accelopt_core.evaluation import Measured, explain, microseconds
from accelopt_core.ports import EvaluationRequest, TargetError, TaskFault
from benchmarks.search import write
from benchmarks.strangers_cases import NOT_RUN, REPOSITORIES, STRANGERS, Half, Stranger, completed
from infra.assembly import migrating
from infra.journal import JournalError, replace_file
from infra.runs.run_folder import RunFolder
from infra.runs.suite import ROUNDS, geometric_mean, has_begun
from infra.scratch_folder import ScratchFolder
from infra.targets.local import LocalTarget
from infra.tasks.kernel_file import kernel_text, surroundings_of
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.seed_index import TaskNotFound, task_from_files
from infra.terminal.report import RunSummary, summary_of

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- strangers: begin -->", "<!-- strangers: end -->"
WORTH = 1.1
"""A speed-up from which a kernel counts as improved ..."""
NEAR_BOUND = 85.0
"""... as it does at this percentage of its bound, where little is left to win."""
NOT_COUNTED_S = 18.0
"""Of a run's time what its hours do not count: Python's start, and what is said at the end."""
GRACE_S = 300.0
"""A run looks at its budget between two steps: one plan may take minutes, and the winner is checked after it."""
LARGE_GAP = 0.05
"""Of the winner's time: no larger gap is left without a line on why it is still there."""


class NotRun(Exception):
    """A row without figures, and why."""


@dataclass(frozen=True)
class Row:
    """A stranger's figures; what is unknown is 0."""

    stranger: Stranger
    before_us: float = 0.0
    after_us: float = 0.0
    speedup: float = 1.0
    before_percent: float = 0.0
    """Of the bound of the declared work."""
    after_percent: float = 0.0
    rules: tuple[str, ...] = ()
    """From the input to the winner."""
    left: str = ""
    """The largest gap of the winner in microseconds, and how the run ended unless it came to its end."""
    seconds: float = 0.0
    failed: str = ""
    unexplained: tuple[str, ...] = ()
    """Gaps of the winner above `LARGE_GAP` that nothing is said of."""

    @property
    def improved(self) -> bool:
        return not self.failed and (self.speedup >= WORTH or self.after_percent >= NEAR_BOUND)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, name in REPOSITORIES.items():
        parser.add_argument(f"--{key}", type=Path, metavar="DIR", help=f"a checkout of {name}")
    parser.add_argument("--half", choices=[half.value for half in Half], help="only this one [both]")
    parser.add_argument("--only", default="", metavar="TEXT", help="only strangers whose name or kind contains this")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="most rounds of each run [%(default)s]")
    parser.add_argument("--seconds", type=float, default=180.0, help="for each run [%(default)s]")
    parser.add_argument("--inputs-only", action="store_true", help="verify and time the kernels; no catalogue")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep the runs here [a temporary folder]")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the tables into this page")
    options = parser.parse_args(arguments)
    if options.write is not None and options.inputs_only:
        parser.error("--write is for the catalogue's figures: leave --inputs-only away")
    roots = {key: getattr(options, key) for key in REPOSITORIES if getattr(options, key) is not None}
    chosen = [
        each
        for each in STRANGERS
        if each.repository in roots
        and options.half in (None, each.half.value)
        and (options.only in each.name or options.only in each.kind)
    ]
    if not chosen:
        parser.error("no stranger fits: give the checkouts of their repositories, and look at --half and --only")
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:
            scratch = ScratchFolder("strangers-")
            stack.callback(scratch.close)
            folder = scratch.path
        rows = []
        for number, stranger in enumerate(chosen, 1):
            print(f"[{number}/{len(chosen)}] {stranger.name} ...", file=sys.stderr, flush=True)
            root = roots[stranger.repository].resolve()
            if options.inputs_only:
                row = input_of(stranger, root, folder.resolve())
            else:
                row = run(stranger, root, folder.resolve(), options.rounds, options.seconds)
            rows.append(row)
            print(f"[{number}/{len(chosen)}] {in_one_line(row)}", file=sys.stderr, flush=True)
    print("\n".join(table(rows, options.seconds)))
    print("\nMeant for the untouched half, and not in it:")
    print("\n".join(f"  {name}: {why}" for name, why in NOT_RUN.items()))
    if options.write is not None:
        write(options.write, [*table(rows, options.seconds), *rules_of_winners(rows)], BEGIN, END)
    return int(any(row.failed or row.unexplained for row in rows))


# --- one kernel -----------------------------------------------------------------------------------


def run(stranger: Stranger, root: Path, folder: Path, rounds: int, seconds: float) -> Row:
    """What a user's run comes to; one that is there already is read."""
    run_folder = RunFolder(folder / "checkpoints" / stranger.name)
    began = time.monotonic()
    said = ""
    try:
        if not has_begun(run_folder):
            said = _carried_out(stranger, kernel_file(stranger, root, folder), folder, rounds, seconds)
        took = time.monotonic() - began
        if not has_begun(run_folder):
            raise NotRun(said or "the run left nothing; its log says why")
        summary = summary_of(run_folder)
    except (NotRun, JournalError) as error:
        return Row(stranger, seconds=time.monotonic() - began, failed=str(error))
    row = replace(figures(stranger, summary), seconds=max(took, summary.seconds))
    if summary.baseline is None or summary.manifest.status in ("running", "failed"):
        return replace(row, after_us=row.before_us, speedup=1.0, rules=(), failed=said or summary.status)
    return row


def kernel_file(stranger: Stranger, root: Path, folder: Path) -> Path:
    """In the checkout, beside its neighbours; a copy where its own harness would complete it. Raises NotRun."""
    path = root / stranger.file
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotRun(f"{path}: {error.strerror}: is this a checkout of {REPOSITORIES[stranger.repository]}?") from None
    found = hashlib.sha256(data).hexdigest()[: len(stranger.digest)]
    if found != stranger.digest:
        print(f"{stranger.name}: {path} is {found}; its row was written for {stranger.digest}", file=sys.stderr)
    text = data.decode("utf-8")
    complete = completed(stranger, text)
    if complete == text:
        return path
    copy = folder / "kernels" / f"{stranger.name}.py"
    copy.parent.mkdir(parents=True, exist_ok=True)
    replace_file(copy, complete)
    return copy


def _carried_out(stranger: Stranger, kernel: Path, folder: Path, rounds: int, seconds: float) -> str:
    """One run in a process of its own; its last words if it did not end well."""
    command = [
        sys.executable, str(ROOT / "orchestrator.py"), "--kernel", str(kernel), "--function", stranger.function,
        "--problem", str(stranger.reference_file), "--provider", "catalogue", "--rounds", str(rounds),
        "--max-hours", f"{(seconds - NOT_COUNTED_S) / 3600:.6f}",
        "--checkpoints", str(folder / "checkpoints"), "--run-id", stranger.name,
        "--memory", str(folder / "memories" / f"{stranger.name}.json"), "--view", "plain",
    ] + ["--migrate"] * stranger.migrate  # fmt: skip
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{stranger.name}.txt").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(seconds + GRACE_S)
        except subprocess.TimeoutExpired:
            return f"killed {seconds + GRACE_S:g} s after it began"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(0)
        said = [line for line in log.read().splitlines() if line.startswith("orchestrator: ")]
    return said[-1].removeprefix("orchestrator: ") if said else ""


def figures(stranger: Stranger, summary: RunSummary) -> Row:
    """Of a run's folder."""
    if summary.baseline is None or summary.best is None or summary.lineage is None:
        return Row(stranger)
    before, after = summary.baseline.result, summary.best.result
    attempts = {attempt.id: attempt for attempt in summary.attempts}
    won = [attempts[name].plan for name in summary.lineage.path() if name in attempts]
    steps = [name.rule for plan in won if plan is not None for name, _ in steps_in(plan.details)]
    ending = [] if summary.manifest.status == "finished" else [f"ended by {summary.manifest.status}"]
    gaps = [f"{gap.name}: {microseconds(gap.cost_us).removesuffix(' µs')}" for gap in after.profile.gaps[:1]]
    large = [gap.name for gap in after.profile.gaps if gap.cost_us > LARGE_GAP * after.latency_us]
    known = summary.explanation.gaps if summary.explanation is not None else ()
    told = {gap.name for gap in known if gap.answers}
    return Row(
        stranger,
        before.latency_us,
        after.latency_us,
        summary.speedup_basis_us / after.latency_us,
        before.percent_of_peak,
        after.percent_of_peak,
        tuple(steps),
        "; ".join([*gaps, *ending]),
        unexplained=tuple(name for name in large if name not in told),
    )


def input_of(stranger: Stranger, root: Path, folder: Path) -> Row:
    """The kernel as it is, judged as a run judges its input; no catalogue sees it."""
    began = time.monotonic()
    try:
        kernel = kernel_file(stranger, root, folder)
        text = kernel_text(kernel)
        task = task_from_files(stranger.reference_file, name=stranger.name)
        task = replace(task, around=surroundings_of(kernel, text, stranger.function))
        if stranger.migrate:
            made = migrating.rewrite(kernel, text, task)
            task = replace(task, presets=tuple(preset for preset in task.presets if preset.name in made.shapes))
            text = made.source
        target = LocalTarget("simulator", "trn2")
        try:
            request = EvaluationRequest(task, Candidate("input", text), is_input=True)
            result = target.evaluate(request, lambda step, detail: None)
        finally:
            target.close()
    except (NotRun, TaskInvalid, TaskNotFound, TaskFault, TargetError, JournalError) as error:
        return Row(stranger, seconds=time.monotonic() - began, failed=str(error))
    took = time.monotonic() - began
    if not isinstance(result, Measured):
        return Row(stranger, seconds=took, failed=explain(result))
    us, percent = result.latency_us, result.percent_of_peak
    return Row(stranger, us, us, 1.0, percent, percent, (), "input only", took)


# --- showing --------------------------------------------------------------------------------------


def in_one_line(row: Row) -> str:
    if row.failed:
        return f"{row.stranger.name}: FAILED: {row.failed} ({row.seconds:.0f} s)"
    return (
        f"{row.stranger.name}: {row.before_us:,.1f} -> {row.after_us:,.1f} µs, {row.speedup:.2f}x, "
        f"{row.after_percent:.0f} % of its bound ({row.seconds:.0f} s)"
    )


def table(rows: Sequence[Row], limit_s: float) -> list[str]:
    """By halves, each with its means."""
    lines = []
    for half in Half:
        of_half = [row for row in rows if row.stranger.half is half]
        if of_half:
            lines += ["", f"## The {half.value} half", ""]
            lines += [
                "| kernel | before µs | after µs | speed-up | % of bound | largest gap left, µs |",
                "|---|---:|---:|---:|---:|---|",
                *(_cells(row) for row in of_half),
                "",
                *means(of_half, limit_s),
            ]
    return lines


def _cells(row: Row) -> str:
    name = f"{row.stranger.repository}/{row.stranger.name}"
    left = (f"**failed**: {row.failed}" if row.failed else row.left).replace("|", "/")
    us = [f"{row.before_us:,.1f}", f"{row.after_us:,.1f}"] if row.before_us else ["", ""]
    cells = [name, *us, f"{row.speedup:.2f}x", f"{row.after_percent:.0f}" if row.before_us else "", left]
    return "| " + " | ".join(cells) + " |"


def rules_of_winners(rows: Sequence[Row]) -> list[str]:
    """How many winners have each rule among their steps, the most frequent first."""
    found = Counter(name for row in rows for name in sorted(set(row.rules)))
    said = ", ".join(f"`{name}` {count}" for name, count in found.most_common())
    return ["", f"Winners that each rule is a step of: {said}."]


def means(rows: Sequence[Row], limit_s: float) -> list[str]:
    improved = sum(row.improved for row in rows)
    timed = [row for row in rows if row.before_us]
    silent = [f"{row.stranger.name}: {name}" for row in rows for name in row.unexplained]
    return [
        f"{len(rows)} kernels: geometric mean speed-up {geometric_mean(row.speedup for row in rows):.2f}x; "
        f"{improved} ({100 * improved / len(rows):.0f} %) improved by {WORTH:g}x or at {NEAR_BOUND:g} % of the bound; "
        f"{geometric_mean(row.before_percent for row in timed):.1f} % of the bound before, "
        f"{geometric_mean(row.after_percent for row in timed):.1f} % after; "
        f"{sum(bool(row.failed) for row in rows)} failed, "
        f"{sum(row.seconds > limit_s for row in rows)} took longer than {limit_s:g} s."
        + (f" Gaps above {100 * LARGE_GAP:g} % that nothing explains: {', '.join(silent)}." if silent else "")
    ]


if __name__ == "__main__":
    sys.exit(main())
