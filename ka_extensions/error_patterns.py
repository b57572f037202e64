"""The same error again and again: recognised whatever its names and numbers are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ka_extensions.attempt_history import AttemptRecord
from ka_extensions.outcome import FAULTS

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
