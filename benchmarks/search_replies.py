"""Ways to search, replayed over recorded runs with a language model: which of the recorded plans is carried out next.

    python benchmarks/search_replies.py --runs DIR... [--seeds N] [--most N] [--write docs/search.md]

DIR is a run's folder, or one that holds such. Runs of one task, shape, machine and input kernel make a pool: what the
model ever proposed for a kernel is a change to it, and leads to the kernel that was written and measured then. A plan
costs what a plan of its run took in the mean, replies and evaluations; its guide is the gain that its planner promised.
No model is asked, so what is compared is the order in which recorded ideas are taken, and not what a model would have
said to another history. Beside the strategies stands each run as it was recorded.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accelopt_core.candidate import Attempt
from accelopt_core.loop.known_programs import INPUT
from benchmarks import search
from benchmarks.search_curves import after, best_us, by_task, table, within
from benchmarks.search_kernels import Asked, Change, Point, Timed
from benchmarks.search_walks import WALKS, replayed
from infra.journal import JournalError
from infra.llm.recording import BadRecording
from infra.llm.replay_model import NotRecorded
from infra.runs.evaluation_store import EVALUATIONS
from infra.runs.evaluations import Evaluations
from infra.runs.run_folder import RunFolder

BEGIN, END = "<!-- replies: begin -->", "<!-- replies: end -->"
RECORDED = "as recorded"
FEWEST_CHANGES, FEWEST_FORKS = 30, 5
"""Of a pool that is worth a replay: changes in all, and kernels beside the input that more than one was recorded of."""
SHOWN = (1, 2, 3, 5, 10, 20)
SHOWN_S = (60, 300, 900, 3600, 10800)


@dataclass(frozen=True)
class Recorded:
    """What one lane of one round of a run came to, repairs included."""

    parent: str
    """By content."""
    child: str
    """By content; of a plan without a kernel a name of its own."""
    technique: str
    expected_us: float | None
    """What its planner promised; None where the parent has no latency."""
    timed: Timed | None


@dataclass(frozen=True)
class Run:
    """One recorded run."""

    name: str
    start: str
    start_timed: Timed
    lanes: tuple[Recorded, ...]
    """In the order of their decisions."""
    seconds: float
    """Of a lane in the mean: the model's replies and the evaluations."""

    @property
    def curve(self) -> list[Point]:
        """As it went."""
        points = [Point(0.0, self.start_timed.us)]
        for lane in self.lanes:
            us = lane.timed.us if lane.timed is not None else points[-1].us
            points.append(Point(points[-1].seconds + self.seconds, min(us, points[-1].us)))
        return points


class Pool:
    """Runs on one problem as a graph; see `benchmarks.search_kernels.Graph`. What is measured in several runs counts as
    it was measured first."""

    def __init__(self, runs: Sequence[Run]) -> None:
        """`runs`: at least one, all of the same input kernel."""
        self.runs = tuple(runs)
        self.start = runs[0].start
        self._changes: dict[str, dict[str, Change]] = defaultdict(dict)
        self._expected: dict[str, float | None] = {}
        self._timed: dict[str, Asked[Timed | None]] = {self.start: Asked(runs[0].start_timed, 0.0)}
        for run in runs:
            for number, lane in enumerate(run.lanes):
                change = Change(lane.technique, f"{run.name} {number}", lane.child)
                self._changes[lane.parent].setdefault(lane.child, change)
                self._expected.setdefault(lane.child, lane.expected_us)
                self._timed.setdefault(lane.child, Asked(lane.timed, run.seconds))

    @property
    def changes(self) -> int:
        return sum(len(each) for each in self._changes.values())

    @property
    def forks(self) -> int:
        """Kernels beside the input of which more than one change was recorded."""
        return sum(len(each) > 1 for kernel, each in self._changes.items() if kernel != self.start)

    @property
    def is_thin(self) -> bool:
        """Would a replay say what was recorded, and nothing of who chooses?"""
        return self.changes < FEWEST_CHANGES or self.forks < FEWEST_FORKS

    def steps(self, kernel: str) -> Asked[tuple[Change, ...]]:
        found = self._changes.get(kernel, {})
        return Asked(tuple(change for change in found.values() if change.child != kernel), 0.0)

    def price_us(self, kernel: str) -> Asked[float | None]:
        """What its planner promised."""
        return Asked(self._expected.get(kernel), 0.0)

    def timed(self, kernel: str) -> Asked[Timed | None]:
        return self._timed[kernel]


def recorded_run(folder: RunFolder) -> Run | None:
    """None for one that no model took part in, or that came to no baseline. Raises JournalError and BadRecording."""
    baseline, attempts = folder.baseline(), folder.attempts()
    try:
        exchanges = folder.exchanges()
    except NotRecorded:
        return None
    if baseline is None or not exchanges or not attempts:
        return None
    start, first = baseline.candidate.content_hash, baseline.result
    contents, us = {INPUT: start}, {INPUT: first.latency_us}
    lanes: list[Recorded] = []
    for tries in _lanes(attempts):
        last = tries[-1]
        measured = last.measured if last.last_check is None else None
        parent = contents.get(last.parent_id)
        if parent is None or last.is_open:  # of a kernel that was taken back, or never evaluated
            continue
        if last.candidate is not None:
            contents[last.candidate.id] = last.candidate.content_hash
        if measured is not None:
            us[last.id] = measured.latency_us
        known_us = us.get(last.parent_id)
        promised = last.plan.expected_gain_us if last.plan is not None else 0.0
        lanes.append(
            Recorded(
                parent,
                last.candidate.content_hash if last.candidate is not None else f"{folder.run_id} {last.id}",
                last.technique or last.outcome.value,
                None if known_us is None else max(0.0, known_us - promised),
                None if measured is None else Timed(measured.latency_us, measured.bottleneck),
            )
        )
    if not lanes:
        return None
    took_s = sum(each.elapsed_s for _, each in exchanges) + Evaluations(folder.path / EVALUATIONS).seconds()
    return Run(folder.run_id, start, Timed(first.latency_us, first.bottleneck), tuple(lanes), took_s / len(lanes))


def _lanes(attempts: Sequence[Attempt]) -> Iterator[list[Attempt]]:
    """The tries of each lane of each round, in order."""
    found: dict[tuple[int, str], list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        found[attempt.round, attempt.lane].append(attempt)
    yield from found.values()


def pools(places: Sequence[Path]) -> tuple[dict[str, Pool], list[str]]:
    """By problem; and what was left out, with the reason. Raises RunNotFound's kin for no folder at all."""
    found: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    left_out = []
    for place in places:
        for manifest in sorted(place.glob("**/manifest.json")):
            folder = RunFolder(manifest.parent)
            try:
                said, run = folder.manifest(), recorded_run(folder)
            except (JournalError, BadRecording) as error:
                left_out.append(f"{folder.path}: {error}")
                continue
            if run is None:
                left_out.append(f"{folder.path}: no exchanges with a model, or nothing came of them")
                continue
            found[said.task, said.shape, said.target.fingerprint, run.start].append(run)
    named: dict[str, Pool] = {}
    for (task, shape, *_), runs in found.items():
        name = f"{task} at {shape}"
        named[name if name not in named else f"{name} ({len(named)})"] = Pool(runs)
    return named, left_out


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=Path, nargs="+", required=True, metavar="DIR", help="folders of recorded runs")
    options.add_argument("--seeds", type=int, default=5, metavar="N", help="replays of each strategy on each pool [5]")
    options.add_argument("--most", type=int, default=20, metavar="N", help="plans carried out in a replay [20]")
    options.add_argument("--write", type=Path, metavar="FILE.md", help="renew the tables of this page")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    found, left_out = pools(options.runs)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    if not found:
        print(f"search_replies: no run with a model in {', '.join(map(str, options.runs))}", file=sys.stderr)
        return 2
    lines = report(found, options.seeds, options.most)
    print("\n".join(lines))
    if options.write is not None:
        search.write(options.write, lines, BEGIN, END)
    return 0


def report(found: dict[str, Pool], seeds: int, most: int) -> list[str]:
    """Lines of Markdown: what the pools hold; and of those that are not too thin, how the strategies do."""
    lines = ["| pool | runs | changes | kernels with several beside the input | |", "|---|---|---|---|---|"]
    for name, pool in found.items():
        said = "too thin for a replay" if pool.is_thin else "replayed"
        lines.append(f"| {name} | {len(pool.runs)} | {pool.changes} | {pool.forks} | {said} |")
    rich = {name: pool for name, pool in found.items() if not pool.is_thin}
    if not rich:
        return lines
    curves: dict[str, dict[str, list[list[Point]]]] = {}
    for name, pool in rich.items():
        of_task = {what: replayed(pool, walk, range(seeds), most) for what, walk in WALKS.items()}
        curves[name] = {RECORDED: [run.curve for run in pool.runs]}
        curves[name].update({what: [run.points for run in runs] for what, runs in of_task.items()})
    counts = [at for at in SHOWN if at <= most]
    regrets = {
        (task, name): search.Runs(tuple(tuple(point.us / best_us(of) - 1 for point in curve) for curve in runs))
        for task, of in curves.items()
        for name, runs in of.items()
    }
    a_plan = statistics.mean(run.seconds for pool in rich.values() for run in pool.runs)
    return [
        *lines, "",
        *table(curves, "speed-up after so many plans carried out", counts, after), "",
        *table(curves, f"and within so many seconds (a plan took {a_plan:,.0f} in the mean)", SHOWN_S, within), "",
        f"How much slower than the best recorded kernel, in %, after {min(10, most)} plans:", "",
        *by_task(curves, {name: f"{len(pool.runs)} runs" for name, pool in rich.items()}, min(10, most)), "",
        "```", *search.picture(regrets, most), "```",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
