"""Which faults are worth another try: by what repairs of their kind came to in this run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ka_extensions.attempt_history import AttemptRecord
from ka_extensions.outcome import FAULTS, Outcome


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
