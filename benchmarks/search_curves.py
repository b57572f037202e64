"""What replays on graphs of kernels come to: geometric means over tasks, against evaluations and against seconds; as
tables, as a picture for a terminal and as an SVG."""

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


def ahead(curves: Curves, strategy: str, evaluations: int, least: float) -> dict[str, float]:
    """Of the strategies whose geometric mean is above this one's by more than `least`, a fraction: by how much."""
    own = speed_up(curves, strategy, after, evaluations).mean
    others = {
        name: speed_up(curves, name, after, evaluations).mean / own - 1
        for name in strategies(curves)
        if name != strategy
    }
    return {name: by for name, by in others.items() if by > least}


COLOURS = ("#9aa5b1", "#d9822b", "#2b6cb0", "#8e44ad", "#c0392b", "#1f7a4d", "#0aa5a5")
WIDTH, HEIGHT, LEFT, TOP, GAP = 400, 260, 56, 64, 70
"""Of each of the two charts, in px, and what is around them."""
STEPS = tuple(digit * 10.0**power for power in range(-2, 9) for digit in (1, 2, 5))
MOST_LINES = 7
"""Between the lines across a chart."""


def svg(curves: Curves, most: int, longest_s: float) -> str:
    """Geometric mean of the speed-up against evaluations, and against seconds; needs no fonts or scripts of ours."""
    names = strategies(curves)
    counts = list(range(most + 1))
    shortest_s = longest_s / 1000
    times = [shortest_s * 1000 ** (step / 60) for step in range(61)]
    by_count = {n: [speed_up(curves, n, after, at) for at in counts] for n in names}
    by_time = {n: [speed_up(curves, n, within, at) for at in times] for n in names}
    top = max(each.high for of in (by_count, by_time) for spreads in of.values() for each in spreads)
    step = next(each for each in STEPS if (top - 1) / each <= MOST_LINES)
    lines = max(1, math.ceil((top - 1) / step))
    top = 1 + lines * step
    height = TOP + HEIGHT + 50 + 20 * ((len(names) + 2) // 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * (LEFT + WIDTH) + GAP}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15">Ways to search, {len(curves)} tasks of NKIBench with the catalogue, '
        "simulated: geometric mean of the speed-up</text>",
    ]
    decades = [10.0**power for power in range(-3, 7) if shortest_s <= 10.0**power <= longest_s]
    marked = [(at / most, f"{at}") for at in range(0, most + 1, 10 if most > 30 else 2)]
    powers = [(math.log10(at / shortest_s) / 3, f"{at:g}") for at in decades]
    right, seconds = 2 * LEFT + WIDTH + GAP - 20, "seconds of the evaluator, prices included"
    charts = (
        (LEFT, "evaluations", by_count, [at / most for at in counts], marked),
        (right, seconds, by_time, [step / 60 for step in range(61)], powers),
    )
    for left, what, found, places, marks in charts:
        parts += _axes(left, what, lines, step, marks)
        for name, colour in zip(names, COLOURS):
            parts += _line(left, top, places, found[name], colour)
    for number, (name, colour) in enumerate(zip(names, COLOURS)):
        x, y = LEFT + 290 * (number % 3), TOP + HEIGHT + 56 + 20 * (number // 3)
        parts.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 24}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 32}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axes(left: int, what: str, lines: int, step: float, marks: Sequence[tuple[float, str]]) -> list[str]:
    parts = []
    for number in range(lines + 1):
        y, value = TOP + HEIGHT * (1 - number / lines), 1 + step * number
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" stroke="#e4e7eb"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for place, text in marks:
        x = left + WIDTH * place
        parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{text}</text>')
    parts.append(f'<text x="{left + WIDTH / 2:.0f}" y="{TOP - 14}" text-anchor="middle">{what}</text>')
    return parts


def _line(left: int, top: float, places: Sequence[float], spreads: Sequence[Spread], colour: str) -> list[str]:
    def at(place: float, value: float) -> str:
        return f"{left + WIDTH * place:.1f},{TOP + HEIGHT * (1 - (value - 1) / (top - 1)):.1f}"

    parts = []
    if any(each.high - each.low > 1e-9 for each in spreads):
        around = [at(place, each.high) for place, each in zip(places, spreads)]
        around += [at(place, each.low) for place, each in reversed([*zip(places, spreads)])]
        parts.append(f'<polygon points="{" ".join(around)}" fill="{colour}" fill-opacity="0.18"/>')
    points = " ".join(at(place, each.mean) for place, each in zip(places, spreads))
    return [*parts, f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>']
