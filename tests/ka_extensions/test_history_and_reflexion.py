"""What a run remembers of itself."""

from __future__ import annotations

import pytest

from accelopt_core.candidate import Attempt
from ka_extensions.attempt_history import AttemptHistory
from ka_extensions.outcome import Outcome
from ka_extensions.reflexion import Diagnosis, Reflexion, ReflexionWindow
from tests.attempts import attempted


def attempt(round: int, outcome: str = "no_improvement") -> Attempt:
    return attempted(round, outcome, technique="hoist", latency_us=1.0)


def reflexion(round: int, avoid: tuple[str, ...] = (), build_on: tuple[str, ...] = ()) -> Reflexion:
    return Reflexion(round, "t", "hoist", 10.0, 5.0, Outcome.IMPROVED, Diagnosis.RIGHT, "l", avoid, build_on)


def test_rounds_without_improvement_counts_rounds_and_not_tries() -> None:
    history = AttemptHistory([attempt(1, "improved"), attempt(2, "incorrect"), attempt(2), attempt(3)])
    assert history.rounds_without_improvement() == 2


def test_an_improvement_starts_the_count_again() -> None:
    history = AttemptHistory([attempt(1), attempt(2), attempt(3, "improved")])
    assert history.rounds_without_improvement() == 0
    assert AttemptHistory().rounds_without_improvement() == 0


def test_the_window_keeps_the_newest_and_forgets_the_oldest() -> None:
    window = ReflexionWindow(2)
    for number in (1, 2, 3):
        window.add(reflexion(number, avoid=(f"a{number}", "same"), build_on=(f"b{number}",)))
    assert [entry.round for entry in window.entries] == [2, 3]
    assert window.avoid == ("a3", "same", "a2") and window.build_on == ("b3", "b2")


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError):
        ReflexionWindow(0)
