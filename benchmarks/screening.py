"""What a device is sent of a round, replayed on recorded grids: how much of it, and what that costs.

    python benchmarks/screening.py [--held-out] [--draws N] [--write docs/search.md]

A round is so many settings of one kernel, drawn by chance; a run goes on with rounds of the others, until fewer are
left, and learns from what was sent as a run on a device does. The device is the truth and sees what the rule sends it
(`accelopt_core/loop/screening.py`). --held-out: each grid is predicted by constants that were fitted without it (some
minutes). Ends with status 1 where what is sent is more than 1 % slower than the best of its round, in the mean.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accelopt_core.loop.screening import BEST_BY_SIMULATION, may_be_best
from benchmarks import search
from benchmarks.search_grids import Grid, Setting, grids
from ka_extensions.residuals import Correction, Residual
from nki_sim.machine import TRN2
from nki_sim.timing import ties

ROUNDS = (6, 12, 24)
"""Settings of a round."""
MOST_PERCENT = 1.0
BEGIN, END = "<!-- screening: begin -->", "<!-- screening: end -->"


@dataclass(frozen=True)
class Sent:
    """Of one round."""

    share: float
    """Of its settings."""
    regret_percent: float
    """How much slower the best of those is than the best of the round."""


def replayed(grid: Grid, of_a_round: int, draws: int) -> list[Sent]:
    """Every round of `draws` runs. Settings that have no price, or that the device did not run, are left out."""
    known = [each for each in grid.settings if each.predicted_us is not None and grid.measured_us[each.id] is not None]
    found = []
    for seed in range(draws):
        order = random.Random(seed).sample(known, len(known))
        found += list(_run(grid, [order[at - of_a_round : at] for at in range(of_a_round, len(order) + 1, of_a_round)]))
    return found


def _run(grid: Grid, rounds: Sequence[Sequence[Setting]]) -> Iterator[Sent]:
    seen: list[Residual] = []
    for some in rounds:
        correction = Correction(seen)
        us = [(each.predicted_us or 0.0) * correction.factor(_kind(each)) for each in some]
        worth = may_be_best(us, ties.shipped().within, BEST_BY_SIMULATION)
        measured = [grid.measured_us[each.id] or 0.0 for each in some]
        sent = [each for each, goes in zip(some, worth) if goes]
        best_sent = min(time for time, goes in zip(measured, worth) if goes)
        yield Sent(len(sent) / len(some), 100 * (best_sent / min(measured) - 1))
        seen += [Residual.of(_kind(each), each.predicted_us or 0.0, grid.measured_us[each.id] or 0.0) for each in sent]


def _kind(setting: Setting) -> str:
    return setting.bottleneck.value if setting.bottleneck is not None else ""


def table(found: dict[tuple[str, int], list[Sent]]) -> list[str]:
    """Lines of Markdown."""
    lines = [
        "| grid | of a round | sent | the best is among them | else slower by, mean | at most |",
        "|---|---|---|---|---|---|",
    ]
    for (grid, of_a_round), rounds in found.items():
        share = 100 * statistics.mean(each.share for each in rounds)
        right = 100 * statistics.mean(each.regret_percent == 0 for each in rounds)
        regrets = [each.regret_percent for each in rounds if each.regret_percent > 0]
        mean, most = (f"{statistics.mean(regrets):.1f} %", f"{max(regrets):.1f} %") if regrets else ("–", "–")
        lines.append(f"| {grid} | {of_a_round} | {share:.0f} % | {right:.1f} % | {mean} | {most} |")
    return lines


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--held-out", action="store_true", help="predict each grid by constants fitted without it")
    options.add_argument("--draws", type=int, default=100, metavar="N", help="runs on each grid [100]")
    options.add_argument("--write", type=Path, metavar="FILE.md", help="renew the table of this page")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    found = {
        (grid.name, size): rounds
        for grid in grids(TRN2, options.held_out)
        for size in ROUNDS
        if (rounds := replayed(grid, size, options.draws))
    }
    lines = table(found)
    print("\n".join(lines))
    if options.write is not None:
        search.write(options.write, lines, BEGIN, END)
    costly = [key for key, rounds in found.items() if statistics.mean(e.regret_percent for e in rounds) > MOST_PERCENT]
    for grid, size in costly:
        print(
            f"MISSED: what is sent of rounds of {size} of {grid} is more than {MOST_PERCENT:g} % slower than the best"
        )
    return int(bool(costly))


if __name__ == "__main__":
    sys.exit(main())
