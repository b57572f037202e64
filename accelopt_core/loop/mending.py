"""A winner that its last check took away is written once more, by somebody who is told what was wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from accelopt_core.candidate import Attempt, Candidate, Plan
from accelopt_core.loop.steps import Place
from accelopt_core.proposer import Feedback
from ka_extensions.outcome import Outcome

MENDED = " (mended)"
"""How the title of a plan ends that is carried out once more."""


@dataclass(frozen=True)
class Mending:
    plan: Plan
    dropped: Attempt
    candidate: Candidate
    """What failed its last check."""

    @property
    def feedback(self) -> Feedback:
        return Feedback(self.candidate.source, self.dropped.summary)


def due_in(place: Place, attempts: Iterable[Attempt]) -> Mending | None:
    """For the fastest of those that were dropped as wrong just before the round. Of what a tool wrote there is no
    second version."""
    lost = [
        (attempt.latency_us or 0.0, Mending(_once_more(attempt.plan, place), attempt, attempt.candidate))
        for attempt in attempts
        if attempt.last_check is not None and attempt.dropped_after == place.round - 1
        if attempt.outcome is Outcome.INCORRECT and attempt.candidate is not None
        if attempt.plan is not None and not attempt.plan.by_tool
    ]
    return min(lost, key=lambda each: each[0])[1] if lost else None


def _once_more(plan: Plan, place: Place) -> Plan:
    title = f"{plan.title.removesuffix(MENDED)}{MENDED}"
    return replace(plan, id=f"plan-{place.round:03d}{place.lane}", title=title)
