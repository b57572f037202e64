"""Every attempt of a run, in order: what was tried, on what, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

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
    lane: str = ""
    """Which of the candidates that a round tried side by side; empty where it tried one."""


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

    def drop(self, candidate_id: str, outcome: str, summary: str) -> None:
        """What was taken for right was not: from now on its attempt says so."""
        self._attempts = [
            replace(attempt, outcome=outcome, summary=summary) if attempt.candidate_id == candidate_id else attempt
            for attempt in self._attempts
        ]

    def model_failures_in_a_row(self) -> int:
        """How many of the latest rounds ended, in every lane, because a model could not answer."""
        count = 0
        for attempts in reversed(last_of_rounds(self._attempts)):
            if any(attempt.outcome != MODEL_FAILED for attempt in attempts):
                break
            count += 1
        return count

    def rounds_without_improvement(self) -> int:
        """Rounds since the last improvement; several attempts in one round count once."""
        won = max((attempt.round for attempt in self._attempts if attempt.outcome == "improved"), default=0)
        return len({attempt.round for attempt in self._attempts if attempt.round > won})


def last_of_rounds(attempts: Iterable[Attempt]) -> list[tuple[Attempt, ...]]:
    """Of each round, oldest first, the last attempt of each lane: what the round came to."""
    rounds: dict[int, dict[str, Attempt]] = {}
    for attempt in attempts:
        rounds.setdefault(attempt.round, {})[attempt.lane] = attempt
    return [tuple(rounds[number].values()) for number in sorted(rounds)]
