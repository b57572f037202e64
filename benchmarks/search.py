"""Ways to search for the fastest kernel, replayed on recorded grids: the best so far against evaluations of the device.

    python benchmarks/search.py [--held-out] [--seeds N] [--most N] [--write docs/search.md]

The device is the truth and the simulator the guide, of whose predictions any number costs nothing. --held-out: each
grid is predicted by constants that were fitted without it (some minutes). Ends with status 1 where archive + sweep
needs more than 5 evaluations for the best of a grid, within 2 %.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.search_grids import Device, Grid, Spent, grids
from benchmarks.search_strategies import STRATEGIES, Strategy
from nki_sim.machine import TRN2

WITHIN, ENOUGH = 0.02, 5
"""The target: this close to a grid's best, by so many evaluations."""
HELD = "archive + sweep"
BEGIN, END = "<!-- search: begin -->", "<!-- search: end -->"


@dataclass(frozen=True)
class Runs:
    """Of one strategy on one grid: a run per seed, and the start of each the same for all strategies."""

    regrets: tuple[tuple[float, ...], ...]
    """By run and evaluation: how much slower than the grid's best the best so far is, a fraction; first the start."""

    def at(self, evaluations: int) -> list[float]:
        """Of each run; one that ended before stays where it was."""
        return [curve[min(evaluations, len(curve) - 1)] for curve in self.regrets]

    @property
    def needed(self) -> list[int | None]:
        """Evaluations until it is within WITHIN of the best, by run; None where it never is."""
        return [next((at for at, regret in enumerate(curve) if regret <= WITHIN), None) for curve in self.regrets]


def replayed(grid: Grid, strategy: Strategy, seeds: Sequence[int], most: int) -> Runs:
    """Each seed draws the kernel to begin with, of those that are not within WITHIN of the best, and all of chance."""
    slow = [each for each in grid.runnable if (grid.measured_us[each.id] or 0.0) > (1 + WITHIN) * grid.best_us]
    curves = []
    for seed in seeds:
        start = random.Random(seed).choice(slow)
        device = Device(grid, start, most)
        try:
            strategy(grid, device, start, random.Random(seed))
        except Spent:
            pass
        curves.append(tuple(us / grid.best_us - 1 for us in device.curve_us))
    return Runs(tuple(curves))


SHOWN = (1, 3, 10)
"""Evaluations at which the table has a column."""


def table(found: dict[tuple[str, str], Runs]) -> list[str]:
    """Lines of Markdown: the regret in %, its median and its range over the seeds."""
    head = f"| grid | strategy | {' | '.join(f'after {at}' for at in SHOWN)} | to {100 * WITHIN:.0f} % |"
    lines = [head, "|" + "---|" * (head.count("|") - 1)]
    for (grid, strategy), runs in found.items():
        cells = [_spread([100 * regret for regret in runs.at(at)]) for at in SHOWN]
        lines.append(f"| {grid} | {strategy} | {' | '.join(cells)} | {_evaluations(runs.needed)} |")
    return lines


def _spread(values: Sequence[float]) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.1f}" if high - low < 0.05 else f"{middle:.1f} ({low:.1f} to {high:.1f})"


def _evaluations(needed: Sequence[int | None]) -> str:
    known = sorted(at for at in needed if at is not None)
    if not known:
        return "never"
    text = str(known[0]) if known[0] == known[-1] else f"{known[0]} to {known[-1]}"
    return text if len(known) == len(needed) else f"{text}; {len(needed) - len(known)} of {len(needed)} never"


MARKS = ((10.0, "#"), (5.0, "X"), (2.0, "o"), (1.0, "-"), (0.5, "."), (0.0, " "))
"""Regrets in %, and how the picture shows what is above."""


def picture(found: dict[tuple[str, str], Runs], most: int) -> list[str]:
    """A line for each strategy, a column for each evaluation: the mean over grids and seeds of the regret."""
    names = list(dict.fromkeys(strategy for _, strategy in found))
    widest = max(map(len, names))
    said = ", ".join(f"{mark} above {least:g}" for least, mark in MARKS[:-1])
    scale = "".join(f"{at:<10}" for at in range(0, most + 1, 10))
    lines = [f"regret in %, mean over grids and seeds: {said}", f"{'evaluations':>{widest}}  {scale.rstrip()}"]
    for name in names:
        runs = [each for (_, strategy), each in found.items() if strategy == name]
        means = [100 * statistics.mean(regret for each in runs for regret in each.at(at)) for at in range(most + 1)]
        row = "".join(next(mark for least, mark in MARKS if mean >= least) for mean in means)
        lines.append(f"{name:>{widest}} |{row}|")
    return lines


def missed(found: dict[tuple[str, str], Runs]) -> list[str]:
    """Grids on which the target is missed, by name."""
    return [
        grid
        for (grid, strategy), runs in found.items()
        if strategy == HELD and any(at is None or at > ENOUGH for at in runs.needed)
    ]


def write(path: Path, lines: Sequence[str], first: str = BEGIN, last: str = END) -> None:
    """Between the two marks of a document. Raises ValueError where it has none."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{path} has no {first} and {last}")
    path.write_text("\n".join([before + begin, *lines, end + after]), encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--held-out", action="store_true", help="predict each grid by constants fitted without it")
    options.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each strategy on each grid [5]")
    options.add_argument("--most", type=int, default=40, metavar="N", help="evaluations of a run [40]")
    options.add_argument("--write", type=Path, metavar="FILE.md", help="renew the table and the picture of this page")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    found = {
        (grid.name, name): replayed(grid, strategy, range(options.seeds), options.most)
        for grid in grids(TRN2, options.held_out)
        for name, strategy in STRATEGIES.items()
    }
    lines = [*table(found), "", "```", *picture(found, options.most), "```"]
    print("\n".join(lines))
    if options.write is not None:
        write(options.write, lines)
    for grid in missed(found):
        print(f"MISSED: {HELD} on {grid}")
    return int(bool(missed(found)))


if __name__ == "__main__":
    sys.exit(main())
