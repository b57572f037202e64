"""What failed again and again: ideas that rest for some rounds, and errors that are recognised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelopt_core.candidate import Attempt
from ka_extensions.attempt_history import AttemptHistory
from ka_extensions.error_patterns import error_pattern, recurring_errors, same_in_a_row
from ka_extensions.idea_bans import BanRule
from tests.attempts import attempted


def attempt(round: int, technique: str, outcome: str, summary: str = "") -> Attempt:
    return attempted(round, outcome, technique=technique, summary=summary)


def history(*outcomes: tuple[str, str]) -> list[Attempt]:
    """One attempt a round, from round 1 on: (technique, outcome)."""
    return [attempt(number, *entry) for number, entry in enumerate(outcomes, 1)]


SLOWER, GOOD = "no_improvement", "improved"


@pytest.mark.parametrize(
    ("past", "next_round", "banned"),
    [
        (history(("a", SLOWER), ("a", SLOWER)), 3, []),
        (history(("a", SLOWER), ("a", "incorrect"), ("a", "reverted")), 4, ["a"]),
        (history(("a", SLOWER), ("a", SLOWER), ("a", SLOWER)), 8, ["a"]),
        (history(("a", SLOWER), ("a", SLOWER), ("a", SLOWER)), 9, []),
        (history(("a", SLOWER), ("b", GOOD), ("a", SLOWER), ("b", SLOWER), ("a", SLOWER)), 6, ["a"]),
        (history(("a", SLOWER), ("a", SLOWER), ("a", GOOD), ("a", SLOWER)), 5, []),
        (history(("a", "model_failed"), ("a", "model_failed"), ("a", "model_failed")), 4, []),
        (history(("", "no_plan"), ("", "no_plan"), ("", "no_plan")), 4, []),
        (history(("a", SLOWER), ("a", "outranked"), ("a", "outranked"), ("a", SLOWER)), 5, []),
    ],
    ids=["two are not enough", "three are", "for five rounds", "and no longer", "others in between", "a win clears it",
         "a dumb model is not the idea's fault", "no plan is no idea", "what was not sent was not tried"],
)  # fmt: skip
def test_an_idea_that_failed_three_rounds_in_a_row_rests_for_five(past, next_round, banned) -> None:
    assert [ban.technique for ban in BanRule(after=3, rounds=5).banned(past, next_round)] == banned


def test_an_idea_that_fails_again_after_its_ban_is_banned_at_once() -> None:
    past = [*history(*[("a", SLOWER)] * 3), attempt(9, "a", SLOWER)]
    (ban,) = BanRule(after=3, rounds=5).banned(past, 10)
    assert ban.failures == 4 and ban.last_round == 14


def test_several_tries_of_one_round_are_one_failure() -> None:
    past = [attempt(1, "a", "incorrect") for _ in range(4)]
    assert BanRule(after=3).banned(past, 2) == ()


@pytest.mark.parametrize(("after", "rounds"), [(0, 5), (3, -1)])
def test_an_impossible_rule_is_refused(after: int, rounds: int) -> None:
    with pytest.raises(ValueError, match="a ban comes after"):
        BanRule(after, rounds)


def test_an_error_is_the_same_whatever_its_names_and_numbers() -> None:
    first = "line 12: partition size 256 > 128 of `a_tile`"
    assert error_pattern(first) == error_pattern("line 31:  partition size 512 > 128 of `lhs`")
    assert error_pattern(first) != error_pattern("line 12: no name `foo`")
    assert same_in_a_row(["no name `x`", first, first.replace("12", "13")]) == 2
    assert same_in_a_row([]) == 0


@pytest.mark.parametrize(("times", "told"), [(2, []), (3, [3]), (4, [4])])
def test_an_error_that_came_three_times_is_recurring(times: int, told: list[int]) -> None:
    past = [attempt(number, "a", "compile_failed", f"line {number}: no name `foo`") for number in range(1, times + 1)]
    past.append(attempt(9, "a", "improved", "line 1: no name `foo`"))
    assert [error.times for error in recurring_errors(past, 10, least=3)] == told


def test_an_error_of_long_ago_is_forgotten() -> None:
    past = [attempt(number, "a", "crashed", "out of memory") for number in (1, 2, 3)]
    assert recurring_errors(past, 11, least=3, rounds=10) and not recurring_errors(past, 12, least=3, rounds=10)


@pytest.mark.parametrize(
    ("outcomes", "count"),
    [([], 0), (["model_failed"], 1), (["model_failed", SLOWER], 0), ([SLOWER, "model_failed", "model_failed"], 2)],
)
def test_model_failures_in_a_row_are_counted_by_round(outcomes: list[str], count: int) -> None:
    past = AttemptHistory(history(*[("a", outcome) for outcome in outcomes]))
    assert past.model_failures_in_a_row() == count


def lane(round: int, name: str, technique: str, outcome: str) -> Attempt:
    return replace(attempt(round, technique, outcome), lane=name)


def test_two_lanes_with_one_idea_are_one_failure_and_one_win_clears_it() -> None:
    twice = [lane(1, "a", "x", SLOWER), lane(1, "b", "x", SLOWER), lane(2, "a", "x", SLOWER), lane(2, "b", "y", SLOWER)]
    assert BanRule(after=3).banned(twice, 3) == ()
    assert [ban.technique for ban in BanRule(after=2).banned(twice, 3)] == ["x"]
    assert BanRule(after=2).banned([*twice, lane(3, "a", "x", SLOWER), lane(3, "b", "x", GOOD)], 4) == ()


def test_a_round_failed_the_model_only_when_every_lane_did() -> None:
    failed, mixed = lane(1, "a", "x", "model_failed"), [lane(2, "a", "x", "model_failed"), lane(2, "b", "x", SLOWER)]
    assert AttemptHistory([failed]).model_failures_in_a_row() == 1
    assert AttemptHistory([failed, *mixed]).model_failures_in_a_row() == 0


def test_a_win_in_any_lane_is_the_rounds_improvement() -> None:
    past = AttemptHistory([lane(1, "a", "x", GOOD), lane(1, "b", "x", SLOWER), lane(2, "a", "x", SLOWER)])
    assert past.rounds_without_improvement() == 1
