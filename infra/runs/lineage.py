"""Which kernel came from which: the right ones of a run, from the input to the best, for views and the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from accelopt_core.candidate import Attempt
from ka_extensions.outcome import Outcome

INPUT = "input"
STEPPING_STONES = (Outcome.IMPROVED, Outcome.KEPT)
"""Outcomes from which a run goes on."""


@dataclass(frozen=True)
class Relative:
    """A kernel with its place in the tree. `others`: what was made from it and came to nothing, counted only."""

    id: str
    latency_us: float
    outcome: Outcome | None
    """None: the input."""
    depth: int
    last: bool
    """Of its siblings."""
    under: tuple[bool, ...]
    """Of each ancestor below the input: is it the last of its siblings?"""
    others: int
    dropped: bool
    best: bool


class Lineage:
    def __init__(
        self, baseline_us: float, attempts: Iterable[Attempt], best_id: str, dropped: Iterable[str] = ()
    ) -> None:
        """`dropped`: winners that failed their last check."""
        self._baseline_us = baseline_us
        self._attempts = {attempt.id: attempt for attempt in attempts}
        self._best_id = best_id
        self.dropped = frozenset(dropped)

    def path(self, candidate_id: str | None = None) -> tuple[str, ...]:
        """From the input to the best, or to another kernel."""
        found: list[str] = []
        at: str | None = candidate_id or self._best_id
        while at is not None and at not in found:
            found.append(at)
            attempt = self._attempts.get(at)
            at = None if attempt is None else attempt.parent_id
        return tuple(reversed(found))

    def tree(self) -> tuple[Relative, ...]:
        """From the input down, each kernel after its parent; what led nowhere is counted, not listed."""
        kept = self._worth_showing()
        children: dict[str, list[Attempt]] = {}
        others: dict[str, int] = {}
        for attempt in self._attempts.values():
            parent = attempt.parent_id
            if attempt.id in kept:
                children.setdefault(parent, []).append(attempt)
            elif not attempt.is_open:
                others[parent] = others.get(parent, 0) + 1
        listed: list[Relative] = []

        def add(name: str, us: float, outcome: Outcome | None, last: bool, under: tuple[bool, ...], depth: int) -> None:
            listed.append(
                Relative(name, us, outcome, depth, last, under, others.get(name, 0), name in self.dropped,
                         name == self._best_id)
            )  # fmt: skip
            below = children.get(name, [])
            for child in below:
                inside = (*under, last) if depth else ()
                add(child.id, child.latency_us or 0.0, child.outcome, child is below[-1], inside, depth + 1)

        add(INPUT, self._baseline_us, None, True, (), 0)
        return tuple(listed)

    def _worth_showing(self) -> frozenset[str]:
        worth = {
            name
            for name, attempt in self._attempts.items()
            if attempt.latency_us is not None
            and (attempt.outcome in STEPPING_STONES or name in self.dropped or name == self._best_id)
        }
        for name in list(worth):
            worth.update(ancestor for ancestor in self.path(name) if ancestor in self._attempts)
        return frozenset(worth)
