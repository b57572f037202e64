"""A suite is one run after the other, one per task; and what they came to, as one table.

The runs of suite `S` are called `S.<task>`. What is shown is read from their folders, so a suite that was
interrupted goes on with the task it was at, and its table can be printed at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from accelopt_core.evaluation import Likely, Measured
from accelopt_core.languages.registry import language_named
from accelopt_core.task import ShapePreset
from infra.runs.run_folder import RunFolder, RunNotFound, new_run_id, run_ids
from infra.tasks.seed_index import Seed


@dataclass(frozen=True)
class Ranking:
    """How one kernel does at the task's full shape."""

    latency_us: float
    percent_of_peak: float
    engine_percent: dict[str, float]
    """Of the time, how long each engine, and what moves data, is busy."""
    verified: tuple[str, ...] = ()
    """Names of the shapes at which it was verified; empty: it was only timed."""
    likely: Likely | None = None
    """As `Measured.likely`."""
    contested: tuple[str, ...] = ()
    """As `Measured.contested`."""


@dataclass(frozen=True)
class SuiteRow:
    task: str
    shape: str
    bound_us: float
    limiter: str
    """matmul, vector or memory: which of the three bounds is the largest."""
    before: Ranking
    after: Ranking | None = None
    """None: there is no optimized kernel."""
    note: str = ""
    counterpart: Ranking | None = None
    """What stands beside `after` (`SearchState.counterpart`): the fastest of all where that rests on contested facts,
    of a device the fastest that rests on none; None where that is `after`."""


@dataclass(frozen=True)
class SuiteTable:
    machine: str
    simulated: bool
    peaks: str
    """The rates that percent of peak refers to."""
    rows: tuple[SuiteRow, ...]
    missing: dict[str, str]
    """Tasks without a row, with the reason."""
    seconds: float = 0.0
    """That passed while any run was under way."""
    caveat: str = ""
    """As `Measured.caveat`."""

    @property
    def before_percent(self) -> float:
        return geometric_mean(counted_percent(row.before) for row in self.rows)

    @property
    def after_percent(self) -> float:
        """A task without an optimized kernel counts with its input kernel."""
        return geometric_mean(counted_percent(row.after or row.before) for row in self.rows)

    @property
    def counterpart_percent(self) -> float:
        """Each task counted with its counterpart, where it has one."""
        return geometric_mean(counted_percent(row.counterpart or row.after or row.before) for row in self.rows)


def counted_percent(ranking: Ranking) -> float:
    """In a mean, a kernel above 100 % counts as 100: t_peak gives each elementwise operator a slot, fused or not."""
    return min(100.0, ranking.percent_of_peak)


def geometric_mean(values: Iterable[float]) -> float:
    """0.0 for no values at all: there is nothing to be the mean of."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else 0.0


def ranking_of(result: Measured) -> Ranking:
    names = tuple(check.partition(" (")[0] for check in result.checks)
    shares = {engine: 100 * share for engine, share in result.profile.busy_shares.items()}
    return Ranking(result.latency_us, result.percent_of_peak, shares, names, result.likely, result.contested)


# --- the runs of a suite --------------------------------------------------------------------------


def new_suite_id(name: str, now: datetime) -> str:
    return new_run_id(name, now)


ROUNDS = 30
"""The catalogue ends by itself when it has no idea left; a suite lets it come that far."""


_PRODUCTS_PER_S, _ELEMENTS_PER_S, _BYTES_PER_S = 25e9, 1e9, 1e9
"""Of a CPU that checks kernels, about: only an order follows from them."""
_AT_THE_GATES, _AT_FULL_SHAPE = 460, 6
"""How often a run computes its task, about: 77 draws, each once by the kernel and five times by the reference."""


def longest_first(seeds: Iterable[Seed]) -> tuple[str, ...]:
    """Names of tasks that run side by side, so that no long one is left for the end, beside nothing.

    By what checking them takes; how long their search is, nobody knows before.
    """
    return tuple(seed.name for seed in sorted(seeds, key=_checking_s, reverse=True))


def _checking_s(seed: Seed) -> float:
    *gates, full = (_seconds(preset) for preset in seed.presets)
    return _AT_THE_GATES * sum(gates) + _AT_FULL_SHAPE * full


def _seconds(preset: ShapePreset) -> float:
    """0 where the work is not declared."""
    work = preset.work
    if work is None:
        return 0.0
    products, elements = work.matmul_flops / _PRODUCTS_PER_S, work.vector_ops / _ELEMENTS_PER_S
    return products + elements + work.hbm_bytes / _BYTES_PER_S


def runs_to_do(checkpoints: Path, suite_id: str, tasks: Sequence[str]) -> Iterator[tuple[str, RunFolder]]:
    """Each task with its run, in order, less those that are finished already."""
    for task in tasks:
        folder = run_of(checkpoints, suite_id, task)
        if not (has_begun(folder) and folder.manifest().status == "finished"):
            yield task, folder


def has_begun(folder: RunFolder) -> bool:
    return (folder.path / "manifest.json").exists()


def run_of(checkpoints: Path, suite_id: str, task: str) -> RunFolder:
    return RunFolder(checkpoints / f"{suite_id}.{task}")


def is_suite(checkpoints: Path, suite_id: str, tasks: Sequence[str]) -> bool:
    """Some run of it has begun."""
    return any(has_begun(run_of(checkpoints, suite_id, task)) for task in tasks)


def latest_suite(checkpoints: Path, tasks: Sequence[str]) -> str:
    """Raises RunNotFound."""
    for run_id in reversed(run_ids(checkpoints)):
        suite_id, dot, task = run_id.rpartition(".")
        if dot and task in tasks:
            return suite_id
    raise RunNotFound(f"no suite in {checkpoints} yet: start one with --suite nkibench")


def table_of_runs(checkpoints: Path, suite_id: str, tasks: Sequence[str]) -> SuiteTable:
    """What the suite's runs came to so far. Raises RunNotFound when none has begun, JournalError for damage."""
    rows, missing, worked = [], {}, []
    of: Measured | None = None
    peaks = ""
    for task in tasks:
        folder = run_of(checkpoints, suite_id, task)
        baseline = folder.baseline()
        if baseline is None:
            missing[task] = folder.manifest().reason or "not measured yet" if has_begun(folder) else "not begun"
            continue
        manifest, winner = folder.manifest(), folder.winner()
        of, peaks = baseline.result, language_named(manifest.language).peaks(manifest.target.machine)
        worked.append((datetime.fromisoformat(manifest.created), datetime.fromisoformat(manifest.updated)))
        improved = winner is not None and winner.candidate.id != baseline.candidate.id
        bounds = baseline.result.profile.bounds
        rows.append(
            SuiteRow(
                task, manifest.shape, bounds.peak_us, bounds.limiter, ranking_of(baseline.result),
                ranking_of(winner.result) if winner is not None and improved else None,
                "" if manifest.status == "finished" else manifest.status,
                ranking_of(other.result) if (other := folder.best_counterpart()) is not None else None,
            )
        )  # fmt: skip
    if of is None:
        raise RunNotFound(f"no run of suite {suite_id} in {checkpoints} has measured anything yet")
    return SuiteTable(of.machine, of.simulated, peaks, tuple(rows), missing, _elapsed(worked), of.caveat)


def _elapsed(worked: Sequence[tuple[datetime, datetime]]) -> float:
    """Seconds in which any of them was under way."""
    seconds, until = 0.0, datetime.min.replace(tzinfo=timezone.utc)
    for begin, end in sorted(worked):
        seconds += max(0.0, (end - max(begin, until)).total_seconds())
        until = max(until, end)
    return seconds
