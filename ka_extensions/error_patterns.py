"""The same error again and again: recognised whatever its names and numbers are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ka_extensions.attempt_history import AttemptRecord
from ka_extensions.outcome import FAULTS, Outcome

_VARIES = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class RecurringError:
    message: str
    """As it was said last."""
    times: int
    last_round: int


def error_pattern(message: str) -> str:
    """The message without what changes from try to try: quoted names, numbers, spacing."""
    return " ".join(_VARIES.sub("_", message).split())


def same_in_a_row(messages: Sequence[str]) -> int:
    """How many of the latest messages are the same error."""
    count = 0
    for message in reversed(messages):
        if error_pattern(message) != error_pattern(messages[-1]):
            break
        count += 1
    return count


def recurring_errors(
    attempts: Iterable[AttemptRecord], next_round: int, *, least: int = 3, rounds: int = 10
) -> tuple[RecurringError, ...]:
    """Errors that came at least `least` times in the `rounds` before `next_round`, the most frequent first."""
    found: dict[str, list[AttemptRecord]] = defaultdict(list)
    for attempt in attempts:
        if attempt.outcome in FAULTS and attempt.round >= next_round - rounds:
            found[error_pattern(attempt.summary)].append(attempt)
    errors = [RecurringError(same[-1].summary, len(same), same[-1].round) for same in found.values()]
    return tuple(sorted((e for e in errors if e.times >= least), key=lambda e: (-e.times, -e.last_round)))


@dataclass(frozen=True)
class RepairRule:
    """A kind of fault that was repaired `after` times in vain, or nearly so, is not repaired any more: what it costs
    goes further in a candidate that is begun afresh."""

    after: int = 8
    """Repairs that say enough."""
    least_share: float = 0.1
    """Of them, that must have come to a right kernel."""

    def __post_init__(self) -> None:
        if self.after < 1 or not 0 <= self.least_share <= 1:
            raise ValueError(f"a rule needs at least one repair, and a share of them from 0 to 1: {self}")

    def hopeless(self, attempts: Iterable[AttemptRecord]) -> frozenset[Outcome]:
        """Kinds of faults that are not repaired any more. `attempts`: of whole rounds, oldest first."""
        before: dict[tuple[int, str], Outcome] = {}
        right: dict[Outcome, list[bool]] = defaultdict(list)
        for attempt in attempts:
            lane = (attempt.round, attempt.lane)
            if lane in before and attempt.outcome not in (Outcome.MODEL_FAILED, Outcome.OUTRANKED):
                right[before[lane]].append(attempt.outcome not in FAULTS)
            before[lane] = attempt.outcome
        return frozenset(
            fault
            for fault, came in right.items()
            if len(came) >= self.after and sum(came) < self.least_share * len(came)
        )
