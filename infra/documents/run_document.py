"""One run as a document, and the list of all runs: of a run's folder, as `show` and `runs` print them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from accelopt_core.candidate import Attempt
from accelopt_core.evaluation import CompilersOwn, Gap, HotLine, Likely, Measured, Proof, bound_by
from infra.journal import JournalError
from infra.runs.run_folder import Manifest, RunFolder, run_ids
from infra.runs.shape_set import BetweenRow, SetFolder, SetRow, SetTable
from infra.runs.suite import SuiteRow, SuiteTable
from infra.terminal.report import RunSummary, conclusion, diff_of, summary_of
from infra.terminal.wording import printable
from ka_extensions.outcome import Outcome


@dataclass(frozen=True)
class KernelDocument:
    """A kernel that is right, as it was measured."""

    id: str
    latency_us: float
    """Median of the timed executions; of the simulator the one latency there is."""
    min_us: float
    max_us: float
    samples: int
    simulated: bool
    """Not taken by a device. Wherever the latency is shown, this must be."""
    machine: str
    """What it ran on and with which toolchain."""
    caveat: str
    """What must be said wherever the latency is shown; empty where nothing must."""
    likely: Likely | None
    """Of a simulated latency, where a device's would lie."""
    percent_of_peak: float | None
    """Of the time that the useful work takes at the core's peak rates."""
    bound_by: str
    """The engine, or dma, that limits it; empty where none is busy enough."""
    verified: tuple[str, ...]
    """One line for each tier of checks."""
    verified_full: bool
    """Whether the full shape was verified too."""
    proofs: tuple[Proof, ...]
    gaps: tuple[Gap, ...]
    """Where time is lost, in microseconds, with the class of remedy."""
    hot_lines: tuple[HotLine, ...]
    fields: dict[str, float | None]
    """The profiler's, by its names and in its units (seconds, bytes, fractions of 1)."""
    cores: int
    """NeuronCores that it ran on at once."""
    contested: tuple[str, ...] = ()
    """Facts of the machine that its latency rests on by simulation, on which documentation contradicts itself or a
    compiler crashed."""


@dataclass(frozen=True)
class AttemptDocument:
    """One kernel that was tried, or a plan that came to none."""

    round: int
    lane: str
    """Which of the candidates that the round tried side by side; empty where it tried one."""
    number: int
    """1 for the first of its lane in the round, 2 and up for repairs."""
    id: str
    parent_id: str
    technique: str
    """A stable name; empty without a plan."""
    title: str
    expected_gain_us: float | None
    outcome: Outcome
    latency_us: float | None
    """None where it was not timed."""
    summary: str
    """One line: what became of it."""
    proposer: str
    """Who made it, where several take turns."""


@dataclass(frozen=True)
class ModelCallsDocument:
    """What language models took."""

    calls: int
    failed: int
    cost_usd: float
    """Of the calls whose price is known."""
    unpriced_calls: int
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int


@dataclass(frozen=True)
class RunDocument:
    """One run: what was asked, what it came to, every attempt."""

    run_id: str
    status: Literal["running", "finished", "interrupted", "budget", "failed"]
    """`running` with `under_way` false: its process is gone, and --resume goes on with it."""
    under_way: bool
    reason: str
    """Why it stopped, in one line; empty while it has not."""
    task: str
    shape: str
    kernel: str
    """Path of the file that was given."""
    target: str
    """What kernels were evaluated on, for people."""
    machine: str
    """What it times on: trn1, trn2 or trn3."""
    simulated: bool
    proposer: str
    created: str
    """ISO time, UTC."""
    updated: str
    seconds: float
    """At work, all sessions together."""
    rounds_wanted: int
    """Most rounds to run."""
    rounds: int
    """That were begun."""
    conclusion: tuple[str, ...]
    """The result for people, as a run's last lines say it: how much faster, how it is verified, where the kernel lies.
    Empty where the input kernel was never measured."""
    improved: bool
    speedup: float | None
    """The input kernel's latency over the best one's, timed side by side where that was done."""
    baseline: KernelDocument | None
    """The input kernel; null where the run ended before it was measured."""
    best: KernelDocument | None
    """The input kernel where nothing was faster. Of simulated latencies one that rests on no contested fact, unless the
    input kernel rests on it too."""
    counterpart: KernelDocument | None
    """The fastest kernel of all, where that rests on contested facts and the best on none; of a device the other way
    round. Null where the best is both."""
    tied: tuple[str, ...]
    """Kernels that simulated latencies cannot tell from the best, the fastest first; none of a device's."""
    bound_us: float | None
    """What the useful work takes at the core's peak rates: a yardstick; null where nothing was measured."""
    compilers_own: CompilersOwn | None
    """What the SDK's compiler makes of the reference by itself, which needs a device; null where nobody asked it."""
    folder: str
    best_kernel: str | None
    """Path of the best kernel's file."""
    diff: str
    """Unified, from the input kernel to the best; empty where nothing was faster."""
    attempts: tuple[AttemptDocument, ...]
    model_calls: ModelCallsDocument
    versions: dict[str, str]
    """Of this program, Python, the prompts."""
    schema: Literal["nki-optimizer/run/1"] = "nki-optimizer/run/1"


@dataclass(frozen=True)
class RunInList:
    run_id: str
    damaged: str
    """What is wrong with its files, and then all else is null; empty where nothing is."""
    status: str | None = None
    under_way: bool | None = None
    task: str | None = None
    target: str | None = None
    simulated: bool | None = None
    created: str | None = None
    rounds: int | None = None
    best_us: float | None = None
    speedup: float | None = None
    folder: str | None = None


@dataclass(frozen=True)
class RunsDocument:
    """All runs of a folder, newest first."""

    checkpoints: str
    runs: tuple[RunInList, ...]
    schema: Literal["nki-optimizer/runs/1"] = "nki-optimizer/runs/1"


def run_document(summary: RunSummary) -> RunDocument:
    manifest, best, other = summary.manifest, summary.best, summary.counterpart
    calls = summary.model_calls
    return RunDocument(
        run_id=manifest.run_id,
        status=manifest.status,
        under_way=summary.under_way,
        reason=manifest.reason,
        task=manifest.task,
        shape=manifest.shape,
        kernel=manifest.kernel,
        target=manifest.target.name,
        machine=manifest.target.machine,
        simulated=manifest.target.simulated,
        proposer=manifest.proposer,
        created=manifest.created,
        updated=manifest.updated,
        seconds=summary.seconds,
        rounds_wanted=manifest.rounds,
        rounds=_rounds(summary),
        conclusion=conclusion(summary),
        improved=summary.improved,
        speedup=_speedup(summary),
        baseline=kernel_document(summary.baseline.candidate.id, summary.baseline.result) if summary.baseline else None,
        best=kernel_document(best.candidate.id, best.result) if best else None,
        counterpart=kernel_document(other.candidate.id, other.result) if other else None,
        tied=summary.tied,
        bound_us=best.result.profile.bounds.peak_us if best else None,
        compilers_own=summary.compilers_own,
        folder=str(summary.folder.path.absolute()),
        best_kernel=str(summary.folder.best_kernel.absolute()) if best else None,
        diff="".join(f"{line}\n" for line in diff_of(summary)),
        attempts=tuple(map(_attempt, summary.attempts)),
        model_calls=ModelCallsDocument(
            calls.calls, calls.failed, calls.cost_usd, calls.unpriced_calls, calls.usage.input_tokens,
            calls.usage.output_tokens, calls.usage.cached_input_tokens,
        ),
        versions=manifest.versions,
    )  # fmt: skip


def runs_document(checkpoints: Path) -> RunsDocument:
    """Raises JournalError where the folder cannot be read; a run that cannot is listed with what is wrong."""
    listed = []
    for run_id in reversed(run_ids(checkpoints)):
        try:
            listed.append(_in_list(run_id, summary_of(RunFolder(checkpoints / run_id))))
        except JournalError as error:
            listed.append(RunInList(run_id, str(error)))
    return RunsDocument(str(checkpoints.absolute()), tuple(listed))


def _in_list(run_id: str, summary: RunSummary) -> RunInList:
    manifest: Manifest = summary.manifest
    return RunInList(
        run_id, "", manifest.status, summary.under_way, manifest.task, manifest.target.name, manifest.target.simulated,
        manifest.created, _rounds(summary), summary.best.result.latency_us if summary.best else None,
        _speedup(summary), str(summary.folder.path.absolute()),
    )  # fmt: skip


def _rounds(summary: RunSummary) -> int:
    return len({attempt.round for attempt in summary.attempts})


def _speedup(summary: RunSummary) -> float | None:
    if summary.best is None or summary.baseline is None:
        return None
    return summary.speedup_basis_us / summary.best.result.latency_us


def kernel_document(name: str, result: Measured) -> KernelDocument:
    profile = result.profile
    return KernelDocument(
        name, result.latency_us, result.min_us, result.max_us, result.samples, result.simulated, result.machine,
        result.caveat, result.likely, result.percent_of_peak, bound_by(profile.fields), result.checks,
        result.verified_full, result.proofs, profile.gaps, profile.hot_lines, dict(profile.fields), result.cores,
        result.contested,
    )  # fmt: skip


def _attempt(attempt: Attempt) -> AttemptDocument:
    return AttemptDocument(
        attempt.round, attempt.lane, attempt.number, attempt.id, attempt.parent_id, attempt.technique,
        printable(attempt.title), attempt.plan.expected_gain_us if attempt.plan is not None else None,
        attempt.outcome, attempt.latency_us, printable(attempt.summary), attempt.proposer,
    )  # fmt: skip


@dataclass(frozen=True)
class SuiteDocument:
    """One line for each task that was measured. Percentages are of the core's peak rates."""

    suite_id: str
    """What `--resume` goes on with."""
    machine: str
    simulated: bool
    caveat: str
    """What must be said wherever a latency is shown; empty where nothing must."""
    peaks: str
    """The rates that percent of peak refers to."""
    before_percent: float
    """Geometric mean over the tasks, each counted with 100 at most."""
    after_percent: float
    """The same of the best kernels: of simulated latencies those that rest on no contested fact."""
    counterpart_percent: float
    """The same, each task with its counterpart where it has one: of simulated latencies the fastest of all kernels."""
    rows: tuple[SuiteRow, ...]
    """`after` is null where nothing was faster than the input kernel."""
    missing: dict[str, str]
    """Tasks without a row, with the reason."""
    seconds: float
    """Of all runs together."""
    schema: Literal["nki-optimizer/suite/1"] = "nki-optimizer/suite/1"


def suite_document(suite_id: str, table: SuiteTable) -> SuiteDocument:
    return SuiteDocument(
        suite_id, table.machine, table.simulated, table.caveat, table.peaks, table.before_percent, table.after_percent,
        table.counterpart_percent, table.rows, table.missing, table.seconds,
    )  # fmt: skip


@dataclass(frozen=True)
class ShapesDocument:
    """One kernel for several shapes: one line for each shape whose run has measured something."""

    set_id: str
    """What `--resume` goes on with; its runs are called `<set_id>.<name of the shape>`."""
    kernel: str
    """Path of the file that was given."""
    task: str
    created: str
    """ISO time, UTC."""
    complete: bool
    """The joined kernel was made, and is verified at every line's shape."""
    best_kernel: str | None
    """Path of the joined kernel; the input kernel where nothing was faster."""
    machine: str
    simulated: bool
    caveat: str
    """What must be said wherever a latency is shown; empty where nothing must."""
    counting: Literal["calls", "share"]
    """What `weight` is: how often a step calls the kernel, or its share of the step's time before."""
    before_us: float
    """Of all calls together, with the input kernel."""
    alone_us: float
    """The same with a kernel for each shape, tuned for it alone."""
    after_us: float
    """The same with the joined kernel."""
    speedup: float | None
    """Weighted; null before anything was measured."""
    kept_percent: float | None
    """Of the weighted time that tuning each shape alone saves, what the joined kernel saves; null where that is 0."""
    variants: int
    """In the joined kernel, beside the input kernel."""
    rows: tuple[SetRow, ...]
    between: tuple[BetweenRow, ...]
    """Shapes that are none of the set, at which the joined kernel was found to be what the input kernel is."""
    missing: dict[str, str]
    """Shapes without a line, with the reason."""
    notes: tuple[str, ...]
    seconds: float
    """Of all runs together, and of the joined kernel's evaluations."""
    schema: Literal["nki-optimizer/shapes/1"] = "nki-optimizer/shapes/1"


def shapes_document(folder: SetFolder, table: SetTable) -> ShapesDocument:
    manifest = folder.manifest()
    complete = bool(table.rows) and table.is_complete
    return ShapesDocument(
        folder.set_id, manifest.kernel, manifest.task, manifest.created, complete,
        str(folder.best_kernel) if complete else None, table.machine, table.simulated, table.caveat,
        table.counting.value, table.before_us, table.alone_us, table.after_us,
        table.before_us / table.after_us if table.rows else None, table.kept_percent, table.variants, table.rows,
        table.between, table.missing, table.notes, table.seconds,
    )  # fmt: skip
