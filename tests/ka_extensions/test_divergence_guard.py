"""Keep, go on from, ignore or revert: the rules with their numbers."""

from __future__ import annotations

import pytest

from ka_extensions.divergence_guard import Decision, DivergenceGuard, Verdict, steps_away

GUARD = DivergenceGuard(revert_above=0.5, noise=0.01)
WANDERING = DivergenceGuard(revert_above=0.5, noise=0.01, max_exploration=3)


@pytest.mark.parametrize(
    ("candidate_us", "verdict", "exploring"),
    [
        (50.0, Verdict.IMPROVED, Verdict.IMPROVED),
        (98.9, Verdict.IMPROVED, Verdict.IMPROVED),
        (99.0, Verdict.NO_IMPROVEMENT, Verdict.KEPT),
        (100.0, Verdict.NO_IMPROVEMENT, Verdict.KEPT),
        (149.0, Verdict.NO_IMPROVEMENT, Verdict.KEPT),
        (150.0, Verdict.NO_IMPROVEMENT, Verdict.KEPT),
        (151.0, Verdict.REVERTED, Verdict.REVERTED),
        (1e9, Verdict.REVERTED, Verdict.REVERTED),
        (None, Verdict.FAILED, Verdict.FAILED),
    ],
)
def test_against_a_best_of_100_us(candidate_us: float | None, verdict: Verdict, exploring: Verdict) -> None:
    assert GUARD.decide(candidate_us, 100.0).verdict is verdict
    assert WANDERING.decide(candidate_us, 100.0).verdict is exploring


def test_the_noise_of_the_measurements_widens_the_band() -> None:
    assert GUARD.decide(97.0, 100.0, noise=0.02).verdict is Verdict.IMPROVED
    assert GUARD.decide(97.0, 100.0, noise=0.05).verdict is Verdict.NO_IMPROVEMENT


@pytest.mark.parametrize(
    ("limit", "candidates_us", "verdicts"),
    [
        (0, [110, 110, 110], ["no_improvement"] * 3),
        (1, [110, 110], ["reverted", "reverted"]),
        (2, [110, 110, 110, 110], ["kept", "reverted", "kept", "reverted"]),
        (3, [110, 120, 130, 110], ["kept", "kept", "reverted", "kept"]),
        (3, [110, None, None, None], ["kept", "failed", "reverted", "failed"]),
        (3, [None, None, None, 110, 110, 110], ["failed"] * 3 + ["kept", "kept", "reverted"]),
        (3, [110, 110, 90, 110, 110, 110], ["kept", "kept", "improved", "kept", "kept", "reverted"]),
        (3, [110, 160, 110, 110, 110], ["kept", "reverted", "kept", "kept", "reverted"]),
    ],
    ids=["none", "of one step", "of two", "of three", "a failure is a step", "but not from the best", "an improvement "
         "starts the count again", "so does going back"],
)  # fmt: skip
def test_exploration_ends_after_exactly_so_many_steps(limit, candidates_us, verdicts) -> None:
    guard, away, found = DivergenceGuard(max_exploration=limit), 0, []
    for us in candidates_us:
        decision = guard.decide(us, 100.0, away=away)
        away = steps_away(away, [decision])
        found.append(decision.verdict.value)
    assert found == verdicts


@pytest.mark.parametrize(
    ("verdicts", "away", "then"),
    [
        (["kept", "improved", "failed"], 1, 0),
        (["reverted", "kept"], 1, 2),
        (["reverted", "failed"], 1, 0),
        (["failed", "failed"], 1, 2),
        (["failed", "failed"], 0, 0),
        (["no_improvement"], 0, 0),
        ([], 2, 3),
    ],
)
def test_several_candidates_of_one_round_are_one_step(verdicts: list[str], away: int, then: int) -> None:
    assert steps_away(away, [Decision(Verdict(verdict), 1.0, 1.0, 1.0, "") for verdict in verdicts]) == then


def test_a_decision_carries_the_numbers_that_led_to_it() -> None:
    decision = GUARD.decide(80.0, 100.0)
    assert (decision.candidate_us, decision.best_us, decision.threshold_us) == (80.0, 100.0, 99.0)
    assert "1.250x" in decision.reason


@pytest.mark.parametrize(
    "settings",
    [{"revert_above": 0.0}, {"revert_above": -1.0}, {"noise": 1.0}, {"noise": -0.1}, {"max_exploration": -1}],
)
def test_limits_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        DivergenceGuard(**settings)
