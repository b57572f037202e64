"""Which variants of a kernel are kept for a set of shapes: the fewest with which each shape is as fast as can be told.

A shape is served by a variant that takes no longer than the fastest of all does there, up to a tie, and no longer than
the input kernel. The input kernel serves too: it is in the file anyway, for shapes that nobody verified. What ties give
away must not add up: together they may cost a twentieth of what is saved.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from accelopt_core.dispatch.weights import WeightedShape, in_order_of_size
from accelopt_core.task import ShapePreset

MOST_TRIED = 4096
"""Choices of variants that are gone through; beyond, one variant after the other is taken."""

_ROUNDING = 1e-12
LEAST_SAVED = 0.95
"""Of the weighted time that is saved where every shape takes its fastest variant."""

Prices = Mapping[str, Mapping[str, float]]
"""µs by shape, then by variant; a variant that does not compile or is wrong at a shape is not there."""


def chosen(prices: Prices, calls: Mapping[str, float], given: str, within: float) -> dict[str, str]:
    """By shape the variant that serves it.

    `calls`: how often each shape counts. `given`: the input kernel, which has a price at every shape. `within`: of the
    fastest variant's latency, up to where another is as good.
    """
    serving = {shape: frozenset(_serving(at, given, within)) for shape, at in prices.items()}
    choice = _Choice(prices, calls, serving, given)
    kept = choice.kept()
    return {shape: choice.at(shape, kept) for shape in prices}


@dataclass(frozen=True)
class _Choice:
    prices: Prices
    calls: Mapping[str, float]
    serving: Mapping[str, frozenset[str]]
    given: str

    def at(self, shape: str, kept: Collection[str]) -> str:
        """Among equals the input kernel, which needs no branch; then the first."""
        there = [variant for variant in (self.given, *kept) if variant in self.serving[shape]]
        return min(there, key=lambda variant: self.prices[shape][variant])

    def total(self, kept: Collection[str]) -> float:
        return math.fsum(self.calls[shape] * at[self.at(shape, kept)] for shape, at in self.prices.items())

    def kept(self) -> tuple[str, ...]:
        """The fewest with which every shape is served, and which save enough; of as many those that save most."""
        variants = sorted({variant for some in self.serving.values() for variant in some} - {self.given})
        open_to = [some for some in self.serving.values() if self.given not in some]
        most = self._most_us()
        tried = 0
        for count in range(len(variants) + 1):
            served = [some for some in combinations(variants, count) if all(each & set(some) for each in open_to)]
            best = min(served, key=lambda some: (self.total(some), some), default=None)
            if best is not None and self.total(best) <= most:
                return best
            tried += comb(len(variants), count)
            if tried > MOST_TRIED:
                break
        kept = _one_after_the_other(open_to)
        while self.total(kept) > most:
            others = [each for each in variants if each not in kept]
            kept.append(min(others, key=lambda each: self.total([*kept, each])))
        return tuple(sorted(kept))

    def _most_us(self) -> float:
        """Up to which a choice saves LEAST_SAVED of what all variants would, where the input kernel does not serve."""
        before = least = 0.0
        for shape, at in self.prices.items():
            before += self.calls[shape] * at[self.given]
            serving = self.serving[shape]
            least += self.calls[shape] * at[self.given if self.given in serving else self.at(shape, serving)]
        return (before - LEAST_SAVED * (before - least)) * (1 + _ROUNDING)


def _serving(at: Mapping[str, float], given: str, within: float) -> Iterator[str]:
    least = min(at.values())
    for variant, us in at.items():
        if us <= (1 + within) * least and us <= at[given]:
            yield variant


def _one_after_the_other(open_to: list[frozenset[str]]) -> list[str]:
    """The variant that serves most of the shapes left, until none is left; each of `open_to` has one."""
    kept: list[str] = []
    while open_to:
        candidates = sorted(frozenset().union(*open_to))
        best = max(candidates, key=lambda variant: sum(variant in some for some in open_to))
        kept.append(best)
        open_to = [some for some in open_to if best not in some]
    return kept


_Values = tuple[tuple[str, int], ...]


def shapes_between(shapes: Sequence[WeightedShape]) -> tuple[ShapePreset, ...]:
    """None of the set, and none larger than its largest in any constant; those that differ least from one of the set
    come first, turn by turn for each of them. A kernel or its reference need not be made for all of them."""
    known = {shape.preset.values for shape in shapes}
    ordered = in_order_of_size(shapes)
    ways = [list(_near(shape, ordered)) for shape in ordered]
    ways.append([_middle(one, other) for one, other in zip(ordered, ordered[1:])])
    found: dict[_Values, None] = {}
    for turn in range(max(map(len, ways))):
        for some in ways:
            if turn < len(some) and some[turn] not in known:
                found.setdefault(some[turn])
    return tuple(ShapePreset(_name(values), values) for values in found)


def _near(shape: WeightedShape, others: Sequence[WeightedShape]) -> Iterator[_Values]:
    """With one constant as another of the set has it, the nearest value first; where all have the same, with half."""
    for place, (name, value) in enumerate(shape.preset.values):
        values = sorted({dict(each.preset.values)[name] for each in others} - {value}, key=lambda v: abs(v - value))
        for changed in values or ([value // 2] if value > 1 and value % 2 == 0 else []):
            yield (*shape.preset.values[:place], (name, changed), *shape.preset.values[place + 1 :])


def _middle(one: WeightedShape, other: WeightedShape) -> _Values:
    """Halfway in every constant, and divided by what divides both."""
    ends = dict(other.preset.values)
    made = []
    for name, value in one.preset.values:
        step = math.gcd(value, ends[name])
        made.append((name, max(step, (value + ends[name]) // 2 // step * step)))
    return tuple(made)


def _name(values: _Values) -> str:
    return "between-" + "-".join(f"{name}{value}" for name, value in values)
