"""What replays on graphs of kernels come to: tables of geometric means over tasks, against evaluations and seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.search_kernels import Point

Curves = Mapping[str, Mapping[str, Sequence[Sequence[Point]]]]
"""By task and strategy: of each seed how it stood after each evaluation, first with the input kernel. A strategy that
leaves nothing to chance may have one curve for all seeds."""


@dataclass(frozen=True)
class Spread:
    """Of the same number with every seed."""

    low: float
    mean: float
    high: float

    def describe(self) -> str:
        return (
            f"{self.mean:.3f}"
            if self.high - self.low < 5e-4
            else f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"
        )


def strategies(curves: Curves) -> list[str]:
    return list(dict.fromkeys(name for of_task in curves.values() for name in of_task))


def after(curve: Sequence[Point], evaluations: float) -> float:
    """µs; a run that ended before stays where it was."""
    return curve[min(int(evaluations), len(curve) - 1)].us


def within(curve: Sequence[Point], seconds: float) -> float:
    """µs, of what was evaluated by then."""
    return min(point.us for point in curve if point.seconds <= seconds)


Reached = Callable[[Sequence[Point], float], float]
"""µs that a curve has come to, after so many evaluations or seconds."""


def speed_up(curves: Curves, strategy: str, us: Reached, at: float) -> Spread:
    """Geometric mean over the tasks, its mean over the seeds and its range."""
    seeds = max(len(of_task[strategy]) for of_task in curves.values())
    found = []
    for seed in range(seeds):
        chosen = [of_task[strategy][seed % len(of_task[strategy])] for of_task in curves.values()]
        found.append(math.exp(statistics.mean(math.log(curve[0].us / us(curve, at)) for curve in chosen)))
    return Spread(min(found), statistics.mean(found), max(found))


def best_us(of_task: Mapping[str, Sequence[Sequence[Point]]]) -> float:
    """The fastest that any strategy found with any seed."""
    return min(curve[-1].us for runs in of_task.values() for curve in runs)


def table(curves: Curves, what: str, at: Sequence[float], us: Reached) -> list[str]:
    """Lines of Markdown: a row for each strategy, a column for each of `at`."""
    lines = [f"| {what} | {' | '.join(f'{each:g}' for each in at)} |", "|" + "---|" * (len(at) + 1)]
    for name in strategies(curves):
        cells = [speed_up(curves, name, us, each).describe() for each in at]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def by_task(curves: Curves, shapes: Mapping[str, str], evaluations: int) -> list[str]:
    """Lines of Markdown: how much slower than the best known kernel each strategy's is, in %, mean over the seeds."""
    names = strategies(curves)
    lines = [f"| task | priced at | best known | {' | '.join(names)} |", "|" + "---|" * (len(names) + 3)]
    for task, of_task in curves.items():
        best, first = best_us(of_task), of_task[names[0]][0][0].us
        cells = []
        for name in names:
            slower = [100 * (after(curve, evaluations) / best - 1) for curve in of_task[name]]
            cells.append(f"{statistics.mean(slower):.1f}")
        lines.append(f"| {task} | {shapes[task]} | {first / best:.2f}x | {' | '.join(cells)} |")
    return lines
