"""What a round taught: expected against actual, and what to do about it next time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ka_extensions.outcome import Outcome


class Diagnosis(str, Enum):
    """Did the attacked bottleneck turn out to be one?"""

    RIGHT = "right"
    PARTLY = "partly"
    """It was one, and not the only one; or what was gained came from elsewhere as well."""
    WRONG = "wrong"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Reflexion:
    round: int
    plan_title: str
    technique: str
    expected_gain_us: float
    actual_gain_us: float | None
    """None when the candidate never got a latency."""
    outcome: Outcome
    diagnosis: Diagnosis
    lesson: str
    avoid: tuple[str, ...] = ()
    build_on: tuple[str, ...] = ()


class ReflexionWindow:
    """The last few reflexions, oldest first; what the planner is shown."""

    def __init__(self, size: int, entries: Iterable[Reflexion] = ()) -> None:
        if size < 1:
            raise ValueError(f"a reflexion window holds at least one entry, not {size}")
        self._entries: deque[Reflexion] = deque(entries, maxlen=size)

    def add(self, reflexion: Reflexion) -> None:
        self._entries.append(reflexion)

    @property
    def entries(self) -> tuple[Reflexion, ...]:
        return tuple(self._entries)

    @property
    def avoid(self) -> tuple[str, ...]:
        return _unique(item for entry in reversed(self._entries) for item in entry.avoid)

    @property
    def build_on(self) -> tuple[str, ...]:
        return _unique(item for entry in reversed(self._entries) for item in entry.build_on)


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
