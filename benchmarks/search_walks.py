"""Ways to search a graph of kernels, told apart by which change they try next. Each goes on until no evaluation is left
or nothing to try.

A price is a prediction, of which any number may be asked; an evaluation verifies and times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from accelopt_core.catalogue import sweep
from accelopt_core.catalogue.descent import NEARBY, NEAREST
from accelopt_core.catalogue.nodes import LEAST_SUMMAND, LookAhead
from accelopt_core.loop.archive import Archive, Cell
from accelopt_core.transforms.registry import LESS_WORK
from accelopt_core.transforms.retile import Retile
from benchmarks.search_kernels import Change, Search
from ka_extensions.divergence_guard import DivergenceGuard
from nki_sim import ties
from nki_sim.ties import LEAST_GAIN, worth_a_round

Walk = Callable[[Search, random.Random], None]
"""Raises Spent where its evaluations end before its ideas."""

NOISE = DivergenceGuard().noise
WORTH = worth_a_round(ties.shipped().within)
"""The least predicted gain, of the latency, that is worth an evaluation to who goes by gains."""
AHEAD = LookAhead()
BEGINNINGS = 3
"""Ties from which small gains are added up."""
WAY = 20
"""Steps of another way from the input kernel, at most."""

BEAM, PLANS, SAMPLES = 6, 12, 2
ITERATIONS = 16
SWEPT = 3
"""Of the changes to a kernel, the best by price: those whose tunables are swept as well."""


def at_random(search: Search, chance: random.Random) -> None:
    """Any change to any kernel that is known to be right."""
    known = [search.start]
    while known:
        parent = chance.choice(known)
        untried = search.untried(parent)
        if not untried:
            known.remove(parent)
            continue
        step = chance.choice(untried)
        if search.time(step.child) is not None:
            known.append(step.child)


def greedy_by_price(search: Search, chance: random.Random) -> None:
    """Of all changes to all kernels that are known to be right the one that leads to the best price."""
    open_to: dict[str, float] = {}
    latest: str | None = search.start
    while True:
        for step in search.untried(latest) if latest is not None else ():
            us = search.price_us(step.child)
            if us is not None:
                open_to[step.child] = us
        if not open_to:
            return
        child = min(open_to, key=open_to.__getitem__)
        del open_to[child]
        latest = child if search.time(child) is not None else None


def single_lineage(search: Search, chance: random.Random) -> None:
    """The loop as it runs by default: from the best kernel the best idea of the catalogue's planner; where there is
    none, further ahead by prices; and then it ends."""
    ideas, parent = Ideas(search), search.start
    while True:
        idea = ideas.near(parent) or ideas.further() or ideas.another_way()
        if idea is None:
            return
        best_us = search.points[-1].us
        timed = search.time(idea.child)
        if timed is not None and timed.us < (1 - NOISE) * best_us:
            parent = idea.child


def accelopts_beam(search: Search, chance: random.Random) -> None:
    """Of each of 6 parents 12 plans, of each plan 2 samples; the 6 fastest of an iteration are the next parents.

    A plan is a technique, and a sample where it is applied. Nothing is priced, and parents are not compared with their
    children.
    """
    parents = [search.start]
    for _ in range(ITERATIONS):
        found: dict[str, float] = {}
        for parent in parents:
            steps = search.steps(parent)
            techniques = list(dict.fromkeys(step.technique for step in steps))
            for _ in range(PLANS if techniques else 0):
                technique = chance.choice(techniques)
                for step in chance.choices([each for each in steps if each.technique == technique], k=SAMPLES):
                    timed = search.time(step.child)
                    if timed is not None:
                        found[step.child] = timed.us
        parents = sorted(found, key=found.__getitem__)[:BEAM] or parents


def archive_and_sweep(search: Search, chance: random.Random) -> None:
    """From an elite of the archive the change to the best price, of which the values of tunables are swept by price;
    the next elite where nothing is left."""
    _best_of_swept(search, _by_price)


def less_work_and_sweep(search: Search, chance: random.Random) -> None:
    """The same; but as long as a change gains more than a tie and leaves less work, of those alone."""
    _best_of_swept(search, _less_work_first)


def archive_and_planner(search: Search, chance: random.Random) -> None:
    """As the loop with `--beam`: the planner of the single lineage asked for every elite of the archive, and the values
    of the chosen kernel's tunables swept; where it has no idea, the best price an elite has left."""
    ideas, archive = Ideas(search), _Elites(search)
    while True:
        elites = archive.order()
        idea = (
            next((idea for parent in elites if (idea := ideas.near(parent)) is not None), None)
            or ideas.further()
            or ideas.another_way()
            or next((_idea(parent, step) for parent in elites for _, step in _by_price(search, parent)), None)
        )
        if idea is None:
            return
        archive.evaluate(_swept(search, idea.child), idea.parent, idea.techniques)


DEFAULT = "single lineage"
WALKS: Mapping[str, Walk] = {
    "random": at_random,
    "greedy by price": greedy_by_price,
    DEFAULT: single_lineage,
    f"AccelOpt's beam ({BEAM} x {PLANS} x {SAMPLES})": accelopts_beam,
    "archive + planner": archive_and_planner,
    "archive + sweep": archive_and_sweep,
    "archive + sweep, less work first": less_work_and_sweep,
}
BY_CHANCE = frozenset({at_random, accelopts_beam})
"""The others come to the same whatever the seed."""


@dataclass(frozen=True)
class Idea:
    parent: str
    """Evaluated."""
    techniques: tuple[str, ...]
    """In the order of their steps."""
    child: str

    def then(self, step: Change) -> Idea:
        return Idea(self.parent, (*self.techniques, step.technique), step.child)


class Ideas:
    """What the catalogue's planner finds, by prices alone (`accelopt_core/catalogue/proposer.py`): all of it but sites
    of one kind taken together, and what leaves less work put before what regroups."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._barren: set[str] = set()
        """Kernels of which no single change, and no sum of small ones, gains."""
        self._way: Idea | None = None
        self._gone = False

    def near(self, parent: str) -> Idea | None:
        """One change that gains more than a tie, first of those that leave less work; else small gains added up."""
        if parent in self._barren:
            return None
        before_us = self._us(parent)
        gaining = [
            (us, step)
            for us, step in self._priced(parent)
            if us <= (1 - LEAST_SUMMAND) * before_us and not self._search.is_tried(step.child)
        ]
        worth = [pair for pair in gaining if pair[0] <= (1 - WORTH) * before_us]
        if worth:
            step = min(worth, key=lambda pair: (pair[1].technique not in LESS_WORK, pair[0]))[1]
            return _idea(parent, step)
        for _, step in sorted(gaining, key=lambda pair: pair[0])[:BEGINNINGS]:
            idea = self._summed(_idea(parent, step), (1 - WORTH) * before_us)
            if idea is not None:
                return idea
        self._barren.add(parent)
        return None

    def further(self) -> Idea | None:
        """Two changes to one of the fastest kernels, together faster than the best by more than a tie; what the first
        opens comes before what was possible without it."""
        best_us = self._us(self._search.best)
        enough_us, too_slow_us = (1 - WORTH) * best_us, AHEAD.explore_within * best_us
        left = AHEAD.most_kernels
        for root, _ in sorted(self._search.measured, key=lambda pair: pair[1].us)[: AHEAD.roots]:
            before = {(step.technique, step.site) for step in self._search.steps(root)}
            untried = self._prices(self._search.untried(root))  # the others are roots themselves, or wrong
            near = sorted((pair for pair in untried if pair[0] <= too_slow_us), key=lambda pair: pair[0])
            for opened in (True, False):
                for _, first in near[:NEAREST]:
                    beyond = [
                        step
                        for step in self._search.untried(first.child)
                        if ((step.technique, step.site) not in before) is opened
                    ][:left]
                    left -= len(beyond)
                    found = [(us, step) for us, step in self._prices(beyond) if us <= enough_us]
                    if found:
                        return _idea(root, first).then(min(found, key=lambda pair: pair[0])[1])
                    if not left:
                        return None
        return None

    def another_way(self) -> Idea | None:
        """From the input kernel first what leaves less work and costs nothing, then what gains most, step by step, two
        at once where no single one gains; where that ends ahead of the best by more than a tie."""
        if not self._gone:
            self._gone, self._way = True, self._down()
        idea, best_us = self._way, self._us(self._search.best)
        if idea is None or self._search.is_tried(idea.child) or self._us(idea.child) > (1 - WORTH) * best_us:
            return None
        return idea

    def _summed(self, idea: Idea, enough_us: float) -> Idea | None:
        while len(idea.techniques) < AHEAD.longest_sum:
            before_us = self._us(idea.child)
            priced = [pair for pair in self._priced(idea.child) if pair[0] <= (1 - LEAST_SUMMAND) * before_us]
            if not priced:
                return None
            us, step = min(priced, key=lambda pair: pair[0])
            idea = idea.then(step)
            if us <= enough_us and not self._search.is_tried(idea.child):
                return idea
        return None

    def _down(self) -> Idea | None:
        idea, seen = Idea(self._search.start, (), self._search.start), {self._search.start}
        for only, at_most in ((LESS_WORK, 1 + LEAST_SUMMAND), (None, 1 - LEAST_SUMMAND)):
            while len(idea.techniques) < WAY:
                before_us = self._us(idea.child)
                near = [pair for pair in self._priced(idea.child) if pair[1].child not in seen]
                ways: list[tuple[tuple[Change, ...], float]] = [
                    ((step,), us)
                    for us, step in near
                    if us <= at_most * before_us and (only is None or step.technique in only)
                ]
                if not ways and only is None:
                    ways = list(self._two_steps(near, before_us, at_most))
                if not ways:
                    break
                for step in min(ways, key=lambda way: way[1])[0]:
                    idea = idea.then(step)
                    seen.add(step.child)
        return idea if idea.techniques else None

    def _two_steps(
        self, near: list[tuple[float, Change]], before_us: float, at_most: float
    ) -> Iterator[tuple[tuple[Change, ...], float]]:
        """Of the fastest first step that opens a second with which it gains."""
        close = sorted((pair for pair in near if pair[0] <= NEARBY * before_us), key=lambda pair: pair[0])
        known = {(step.technique, step.site) for _, step in near}
        for _, first in close[:NEAREST]:
            opened = [s for s in self._search.steps(first.child) if (s.technique, s.site) not in known]
            found = [((first, step), us) for us, step in self._prices(opened) if us <= at_most * before_us]
            if found:
                yield from found
                return

    def _priced(self, kernel: str) -> list[tuple[float, Change]]:
        """Without those that do not compile."""
        return self._prices(self._search.steps(kernel))

    def _prices(self, steps: tuple[Change, ...] | list[Change]) -> list[tuple[float, Change]]:
        return [(us, step) for step in steps if (us := self._search.price_us(step.child)) is not None]

    def _us(self, kernel: str) -> float:
        us = self._search.price_us(kernel)
        assert us is not None, "what was evaluated, or gone on from, has a price"
        return us


class _Elites:
    """The archive of one run: of each kind of kernel the fastest."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._archive = Archive[str]()
        self._techniques: dict[str, frozenset[str]] = {}
        self._offer(search.start, frozenset())

    def order(self) -> tuple[str, ...]:
        return self._archive.draw(len(self._archive.cells))

    def evaluate(self, kernel: str, parent: str, techniques: tuple[str, ...]) -> None:
        """`techniques`: by which it was made of the parent. Raises Spent."""
        timed, before = self._search.time(kernel), self._search.time(parent)
        assert before is not None, "an elite is right"
        self._archive.went_on_from(parent, timed is not None and timed.us < (1 - NOISE) * before.us)
        if timed is not None:
            self._offer(kernel, self._techniques[parent] | (frozenset(techniques) - {Retile.name}))

    def _offer(self, kernel: str, techniques: frozenset[str]) -> None:
        timed = self._search.time(kernel)
        assert timed is not None
        self._techniques[kernel] = techniques
        self._archive.offer(Cell(timed.bottleneck, techniques), kernel, timed.us)


def _idea(parent: str, step: Change) -> Idea:
    return Idea(parent, (step.technique,), step.child)


def _by_price(search: Search, kernel: str) -> list[tuple[float, Change]]:
    """The untried changes to it, the best price first; without those that do not compile."""
    priced = [(us, step) for step in search.untried(kernel) if (us := search.price_us(step.child)) is not None]
    return sorted(priced, key=lambda pair: pair[0])


def _less_work_first(search: Search, kernel: str) -> list[tuple[float, Change]]:
    """Of the untried changes those that leave less work and gain more than a tie; all, where there is none."""
    priced, enough_us = _by_price(search, kernel), (1 - WORTH) * (search.price_us(kernel) or 0.0)
    return [pair for pair in priced if pair[0] <= enough_us and pair[1].technique in LESS_WORK] or priced


def _best_of_swept(search: Search, ordered: Callable[[Search, str], list[tuple[float, Change]]]) -> None:
    """`ordered`: the changes to a kernel that are looked at, with their prices, the best first."""
    archive = _Elites(search)
    while True:
        for parent in archive.order():
            swept = [(_swept(search, step.child), step) for _, step in ordered(search, parent)[:SWEPT]]
            if swept:
                break
        else:
            return
        kernel, step = min(swept, key=lambda each: search.price_us(each[0]) or 0.0)
        archive.evaluate(kernel, parent, (step.technique,))


def _swept(search: Search, kernel: str) -> str:
    """As `SweepingExecutor` does: of the settings that a round could not tell apart the one with the fewest changes."""
    settings = [kernel, *(each for each in search.settings(kernel) if not search.is_tried(each))][: sweep.MOST]
    prices = {each: us for each in settings if (us := search.price_us(each)) is not None}
    least = min(prices.values())
    return next(each for each, us in prices.items() if us <= (1 + LEAST_GAIN) * least)
