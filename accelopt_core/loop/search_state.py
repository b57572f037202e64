"""How a run stands: its best kernel, the one it goes on from, and everything that was measured on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Measured
from ka_extensions.divergence_guard import Decision, DivergenceGuard, Verdict, steps_away


@dataclass(frozen=True)
class Ended:
    """A lane whose decision is made."""

    parent_id: str
    candidate: Candidate | None
    measured: Measured | None
    decision: Decision


class SearchState:
    """Changed by decisions only, so that a resumed run comes to the same by going through them again."""

    def __init__(self, candidate: Candidate, baseline: Measured, guard: DivergenceGuard) -> None:
        self._guard = guard
        self.input, self.baseline = candidate, baseline
        self.best = self.parent = candidate
        self.best_result = self.parent_result = baseline
        self.away = 0
        """Steps without improvement between the best and the parent."""
        self._measured: list[tuple[Candidate, Measured]] = [(candidate, baseline)]

    @property
    def measured(self) -> tuple[tuple[Candidate, Measured], ...]:
        """Every right kernel with its result, the input first."""
        return tuple(self._measured)

    def decide(self, measured: Measured | None) -> Decision:
        """Against the best as it was timed beside the candidate, or, where it was not, as it was measured before."""
        if measured is None:
            return self._guard.decide(None, self.best_result.latency_us, away=self.away)
        incumbent = measured.incumbent
        if incumbent is not None and incumbent.content_hash == self.best.content_hash:
            return self._guard.decide(measured.latency_us, incumbent.latency_us, incumbent.noise, self.away)
        noise = max(measured.spread, self.best_result.spread)
        return self._guard.decide(measured.latency_us, self.best_result.latency_us, noise, self.away)

    @property
    def parents(self) -> tuple[tuple[Candidate, Measured], ...]:
        """Those that the next round starts from."""
        return ((self.parent, self.parent_result),)

    @property
    def reserve(self) -> tuple[tuple[Candidate, Measured], ...]:
        """Those that it starts from where there is nothing to plan for the parents, in this order."""
        return ()

    @property
    def ways(self) -> tuple[str, ...]:
        """Ids of kernels, the best first, whose way here is a lesson of its own."""
        return ()

    def adopt(self, candidate: Candidate, measured: Measured, decision: Decision, technique: str) -> None:
        """`technique`: what made it of its parent."""
        self._measured.append((candidate, measured))
        if decision.improved:
            self.best, self.best_result = candidate, measured

    def end_round(self, lanes: Sequence[Ended]) -> None:
        """Where the next round starts from, after all of this round's decisions."""
        self.away = steps_away(self.away, [lane.decision for lane in lanes])
        kept = [
            (lane.measured.latency_us, number)
            for number, lane in enumerate(lanes)
            if lane.measured is not None and lane.decision.verdict is Verdict.KEPT
        ]
        if self.away == 0:
            self.parent, self.parent_result = self.best, self.best_result
        elif kept:
            lane = lanes[min(kept)[1]]
            assert lane.candidate is not None and lane.measured is not None
            self.parent, self.parent_result = lane.candidate, lane.measured

    def drop(self, candidate_id: str) -> None:
        """It was taken for right or faster and is not: the fastest of the others that beats the input is the best."""
        self._measured = [pair for pair in self._measured if pair[0].id != candidate_id]
        faster = [
            (measured.latency_us, number)
            for number, (candidate, measured) in enumerate(self._measured)
            if candidate is not self.input and self.against_input(measured).improved
        ]
        self.best, self.best_result = self._measured[min(faster)[1] if faster else 0]
        self.parent, self.parent_result, self.away = self.best, self.best_result, 0

    def against_input(self, measured: Measured) -> Decision:
        incumbent, guard = measured.incumbent, replace(self._guard, max_exploration=0)
        if incumbent is not None and incumbent.content_hash == self.input.content_hash:
            return guard.decide(measured.latency_us, incumbent.latency_us, incumbent.noise)
        noise = max(measured.spread, self.baseline.spread)
        return guard.decide(measured.latency_us, self.baseline.latency_us, noise)
