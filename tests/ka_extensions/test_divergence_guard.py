"""Keep, ignore or revert: the rules with their numbers."""

from __future__ import annotations

import pytest

from ka_extensions.divergence_guard import DivergenceGuard, Verdict

GUARD = DivergenceGuard(revert_above=0.5, noise=0.01)


@pytest.mark.parametrize(
    ("candidate_us", "verdict"),
    [
        (50.0, Verdict.IMPROVED),
        (98.9, Verdict.IMPROVED),
        (99.0, Verdict.NO_IMPROVEMENT),
        (100.0, Verdict.NO_IMPROVEMENT),
        (149.0, Verdict.NO_IMPROVEMENT),
        (150.0, Verdict.NO_IMPROVEMENT),
        (151.0, Verdict.REVERTED),
        (1e9, Verdict.REVERTED),
        (None, Verdict.FAILED),
    ],
)
def test_against_a_best_of_100_us(candidate_us: float | None, verdict: Verdict) -> None:
    assert GUARD.decide(candidate_us, 100.0).verdict is verdict


def test_the_measured_spread_widens_the_noise_band() -> None:
    assert GUARD.decide(97.0, 100.0, spread=0.02).verdict is Verdict.IMPROVED
    assert GUARD.decide(97.0, 100.0, spread=0.05).verdict is Verdict.NO_IMPROVEMENT


def test_a_decision_carries_the_numbers_that_led_to_it() -> None:
    decision = GUARD.decide(80.0, 100.0)
    assert (decision.candidate_us, decision.best_us, decision.threshold_us) == (80.0, 100.0, 99.0)
    assert "1.250x" in decision.reason


@pytest.mark.parametrize("settings", [{"revert_above": 0.0}, {"revert_above": -1.0}, {"noise": 1.0}, {"noise": -0.1}])
def test_limits_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        DivergenceGuard(**settings)
