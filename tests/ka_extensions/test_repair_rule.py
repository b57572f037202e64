"""What repairs came to decides whether faults of their kind are repaired any more."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ka_extensions.error_patterns import RepairRule
from ka_extensions.outcome import Outcome

RULE = RepairRule(after=3, least_share=0.3)


@dataclass(frozen=True)
class Entry:
    round: int
    outcome: Outcome
    lane: str = ""
    id: str = ""
    technique: str = "x"
    summary: str = ""


def lane(round: int, *outcomes: Outcome, name: str = "") -> list[Entry]:
    return [Entry(round, outcome, name) for outcome in outcomes]


BROKEN, WRONG, RIGHT, SILENT = (
    Outcome.COMPILE_FAILED, Outcome.INCORRECT, Outcome.NO_IMPROVEMENT, Outcome.MODEL_FAILED,
)  # fmt: skip


def test_a_kind_of_fault_that_repairs_do_not_help_is_hopeless() -> None:
    assert RULE.hopeless([]) == frozenset()
    assert RULE.hopeless(lane(1, WRONG, WRONG, WRONG)) == frozenset(), "two repairs say too little"
    assert RULE.hopeless(lane(1, WRONG, WRONG, WRONG, WRONG)) == {WRONG}
    assert RULE.hopeless([*lane(1, WRONG, WRONG, WRONG, WRONG), *lane(2, BROKEN, RIGHT)]) == {WRONG}


def test_enough_right_kernels_keep_it_open() -> None:
    assert RULE.hopeless(lane(1, WRONG, WRONG, WRONG, RIGHT)) == frozenset()
    many = [entry for number in range(1, 5) for entry in lane(number, WRONG, WRONG)]
    assert RULE.hopeless([*many, *lane(9, WRONG, RIGHT)]) == {WRONG}


def test_a_repair_counts_for_the_fault_that_it_was_of() -> None:
    entries = [entry for number in range(3) for entry in lane(number, BROKEN, WRONG, RIGHT)]
    assert RULE.hopeless(entries) == {BROKEN}


def test_lanes_do_not_mix_and_a_model_that_fails_repairs_nothing() -> None:
    first = [entry for number in range(4) for entry in (*lane(number, WRONG, name="a"), *lane(number, RIGHT, name="b"))]
    assert RULE.hopeless(first) == frozenset()
    assert RULE.hopeless([entry for number in range(9) for entry in lane(number, WRONG, SILENT)]) == frozenset()


def test_a_repair_that_was_not_sent_to_the_device_says_nothing() -> None:
    unsent = [entry for number in range(9) for entry in lane(number, WRONG, Outcome.OUTRANKED)]
    assert RULE.hopeless(unsent) == frozenset()
    assert RULE.hopeless([*unsent, *lane(9, WRONG, WRONG, WRONG, WRONG)]) == {WRONG}


@pytest.mark.parametrize("values", [(0, 0.1), (1, -0.1), (1, 1.1)])
def test_a_rule_that_is_none_is_refused(values: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="at least one repair"):
        RepairRule(*values)
