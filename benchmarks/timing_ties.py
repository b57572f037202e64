"""How far apart two predictions must be before their order is believed, from rows that one would choose among.

A pair is two rows of a grid that are both near its fastest (NEAR): where a search ends, and where the order of two
kernels is hardest to tell. A pair of a fast row and a slow one is in order nearly always, and says nothing of that.
Pairs that the device itself hardly tells apart (`clear_difference`) are left out: to take the wrong one costs no more.
Of the others, the share in the predicted order is taken as a function of the predicted difference that never falls
(isotonic regression), every family weighing the same; where it reaches the level, ties end. Predictions are by the
constants as they are: what a refit changes it changes for both rows of a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from benchmarks.timing_figures import clear_difference, grids
from benchmarks.timing_rows import Outcome
from nki_sim.machine import Machine
from nki_sim.ties import Tie

LEVEL = 0.8
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
    sizes: dict[str, int] = {}
    for pair in found:
        sizes[pair.family] = sizes.get(pair.family, 0) + 1
    shares = never_falling([(pair.apart, float(pair.right), 1 / sizes[pair.family]) for pair in found])
    enough = [apart for apart, share in shares if share >= LEVEL]
    if not enough:
        raise ValueError(f"no predicted difference of {len(found)} pairs gives the right order {LEVEL:.0%} of the time")
    return Tie(round(enough[0], 4), LEVEL, len(found), len(sizes), machine.name, SOURCE)


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
