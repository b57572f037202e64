"""How a run stands that keeps an archive: it goes on from several kernels at once, of each kind the fastest."""

from __future__ import annotations

from collections.abc import Sequence

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Measured
from accelopt_core.loop.archive import Archive, Cell
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
