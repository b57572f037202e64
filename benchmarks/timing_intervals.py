"""The spreads that the simulator's intervals are made of, and how many rows lie inside.

A family weighs as much as any other, and whether a row lies inside is asked with spreads made without its family:
a kernel that nobody measured is of no family that was.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.timing_rows import Outcome
from nki_sim.intervals import EVERY, KINDS, Spread, Spreads, factors
from nki_sim.machine import Machine

LEVEL = 0.8
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
    low, high = (weighted_quantile(ratios, tail) for tail in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Spread(low, high, len(outcomes), len(sizes))


def spreads(outcomes: Sequence[Outcome], machine: Machine) -> Spreads:
    """By kind and of all together, so wide that LEVEL of the rows lie inside what the other families give.

    As they lie they would be too narrow for a new family: families differ more than the rows of one. Raises
    ValueError where no row ran and was predicted.
    """
    known = [row for row in outcomes if row.ran_and_predicted and row.basis is not None]
    own = _as_they_lie(known, machine)
    others = {
        name: _as_they_lie(rest, machine)
        for name in dict.fromkeys(row.family for row in known)
        if (rest := [row for row in known if row.family != name])
    }
    for stretch in STRETCHES:
        wider = {name: _stretched(each, stretch) for name, each in others.items()}
        if not wider or _mean_coverage(known, wider, machine) >= LEVEL:
            break
    return _stretched(own, stretch)


STRETCHES = tuple(1 + k / 10 for k in range(31))


def _as_they_lie(known: Sequence[Outcome], machine: Machine) -> Spreads:
    kinds = {EVERY: spread(known)}
    for name in KINDS:
        rows = [row for row in known if row.basis is not None and row.basis.kind == name]
        if len(rows) >= LEAST_ROWS and len({row.family for row in rows}) >= LEAST_FAMILIES:
            kinds[name] = spread(rows)
    return Spreads(machine.name, LEVEL, SOURCE, kinds)


def _stretched(found: Spreads, stretch: float) -> Spreads:
    """Each spread that many times as wide, about its own middle; of ratios, so by their logarithms."""
    kinds = {}
    for name, each in found.kinds.items():
        middle, half = math.sqrt(each.low * each.high), math.sqrt(each.high / each.low) ** stretch
        kinds[name] = replace(each, low=round(middle / half, 4), high=round(middle * half, 4))
    return replace(found, kinds=kinds)


def _mean_coverage(known: Sequence[Outcome], others: Mapping[str, Spreads], machine: Machine) -> float:
    """Every family weighs the same."""
    inside: dict[str, list[bool]] = {}
    for row in known:
        inside.setdefault(row.family, []).append(bool(_inside(row, others[row.family], machine)))
    return statistics.mean(statistics.mean(each) for each in inside.values())


def with_coverage(outcomes: Sequence[Outcome], machine: Machine) -> list[Outcome]:
    """The rows, each with whether it lies in the interval that the other families give it.

    Unchanged where there is one family only.
    """
    families = dict.fromkeys(row.family for row in outcomes if row.basis is not None and row.ran_and_predicted)
    if len(families) < 2:
        return list(outcomes)
    others = {name: spreads([row for row in outcomes if row.family != name], machine) for name in families}
    return [
        replace(row, inside=_inside(row, others[row.family], machine)) if row.family in others else row
        for row in outcomes
    ]


def _inside(row: Outcome, others: Spreads, machine: Machine) -> bool | None:
    """None of a row that did not run or was refused."""
    if row.basis is None or not row.ran_and_predicted:
        return None
    predicted, measured = row.pair
    low, high = factors(row.basis, machine, others)
    return low * predicted <= measured <= high * predicted
