"""How a run stands that keeps an archive: it goes on from several kernels at once, of each kind the fastest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Bottleneck, Measured
from accelopt_core.loop.search_state import Ended, SearchState
from ka_extensions.divergence_guard import Decision, DivergenceGuard


class BeamState(SearchState):
    """As SearchState; but where the next round starts from, the archive says and not the last decisions."""

    def __init__(self, candidate: Candidate, baseline: Measured, guard: DivergenceGuard, beam: int, tie: float) -> None:
        """`beam`: how many kernels a round starts from; `guard` without exploration steps, which the archive makes.
        `tie`: of a latency, what two simulated ones must differ by at least for their order to be believed."""
        if guard.max_exploration:
            raise ValueError("an archive explores by itself: max_exploration must be 0")
        super().__init__(candidate, baseline, guard)
        self._tie = max(guard.noise, tie) if baseline.simulated else guard.noise
        self._beam = beam
        self._archive = Archive[str](guard.revert_above)
        self._techniques: dict[str, frozenset[str]] = {}
        """By candidate: all that led to it."""
        self._known: dict[str, tuple[Candidate, Measured]] = {}
        self._enter(candidate, baseline, frozenset())

    @property
    def parents(self) -> tuple[tuple[Candidate, Measured], ...]:
        return tuple(self._known[name] for name in self._drawn)

    @property
    def _drawn(self) -> tuple[str, ...]:
        """At least one kernel that rests on no contested fact is among them where latencies are simulated."""
        drawn = self._archive.draw(self._beam)
        if self.baseline.simulated and all(self.is_contested(self._known[name][1]) for name in drawn):
            return (*drawn[:-1], self.best.id)
        return drawn

    @property
    def reserve(self) -> tuple[tuple[Candidate, Measured], ...]:
        drawn = self._drawn
        others = self._archive.draw(len(self._archive.cells))
        return tuple(self._known[name] for name in others if name not in drawn)

    @property
    def ways(self) -> tuple[str, ...]:
        """Of each kind the fastest."""
        elites = sorted(self._archive.cells.values(), key=lambda elite: elite.latency_us)
        return tuple(elite.item for elite in elites)

    def adopt(self, candidate: Candidate, measured: Measured, decision: Decision, technique: str) -> None:
        super().adopt(candidate, measured, decision, technique)
        before = self._techniques.get(candidate.parent_id or "", frozenset())
        self._enter(candidate, measured, before | {technique} if technique else before)

    def end_round(self, lanes: Sequence[Ended]) -> None:
        for parent_id in dict.fromkeys(lane.parent_id for lane in lanes):
            _, parent = self._known.get(parent_id, (None, self.baseline))
            made = [lane.measured for lane in lanes if lane.parent_id == parent_id and lane.measured is not None]
            enough_us = (1 - self._tie) * parent.latency_us
            self._archive.went_on_from(parent_id, any(each.latency_us < enough_us for each in made))
        self.parent, self.parent_result = self.parents[0]

    def drop(self, candidate_id: str) -> None:
        super().drop(candidate_id)
        left = [(self._cell(each.id, result), each.id, result.latency_us) for each, result in self.measured]
        self._archive.drop(candidate_id, left)
        self.parent, self.parent_result = self.parents[0]

    def _enter(self, candidate: Candidate, measured: Measured, techniques: frozenset[str]) -> None:
        self._techniques[candidate.id], self._known[candidate.id] = techniques, (candidate, measured)
        self._archive.offer(self._cell(candidate.id, measured), candidate.id, measured.latency_us)

    def _cell(self, candidate_id: str, measured: Measured) -> Cell:
        return Cell(measured.bottleneck, self._techniques[candidate_id])


T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """Kernels of one kind."""

    bottleneck: Bottleneck
    techniques: frozenset[str]
    """By which a kernel differs from the one that the search began with."""


@dataclass(frozen=True)
class Elite(Generic[T]):
    """The fastest of its cell."""

    item: T
    latency_us: float
    fruitless: int = 0
    """How often the search went on from it in vain."""


class Archive(Generic[T]):
    """Changed by `offer`, `went_on_from` and `drop` alone, so that the same calls make the same archive."""

    def __init__(self, explore_within: float = 0.5, restart_after: int = 2) -> None:
        """`explore_within`: what is slower than the best by more than this fraction is kept, and not gone on from.
        `restart_after`: an elite from which the search went on in vain so often gives way to the others."""
        self._explore_within = explore_within
        self._restart_after = restart_after
        self._cells: dict[Cell, Elite[T]] = {}

    @property
    def cells(self) -> dict[Cell, Elite[T]]:
        return dict(self._cells)

    def offer(self, cell: Cell, item: T, latency_us: float) -> bool:
        """Whether it is the fastest of its cell now."""
        known = self._cells.get(cell)
        if known is not None and known.latency_us <= latency_us:
            return False
        self._cells[cell] = Elite(item, latency_us)
        return True

    def went_on_from(self, item: T, gained: bool) -> None:
        """`gained`: something faster than it was made of it. Of what is no elite (any more) nothing is noted."""
        for cell, elite in self._cells.items():
            if elite.item == item:
                self._cells[cell] = replace(elite, fruitless=0 if gained else elite.fruitless + 1)

    def drop(self, item: T, others: Iterable[tuple[Cell, T, float]] = ()) -> None:
        """It was taken for right or fast and is not; `others`: (cell, item, latency in µs) of all that still count."""
        self._cells = {cell: elite for cell, elite in self._cells.items() if elite.item != item}
        for cell, other, latency_us in others:
            self.offer(cell, other, latency_us)

    def draw(self, count: int = 1) -> tuple[T, ...]:
        """The elites to go on from, at most `count`: the fastest of those that are not worn out, then of those that are
        worn out once, and so on. Several always hold the fastest of all. Empty where nothing was offered."""
        if not self._cells:
            return ()
        elites = sorted(self._cells.values(), key=lambda elite: elite.latency_us)
        best = elites[0]
        near = [elite for elite in elites if elite.latency_us <= (1 + self._explore_within) * best.latency_us]
        order = sorted(near, key=lambda elite: (elite.fruitless // self._restart_after, elite.latency_us))
        drawn = order[:count]
        if count > 1 and best not in drawn:
            drawn[-1] = best
        return tuple(elite.item for elite in drawn)
