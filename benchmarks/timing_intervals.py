"""The spreads that the simulator's intervals are made of, and how many rows lie inside.

A family weighs as much as any other, and whether a row lies inside is asked with spreads made without its family:
a kernel that nobody measured is of no family that was.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.timing_rows import Outcome, Side
from nki_sim.machine import Machine
from nki_sim.timing.intervals import EVERY, KINDS, Spread, Spreads, factors

LEVEL = 0.8
TAIL = (1 - LEVEL) / 2
"""Of the rows, beyond either end."""
MOST_ON_ONE_SIDE = 0.15
"""Of the rows whose family was left out, beyond one end."""
SOURCE = "residuals of benchmarks/timing_accuracy.py, rows left out"
LEAST_ROWS, LEAST_FAMILIES = 8, 2
"""Of a kind, for a spread of its own."""


def weighted_quantile(values: Sequence[tuple[float, float]], fraction: float) -> float:
    """Of (value, weight): linear between the middles of the weights. Raises ValueError where there are none."""
    if not values:
        raise ValueError("weighted_quantile: no values")
    ordered = sorted(values)
    total = sum(weight for _, weight in ordered)
    middles, below = [], 0.0
    for _, weight in ordered:
        middles.append((below + weight / 2) / total)
        below += weight
    if fraction <= middles[0]:
        return ordered[0][0]
    for k in range(1, len(ordered)):
        if fraction <= middles[k]:
            along = (fraction - middles[k - 1]) / (middles[k] - middles[k - 1])
            return ordered[k - 1][0] + along * (ordered[k][0] - ordered[k - 1][0])
    return ordered[-1][0]


def spread(outcomes: Sequence[Outcome]) -> Spread:
    """As the rows lie, which ran and were predicted; `spreads` makes it wide enough."""
    sizes: dict[str, int] = {}
    for row in outcomes:
        sizes[row.family] = sizes.get(row.family, 0) + 1
    ratios = [(row.pair[1] / row.pair[0], 1 / sizes[row.family]) for row in outcomes]
    low, high = (weighted_quantile(ratios, tail) for tail in (TAIL, 1 - TAIL))
    return Spread(low, high, len(outcomes), len(sizes))


def spreads(outcomes: Sequence[Outcome], machine: Machine) -> Spreads:
    """By kind and of all together, so wide that LEVEL of the rows lie inside what the other families give.

    As the rows lie they would be too narrow for a new family: families differ more than the rows of one. Either end is
    moved outwards, by itself, until no more than a share of the rows lies beyond it where their family is left out. The
    share is TAIL at first, and less until that holds of families that had no part in the moving either. Raises
    ValueError where no row ran and was predicted.
    """
    known = [row for row in outcomes if row.ran_and_predicted and row.basis is not None]
    beyond = TAIL
    for beyond in SHARES_BEYOND:
        found = coverage(_sided(known, partial(_moved, beyond=beyond, machine=machine), machine))
        if found is None or (found.inside >= LEVEL and max(found.faster, found.slower) <= MOST_ON_ONE_SIDE):
            break
    return _moved(known, beyond, machine)


SHARES_BEYOND = tuple(TAIL * k / 10 for k in range(10, -1, -1))


def _moved(known: Sequence[Outcome], beyond: float, machine: Machine) -> Spreads:
    kinds = {EVERY: _wide_enough(known, beyond, machine)}
    for name in KINDS:
        rows = [row for row in known if row.basis is not None and row.basis.kind == name]
        if len(rows) >= LEAST_ROWS and len({row.family for row in rows}) >= LEAST_FAMILIES:
            kinds[name] = _wide_enough(rows, beyond, machine)
    return Spreads(machine.name, LEVEL, SOURCE, kinds)


def _wide_enough(rows: Sequence[Outcome], beyond: float, machine: Machine) -> Spread:
    """The spread of these rows, its ends moved outwards; of ratios, so by their logarithms."""
    own = spread(rows)
    sizes = Counter(row.family for row in rows)
    below: list[tuple[float, float]] = []
    above: list[tuple[float, float]] = []
    for family, size in sizes.items():
        others = [row for row in rows if row.family != family]
        if not others:
            continue
        left_out = Spreads(machine.name, LEVEL, SOURCE, {EVERY: spread(others)})
        for row in rows:
            if row.family == family:
                low_us, high_us = _ends_us(row, left_out, machine)
                below.append((max(0.0, math.log(low_us / row.pair[1])), 1 / size))
                above.append((max(0.0, math.log(row.pair[1] / high_us)), 1 / size))
    down, up = _beyond_which(below, beyond), _beyond_which(above, beyond)
    return replace(own, low=round(own.low * math.exp(-down), 4), high=round(own.high * math.exp(up), 4))


def _beyond_which(values: Sequence[tuple[float, float]], share: float) -> float:
    """Of (value, weight): the least value that at most `share` of the weight lies beyond; 0 where there are none."""
    left = share * sum(weight for _, weight in values)
    for value, weight in sorted(values, reverse=True):
        left -= weight
        if left < -1e-9:
            return value
    return 0.0


def _ends_us(row: Outcome, found: Spreads, machine: Machine) -> tuple[float, float]:
    assert row.basis is not None
    low, high = factors(row.basis, machine, found)
    return low * row.pair[0], high * row.pair[0]


def with_coverage(outcomes: Sequence[Outcome], machine: Machine) -> list[Outcome]:
    """The rows, each with its side of the interval that the other families give it.

    Unchanged where there is one family only.
    """
    return _sided(outcomes, lambda rest: spreads(rest, machine), machine)


def _sided(
    outcomes: Sequence[Outcome], made: Callable[[Sequence[Outcome]], Spreads], machine: Machine
) -> list[Outcome]:
    """`made`: spreads of the rows of the other families."""
    families = dict.fromkeys(row.family for row in outcomes if row.basis is not None and row.ran_and_predicted)
    if len(families) < 2:
        return list(outcomes)
    others = {name: made([row for row in outcomes if row.family != name]) for name in families}
    return [
        replace(row, side=_side(row, others[row.family], machine)) if row.family in others else row for row in outcomes
    ]


def _side(row: Outcome, others: Spreads, machine: Machine) -> Side | None:
    """None of a row that did not run or was refused."""
    if row.basis is None or not row.ran_and_predicted:
        return None
    low_us, high_us = _ends_us(row, others, machine)
    measured = row.pair[1]
    return "faster" if measured < low_us else "slower" if measured > high_us else "inside"


@dataclass(frozen=True)
class Coverage:
    """Shares of rows whose family was left out, every family weighing the same."""

    inside: float
    faster: float
    """Than the low end of their interval."""
    slower: float
    """Than its high end."""

    @property
    def holds(self) -> bool:
        """The level is met, neither by much too wide intervals nor by such that err on one side."""
        return LEVEL - 0.05 <= self.inside <= LEVEL + 0.05 and max(self.faster, self.slower) <= MOST_ON_ONE_SIDE


def coverage(outcomes: Sequence[Outcome]) -> Coverage | None:
    """Of rows that `with_coverage` knows the side of; None where there are none."""
    sides: dict[str, list[Side]] = {}
    for row in outcomes:
        if row.side is not None:
            sides.setdefault(row.family, []).append(row.side)
    if not sides:
        return None
    inside, faster, slower = (
        statistics.mean(each.count(side) / len(each) for each in sides.values())
        for side in ("inside", "faster", "slower")
    )
    return Coverage(inside, faster, slower)
