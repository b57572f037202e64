"""Which variants of a kernel are kept for a set of shapes: the fewest with which each shape is as fast as can be told.

A shape is served by a variant that takes no longer than the fastest of all does there, up to a tie, and no longer than
the input kernel. The input kernel serves too: it is in the file anyway, for shapes that nobody verified. What ties give
away must not add up: together they may cost a twentieth of what is saved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb

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
        return sum(self.calls[shape] * at[self.at(shape, kept)] for shape, at in self.prices.items())

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
