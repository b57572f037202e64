"""Ways to search a graph of kernels, told apart by which change they try next. Each goes on until no evaluation is left
or nothing to try.

A price is a prediction, of which any number may be asked; an evaluation verifies and times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from accelopt_core.loop.beam import Archive, Cell
from benchmarks.search_kernels import Graph, Search, Spent
from ka_extensions.divergence_guard import DivergenceGuard

Walk = Callable[[Search, random.Random], None]
"""Raises Spent where its evaluations end before its ideas."""

NOISE = DivergenceGuard().noise
BEAM, PLANS, SAMPLES = 6, 12, 2
ITERATIONS = 16
LOOKED_AT = 300
"""Kernels whose changes one run may list."""


def replayed(graph: Graph, walk: Walk, seeds: Sequence[int], most: int, looked_at: int = LOOKED_AT) -> list[Search]:
    """A run for each seed; for a walk that leaves nothing to chance the one there is."""
    runs = []
    for seed in seeds if walk in BY_CHANCE else seeds[:1]:
        run = Search(graph, most, looked_at)
        try:
            walk(run, random.Random(seed))
        except Spent:
            pass
        runs.append(run)
    return runs


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


def archive_by_price(search: Search, chance: random.Random) -> None:
    """From an elite of the archive the change to the best price; the next elite where nothing is left."""
    archive, techniques = Archive[str](), {search.start: frozenset[str]()}

    def offer(kernel: str) -> None:
        timed = search.time(kernel)
        assert timed is not None
        archive.offer(Cell(timed.bottleneck, techniques[kernel]), kernel, timed.us)

    offer(search.start)
    while True:
        for parent in archive.draw(len(archive.cells)):
            priced = [(us, step) for step in search.untried(parent) if (us := search.price_us(step.child)) is not None]
            if priced:
                break
        else:
            return
        step = min(priced, key=lambda pair: pair[0])[1]
        timed, before = search.time(step.child), search.time(parent)
        assert before is not None, "an elite is right"
        archive.went_on_from(parent, timed is not None and timed.us < (1 - NOISE) * before.us)
        if timed is not None:
            techniques[step.child] = techniques[parent] | {step.technique}
            offer(step.child)


WALKS: Mapping[str, Walk] = {
    "random": at_random,
    "greedy by price": greedy_by_price,
    f"AccelOpt's beam ({BEAM} x {PLANS} x {SAMPLES})": accelopts_beam,
    "archive": archive_by_price,
}
BY_CHANCE = frozenset({at_random, accelopts_beam})
"""The others come to the same whatever the seed."""
