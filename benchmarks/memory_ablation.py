"""Does memory help a model? Sequences of runs with a model in the loop, with memory kept between kernels and without.

    python benchmarks/memory_ablation.py run --folder DIR --arm with --number 1 [--rounds N] [-- FLAGS...]
    python benchmarks/memory_ablation.py table --folder DIR [--write docs/search.md]

`run` takes tasks one after the other, by default with `--provider mailbox`, whose folder is DIR/ARM-NUMBER/mail:
who or what answers there is the model. With memory, all of a sequence share a file that is empty at its beginning;
without, each kernel begins with an empty one. FLAGS go to the orchestrator as they stand; another provider is named so.
Said again, it goes on where it was.

`table` counts the rounds that each run took to come to 95 % of the speed of the best that any run found for its kernel;
a run that never did counts as one round more than it might have had. What a sequence saves or loses by memory is in
the kernels after its first. The interval of the difference is from 10,000 bootstrap samples of sequences.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accelopt_core.candidate import Attempt
from benchmarks import search
from infra.runs.run_folder import RunFolder

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- memory: begin -->", "<!-- memory: end -->"
WITH, WITHOUT = "with", "without"
ARMS = (WITH, WITHOUT)
TASKS = "rmsnorm_matmul,add_rmsnorm_matmul,matmul_add_rmsnorm"
"""Of one family, so that what is learned on one may serve on the next."""
ROUNDS = 5
OF_THE_BEST = 0.95
BOOTSTRAP = 10_000


def sequence(folder: Path, arm: str, number: int, tasks: Sequence[str], rounds: int, flags: Sequence[str]) -> int:
    """The exit code of the first run that failed, or 0. A run that ended is not begun again."""
    own = folder.resolve() / f"{arm}-{number}"
    for task in tasks:
        run = own / "runs" / task
        memory = own / ("memory.json" if arm == WITH else f"memory.{task}.json")
        if (run / "manifest.json").exists():
            begin = ["--resume", task]
        else:
            begin = ["--task", task, "--run-id", task, "--rounds", str(rounds), "--patience", str(rounds)]
        provider = () if "--provider" in flags else ("--provider", "mailbox", "--mailbox", str(own / "mail"))
        done = subprocess.run(
            [
                sys.executable, str(ROOT / "orchestrator.py"), *begin, "--checkpoints", str(own / "runs"),
                "--memory", str(memory), "--view", "plain", *provider, *flags,
            ],
            cwd=ROOT,
        )  # fmt: skip
        if done.returncode:
            return done.returncode
    return 0


@dataclass(frozen=True)
class Curve:
    """The best after each round, in µs, the input kernel's first."""

    us: tuple[float, ...]
    allowed: int
    """Rounds that the run might have had: it may have ended before."""

    def rounds_to(self, us: float) -> int:
        """One more than it might have had where it was never reached."""
        return next((number for number, best in enumerate(self.us) if best <= us), self.allowed + 1)

    def reaches(self, us: float) -> bool:
        return self.us[-1] <= us


Curves = Mapping[str, Mapping[str, Mapping[int, Curve]]]
"""By task, arm and the sequence's number."""


def best_us(begun_us: float, attempts: Sequence[Attempt]) -> list[float]:
    """The best after each round, the input kernel's first; what a last check took away is none."""
    best = [begun_us]
    for number in range(1, 1 + max((each.round for each in attempts), default=0)):
        right = [each for each in attempts if each.round == number and each.measured and each.last_check is None]
        best.append(min([best[-1], *(each.measured.latency_us for each in right if each.measured)]))
    return best


def curves_of(folder: Path) -> Curves:
    """Raises SystemExit for a folder without sequences."""
    found: dict[str, dict[str, dict[int, Curve]]] = defaultdict(lambda: defaultdict(dict))
    for manifest in sorted(folder.glob("*/runs/*/manifest.json")):
        arm, _, number = manifest.parents[2].name.rpartition("-")
        folder = RunFolder(manifest.parent)
        baseline = folder.baseline()
        if arm in ARMS and baseline is not None:
            curve = Curve(tuple(best_us(baseline.result.latency_us, folder.attempts())), folder.manifest().rounds)
            found[manifest.parent.name][arm][int(number)] = curve
    if not found:
        raise SystemExit(f"memory_ablation: no sequence in {folder}: begin one with `run`")
    return found


def report(curves: Curves, order: Sequence[str]) -> list[str]:
    """Lines of Markdown."""
    lines = [
        "| kernel | input, µs | best of all, µs | memory | runs | rounds to 95 % of it | mean | speed-up |",
        "|---|---:|---:|---|---:|---|---:|---:|",
    ]
    names = [*(task for task in order if task in curves), *(task for task in curves if task not in order)]
    saved: dict[str, list[tuple[int, ...]]] = {arm: [] for arm in ARMS}
    for task in names:
        of_task = curves[task]
        all_runs = [curve for of_arm in of_task.values() for curve in of_arm.values()]
        best = min(curve.us[-1] for curve in all_runs)
        for arm in ARMS:
            runs = [curve for _, curve in sorted(of_task.get(arm, {}).items())]
            if not runs:
                continue
            enough = best / OF_THE_BEST
            took = [run.rounds_to(enough) for run in runs]
            said = ", ".join(f"{n}" if run.reaches(enough) else "never" for n, run in zip(took, runs))
            gains = statistics.geometric_mean(run.us[0] / run.us[-1] for run in runs)
            lines.append(
                f"| {task} | {runs[0].us[0]:,.1f} | {best:,.1f} | {arm} | {len(runs)} | {said} "
                f"| {statistics.mean(took):.2f} | {gains:.3f}x |"
            )
    later = names[1:]
    for arm in ARMS:
        numbers = set.intersection(*(set(curves[task].get(arm, {})) for task in later)) if later else set()
        for number in sorted(numbers):
            took_each = []
            for task in later:
                best = min(curve.us[-1] for of_arm in curves[task].values() for curve in of_arm.values())
                took_each.append(curves[task][arm][number].rounds_to(best / OF_THE_BEST))
            saved[arm].append(tuple(took_each))
    if all(len(each) > 1 for each in saved.values()):
        means = {arm: [statistics.mean(each) for each in saved[arm]] for arm in ARMS}
        low, high = _interval(means[WITH], means[WITHOUT])
        lines += [
            "",
            f"Kernels after a sequence's first: {statistics.mean(means[WITH]):.2f} rounds with memory, "
            f"{statistics.mean(means[WITHOUT]):.2f} without; the difference is "
            f"{statistics.mean(means[WITH]) - statistics.mean(means[WITHOUT]):+.2f} "
            f"(95 % interval {low:+.2f} to {high:+.2f}, {len(means[WITH])} and {len(means[WITHOUT])} sequences).",
        ]
    return lines


def _interval(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Of the difference of their means, 95 %."""
    chance = random.Random(0)
    drawn = sorted(
        statistics.fmean(chance.choices(one, k=len(one))) - statistics.fmean(chance.choices(other, k=len(other)))
        for _ in range(BOOTSTRAP)
    )
    return drawn[int(0.025 * BOOTSTRAP)], drawn[int(0.975 * BOOTSTRAP)]


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    split = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="one sequence of one arm")
    run.add_argument("--arm", choices=ARMS, required=True)
    run.add_argument("--number", type=int, required=True, help="which sequence of its arm")
    run.add_argument("--rounds", type=int, default=ROUNDS)
    table = commands.add_parser("table", help="what they came to")
    table.add_argument("--write", type=Path, metavar="FILE.md", help="renew the table of this page")
    for command in (run, table):
        command.add_argument("--folder", type=Path, required=True)
        command.add_argument("--tasks", default=TASKS, metavar="A,B,C", help="in this order")
    options = parser.parse_args(given[:split])
    tasks = options.tasks.split(",")
    if options.command == "run":
        return sequence(options.folder, options.arm, options.number, tasks, options.rounds, given[split + 1 :])
    lines = report(curves_of(options.folder), tasks)
    print("\n".join(lines))
    if options.write is not None:
        search.write(options.write, lines, BEGIN, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
