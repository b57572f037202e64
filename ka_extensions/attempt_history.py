"""Every attempt of a run, in order: what was tried, on what, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from ka_extensions.outcome import Outcome


class AttemptRecord(Protocol):
    """What the stability rules look at; `accelopt_core.candidate.Attempt` is one."""

    @property
    def id(self) -> str: ...

    @property
    def round(self) -> int: ...

    @property
    def lane(self) -> str:
        """Which of the candidates that a round tried side by side; empty where it tried one."""
        ...

    @property
    def technique(self) -> str:
        """Empty where there was no plan."""
        ...

    @property
    def outcome(self) -> Outcome: ...

    @property
    def summary(self) -> str:
        """One line; of a fault the error message."""
        ...


A = TypeVar("A", bound=AttemptRecord)


class AttemptHistory(Generic[A]):
    def __init__(self, attempts: Iterable[A] = ()) -> None:
        self._attempts = list(attempts)

    def add(self, attempt: A) -> None:
        self._attempts.append(attempt)

    @property
    def attempts(self) -> tuple[A, ...]:
        return tuple(self._attempts)

    def correct(self, attempt: A) -> None:
        """What was taken for right was not: this takes the place of the attempt of the same id."""
        self._attempts = [attempt if known.id == attempt.id else known for known in self._attempts]

    def model_failures_in_a_row(self) -> int:
        """How many of the latest rounds ended, in every lane, because a model could not answer."""
        count = 0
        for attempts in reversed(last_of_rounds(self._attempts)):
            if any(attempt.outcome is not Outcome.MODEL_FAILED for attempt in attempts):
                break
            count += 1
        return count

    def rounds_without_improvement(self) -> int:
        """Rounds since the last improvement; several attempts in one round count once."""
        improved = [attempt.round for attempt in self._attempts if attempt.outcome is Outcome.IMPROVED]
        won = max(improved, default=0)
        return len({attempt.round for attempt in self._attempts if attempt.round > won})


def last_of_rounds(attempts: Iterable[A]) -> list[tuple[A, ...]]:
    """Of each round, oldest first, the last attempt of each lane: what the round came to."""
    rounds: dict[int, dict[str, A]] = {}
    for attempt in attempts:
        rounds.setdefault(attempt.round, {})[attempt.lane] = attempt
    return [tuple(rounds[number].values()) for number in sorted(rounds)]
