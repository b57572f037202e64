"""How far apart two predictions must be before their order is believed, from rows that one would choose among.

A pair is two rows of a grid that are both near its fastest (NEAR): where a search ends, and where the order of two
kernels is hardest to tell. A pair of a fast row and a slow one is in order nearly always, and says nothing of that.
Pairs that the device itself hardly tells apart (`clear_difference`) are left out: to take the wrong one costs no more.
Of the others, the share in the predicted order is taken as a function of the predicted difference that never falls
(isotonic regression), every family weighing the same; where it reaches the level, ties end. Families are few, and one
pair more or less of a small one can move that place from 2 to 7 %: it is found for RESAMPLES drawings of families, and
of pairs of each, with replacement, and the median taken. Predictions are by the constants as they are: what a refit
changes it changes for both rows of a pair.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

from benchmarks.timing_figures import clear_difference, grids
from benchmarks.timing_rows import Outcome
from nki_sim.machine import Machine
from nki_sim.timing.ties import Tie

LEVEL = 0.8
RESAMPLES = 400
NEAR = 1.25
"""Of a grid's fastest row: what takes longer is not near it."""
SOURCE = "pairs of rows within 25 % of their grid's fastest in benchmarks/timing_accuracy.py, by constants as they are"


@dataclass(frozen=True)
class Pair:
    family: str
    apart: float
    """Predicted difference, as a fraction of the slower prediction."""
    right: bool
    """Is the one that is predicted to be faster the faster one?"""


def pairs(outcomes: Sequence[Outcome]) -> list[Pair]:
    """Of rows that ran, were predicted, are near their grid's fastest, and that the device tells apart."""
    found = []
    for rows in grids(outcomes).values():
        fastest = min((row.measured for row in rows if row.measured is not None), default=0.0)
        known = [row for row in rows if row.ran_and_predicted and row.pair[1] <= NEAR * fastest]
        for one, other in combinations(known, 2):
            (p, m), (q, n) = sorted((one.pair, other.pair))
            if abs(m - n) > clear_difference(one.family) * min(m, n):
                found.append(Pair(one.family, 1 - p / q, m < n))
    return found


def tie(outcomes: Sequence[Outcome], machine: Machine) -> Tie:
    """Raises ValueError where no predicted difference is large enough, or there are no pairs."""
    found = pairs(outcomes)
    of: dict[str, list[Pair]] = {}
    for pair in found:
        of.setdefault(pair.family, []).append(pair)
    draw = random.Random(0)
    ends = sorted(
        _end([draw.choices(of[family], k=len(of[family])) for family in draw.choices(list(of), k=len(of))])
        for _ in range(RESAMPLES if of else 1)
    )
    within, low, high = (ends[len(ends) * quarter // 4] for quarter in (2, 1, 3))
    if within == inf:
        raise ValueError(f"no predicted difference of {len(found)} pairs gives the right order {LEVEL:.0%} of the time")
    source = f"{SOURCE}; half of {RESAMPLES} drawings of families and pairs say {100 * low:.1f} to {100 * high:.1f} %"
    return Tie(round(within, 4), LEVEL, len(found), len(of), machine.name, source)


def _end(families: Sequence[Sequence[Pair]]) -> float:
    """The least difference from which the level is reached; infinite where none is large enough."""
    points = [(pair.apart, float(pair.right), 1 / len(pairs)) for pairs in families for pair in pairs]
    return next((apart for apart, share in never_falling(points) if share >= LEVEL), inf)


def never_falling(points: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """Of (place, value, weight): the steps (first place, value) of the closest function that never falls.

    Pool adjacent violators: least squares by weight.
    """
    places: dict[float, tuple[float, float]] = {}
    for place, value, weight in points:
        before, less = places.get(place, (0.0, 0.0))
        places[place] = (before + value * weight, less + weight)
    steps: list[tuple[float, float, float]] = []  # first place, weighted sum, weight
    for place, (weighted, weight) in sorted(places.items()):
        steps.append((place, weighted, weight))
        while len(steps) > 1 and steps[-2][1] / steps[-2][2] >= steps[-1][1] / steps[-1][2]:
            _, total, more = steps.pop()
            place, before, less = steps.pop()
            steps.append((place, before + total, less + more))
    return [(place, total / weight) for place, total, weight in steps]
