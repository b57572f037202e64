"""Every attempt of a run, in order: what was tried, on what, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MODEL_FAILED = "model_failed"
"""The outcome of an attempt that ended because a model could not answer at all."""


@dataclass(frozen=True)
class Attempt:
    round: int
    candidate_id: str
    content_hash: str
    parent_id: str | None
    technique: str
    title: str
    outcome: str
    """The evaluation's kind, or the verdict once there is a latency."""
    latency_us: float | None
    summary: str
    """One line a person or a planner can read."""


class AttemptHistory:
    def __init__(self, attempts: Iterable[Attempt] = ()) -> None:
        self._attempts = list(attempts)

    def add(self, attempt: Attempt) -> None:
        self._attempts.append(attempt)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(self._attempts)

    def last(self, count: int) -> tuple[Attempt, ...]:
        return tuple(self._attempts[-count:]) if count > 0 else ()

    def seen(self, content_hash: str) -> Attempt | None:
        """The earlier attempt with the same code, if there was one."""
        return next((a for a in self._attempts if a.content_hash == content_hash), None)

    def model_failures_in_a_row(self) -> int:
        """How many of the latest rounds ended because a model could not answer."""
        last = {attempt.round: attempt.outcome for attempt in self._attempts}
        count = 0
        for number in sorted(last, reverse=True):
            if last[number] != MODEL_FAILED:
                break
            count += 1
        return count

    def rounds_without_improvement(self) -> int:
        """Rounds since the last improvement; several attempts in one round count once."""
        since: set[int] = set()
        for attempt in reversed(self._attempts):
            if attempt.outcome == "improved":
                break
            since.add(attempt.round)
        return len(since)
