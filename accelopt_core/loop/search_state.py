"""How a run stands: its best kernel, the one it goes on from, and everything that was measured on the way.

A simulated latency may rest on a contested fact of the machine. So two kernels are kept: the fastest of all, and the
fastest that rests on no contested fact which the input kernel does not rest on too. The best is the latter where
latencies are simulated, and the former where a device took them; the other one of the two is its counterpart.
"""

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
        self.fastest = self.uncontested = self.parent = candidate
        self.fastest_result = self.uncontested_result = self.parent_result = baseline
        self.away = 0
        """Steps without improvement between the best and the parent."""
        self._measured: list[tuple[Candidate, Measured]] = [(candidate, baseline)]

    @property
    def measured(self) -> tuple[tuple[Candidate, Measured], ...]:
        """Every right kernel with its result, the input first."""
        return tuple(self._measured)

    @property
    def best(self) -> Candidate:
        return self.uncontested if self.baseline.simulated else self.fastest

    @property
    def best_result(self) -> Measured:
        return self.uncontested_result if self.baseline.simulated else self.fastest_result

    @property
    def counterpart(self) -> tuple[Candidate, Measured] | None:
        """The fastest kernel of all beside a best that rests on no contested fact, or the other way round; None where
        they are one, or the input kernel is the other."""
        if self.fastest is self.uncontested:
            return None
        other = self.fastest if self.baseline.simulated else self.uncontested
        result = self.fastest_result if self.baseline.simulated else self.uncontested_result
        return (other, result) if other is not self.input else None

    def is_contested(self, measured: Measured) -> bool:
        return bool(measured.contested_beside(self.baseline))

    def decide(self, measured: Measured | None) -> Decision:
        """Against the best as it was timed beside the candidate, or, where it was not, as it was measured before; of a
        kernel that rests on a contested fact, against the fastest of all."""
        if measured is None:
            return self._guard.decide(None, self.best_result.latency_us, away=self.away)
        incumbent = measured.incumbent
        if incumbent is not None and incumbent.content_hash == self.best.content_hash:
            return self._guard.decide(measured.latency_us, incumbent.latency_us, incumbent.noise, self.away)
        before = self.fastest_result if self.is_contested(measured) else self.best_result
        noise = max(measured.spread, before.spread)
        return self._guard.decide(measured.latency_us, before.latency_us, noise, self.away)

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
        behind = self.best is not self.uncontested and measured.latency_us < self.uncontested_result.latency_us
        if not self.is_contested(measured) and (decision.improved or behind):
            self.uncontested, self.uncontested_result = candidate, measured
        ahead = not self.baseline.simulated or measured.latency_us < self.fastest_result.latency_us
        if decision.improved and ahead:
            self.fastest, self.fastest_result = candidate, measured

    def end_round(self, lanes: Sequence[Ended]) -> None:
        """Where the next round starts from, after all of this round's decisions."""
        self.away = steps_away(self.away, [lane.decision for lane in lanes])
        kept = [
            (lane.measured.latency_us, number)
            for number, lane in enumerate(lanes)
            if lane.measured is not None and lane.decision.verdict is Verdict.KEPT
            if not (self.baseline.simulated and self.is_contested(lane.measured))
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
        plain = [each for each in faster if not self.is_contested(self._measured[each[1]][1])]
        self.fastest, self.fastest_result = self._measured[min(faster)[1] if faster else 0]
        self.uncontested, self.uncontested_result = self._measured[min(plain)[1] if plain else 0]
        self.parent, self.parent_result, self.away = self.best, self.best_result, 0

    def confirm(self, candidate_id: str, measured: Measured) -> None:
        """What the last check measured of the best or of its counterpart."""
        if self.fastest.id == candidate_id:
            self.fastest_result = measured
        if self.uncontested.id == candidate_id:
            self.uncontested_result = measured

    def against_input(self, measured: Measured) -> Decision:
        incumbent, guard = measured.incumbent, replace(self._guard, max_exploration=0)
        if incumbent is not None and incumbent.content_hash == self.input.content_hash:
            return guard.decide(measured.latency_us, incumbent.latency_us, incumbent.noise)
        noise = max(measured.spread, self.baseline.spread)
        return guard.decide(measured.latency_us, self.baseline.latency_us, noise)
