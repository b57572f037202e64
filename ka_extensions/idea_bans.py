"""Ideas that failed again and again rest for some rounds, so that a run does not go in circles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ka_extensions.attempt_history import AttemptRecord, last_of_rounds
from ka_extensions.outcome import Outcome

_SAYS_NOTHING = (Outcome.MODEL_FAILED, Outcome.OUTRANKED)
"""Of a technique: nothing of it was tried."""


@dataclass(frozen=True)
class Ban:
    technique: str
    failures: int
    """Rounds in a row in which it brought nothing."""
    last_round: int
    """The last round in which it may not be used."""
    reason: str


@dataclass(frozen=True)
class BanRule:
    """A technique that brought no improvement in `after` rounds in a row rests for the `rounds` that follow.

    Once it is allowed again, one more failure is enough for the next ban; an improvement clears its name.
    """

    after: int = 3
    rounds: int = 5

    def __post_init__(self) -> None:
        if self.after < 1 or self.rounds < 0:
            raise ValueError(f"a ban comes after at least one failure and lasts at least no round: {self}")

    def banned(self, attempts: Iterable[AttemptRecord], next_round: int) -> tuple[Ban, ...]:
        """The techniques that may not be used in `next_round`, in the order of their first failure."""
        failed: dict[str, list[AttemptRecord]] = defaultdict(list)
        for lanes in last_of_rounds(attempts):
            won = {attempt.technique for attempt in lanes if attempt.outcome is Outcome.IMPROVED}
            lost = {a.technique: a for a in lanes if a.technique and a.outcome not in _SAYS_NOTHING}
            for technique in won:
                failed.pop(technique, None)
            for technique in lost.keys() - won:
                failed[technique].append(lost[technique])
        bans = []
        for technique, failures in failed.items():
            last_round = failures[-1].round + self.rounds
            if len(failures) >= self.after and next_round <= last_round:
                outcomes = ", ".join(dict.fromkeys(attempt.outcome.value for attempt in failures))
                reason = f"no improvement in {len(failures)} rounds in a row ({outcomes})"
                bans.append(Ban(technique, len(failures), last_round, reason))
        return tuple(bans)
