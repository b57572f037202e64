"""Which of the experiences that a run was shown its plans went by, and whether that helped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from accelopt_core.candidate import Attempt
from accelopt_core.optimization_memory import Experience
from ka_extensions.outcome import Outcome


@dataclass(frozen=True)
class Use:
    """One experience in one run."""

    experience: Experience
    used: int
    """Candidates whose plan went by it."""
    helped: int
    """Of them, those that came to what it says: to a new best after a win, to none after a rejection."""


def uses_of(attempts: Iterable[Attempt], shown: Iterable[Experience]) -> tuple[list[Use], int]:
    """Those that were followed, most often first; and how many more were shown. `shown`: of all rounds."""
    known = {each.key: each for each in shown}
    counts: dict[str, tuple[int, int]] = {}
    for attempt in attempts:
        if attempt.plan is None or attempt.decision is None or attempt.outcome is Outcome.MODEL_FAILED:
            continue
        for key in attempt.plan.follows:
            if key in known:
                used, helped = counts.get(key, (0, 0))
                won = attempt.decision.improved and attempt.last_check is None
                agreed = won == known[key].is_win
                counts[key] = used + 1, helped + agreed
    uses = [Use(known[key], used, helped) for key, (used, helped) in counts.items()]
    return sorted(uses, key=lambda use: (-use.used, -use.helped)), len(known) - len(uses)
