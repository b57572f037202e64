"""The catalogue's planner: whole ways, halves of what did not win, what is left out, and when it ends."""

from __future__ import annotations

import datetime
import time
from dataclasses import replace

import pytest

from accelopt_core.candidate import Attempt, Plan
from accelopt_core.catalogue.kernel_trees import done_in, steps_in
from accelopt_core.catalogue.proposer import catalogue_proposer
from accelopt_core.optimization_memory import Experience
from accelopt_core.proposer import CannotRepair, Feedback, NothingToPlan, Proposer, RoundContext, UnusableReply
from ka_extensions.outcome import Outcome
from tests.catalogue.scripted import ScriptedTrees, letters_of

FOUR = {"a": 30.0, "b": 20.0, "c": 10.0, "d": 6.0}


def proposer(trees: ScriptedTrees) -> Proposer:
    return catalogue_proposer(trees, lambda: datetime.date(2026, 11, 20), 0.02)


def letters(plan: Plan) -> str:
    return "".join(name.site for name, _ in steps_in(plan.details))


def did(plan: Plan, outcome: Outcome = Outcome.INCORRECT, parent: str = "input") -> Attempt:
    return Attempt(1, 1, plan.parent_id or parent, plan, None, None, outcome, "")


def test_the_whole_way_is_one_plan_and_is_carried_out() -> None:
    trees = ScriptedTrees(FOUR)
    made = proposer(trees)
    context = trees.context("")
    plan = made.planner.plan(context)
    assert letters(plan) == "abcd" and plan.by_tool and plan.parent_id is None
    assert plan.expected_gain_us == pytest.approx(66.0)
    assert letters_of(made.executor.execute(context, plan, ())) == "abcd"


def test_a_way_that_did_not_win_is_tried_by_halves_and_its_first_step_alone_is_left_out() -> None:
    trees = ScriptedTrees(FOUR)
    made = proposer(trees)
    history: list[Attempt] = []
    tried = []
    for _ in range(4):
        plan = made.planner.plan(trees.context("", history=tuple(history)))
        tried.append(letters(plan))
        history.append(did(plan))
    assert tried == ["abcd", "ab", "a", "bcd"]


def test_half_of_a_way_that_won_is_gone_on_from_without_the_step_that_fails() -> None:
    """Whatever the order in which a run meets it: a single step that fails is found, and all others are taken."""
    for wrong in FOUR:
        trees = ScriptedTrees(FOUR)
        made = proposer(trees)
        kernels, history = [""], []
        for _ in range(12):
            context = trees.context(*kernels, history=tuple(history))
            try:
                plan = made.planner.plan(context)
            except NothingToPlan:
                break
            after = letters_of(made.executor.execute(context, plan, ()))
            wins = wrong not in after
            history.append(did(plan, Outcome.IMPROVED if wins else Outcome.INCORRECT, kernels[-1] or "input"))
            kernels += [after] if wins else []
        assert set(kernels[-1]) == set(FOUR) - {wrong}


def test_a_search_leaves_time_to_verify_what_it_finds() -> None:
    trees = ScriptedTrees(FOUR)
    context = replace(trees.context(""), until=time.monotonic() + 1000.0)
    assert letters(proposer(trees).planner.plan(context)) == "abcd" and 400 < trees.limits_s[0] <= 500


def test_what_is_being_tried_side_by_side_is_not_planned_again() -> None:
    trees = ScriptedTrees(FOUR)
    made = proposer(trees)
    first = made.planner.plan(trees.context(""))
    beside = made.planner.plan(replace(trees.context(""), planned=(first,)))
    assert done_in(first.details) != done_in(beside.details) and "a" not in letters(beside)


def test_from_the_end_of_a_search_that_ended_by_itself_nothing_is_searched_again() -> None:
    for complete in (True, False):
        trees = ScriptedTrees(FOUR, complete=complete)
        made = proposer(trees)
        made.planner.plan(trees.context(""))
        with pytest.raises(NothingToPlan):
            made.planner.plan(trees.context("", "abcd"))
        assert len(trees.asked) == (1 if complete else 2)


def test_gains_within_a_tie_are_no_plan() -> None:
    trees = ScriptedTrees({"a": 0.8, "b": 0.9})
    with pytest.raises(NothingToPlan, match="no idea left"):
        proposer(trees).planner.plan(trees.context(""))


def test_small_gains_that_are_more_than_a_tie_together_are_one_plan() -> None:
    trees = ScriptedTrees({letter: 0.8 for letter in "abcd"})
    assert len(letters(proposer(trees).planner.plan(trees.context("")))) == 4


def test_what_rests_on_a_contested_fact_is_planned_when_nothing_else_gains() -> None:
    trees = ScriptedTrees({"a": 30.0, "b": 20.0}, {"b": "a fact"})
    made = proposer(trees)
    assert letters(made.planner.plan(trees.context(""))) == "a"
    assert letters(made.planner.plan(trees.context("", "a"))) == "b"


def test_a_fact_that_the_input_kernel_rests_on_is_no_reason_to_wait() -> None:
    with_fact = ScriptedTrees({"a": 30.0, "b": 20.0, "c": 10.0}, {"b": "a fact", "c": "a fact"})
    assert set(letters(proposer(with_fact).planner.plan(with_fact.context("c")))) == {"a", "b"}


def test_a_step_that_memory_saw_fail_on_this_task_is_left_out_and_one_that_won_is_told() -> None:
    trees = ScriptedTrees(FOUR)
    context = trees.context("")

    def known(title: str, speedup: float, kernel: str) -> Experience:
        bottleneck = context.parent_result.bottleneck.value
        return Experience(title, "", "walk", bottleneck, kernel=kernel, speedup=speedup, rejected=speedup < 1)

    def planned(*experiences: Experience) -> Plan:
        remembering: RoundContext = replace(context, experiences=experiences)
        return proposer(trees).planner.plan(remembering)

    assert letters(planned(known("go a", 0.9, context.task.name))) == "bcd"
    assert letters(planned(known("go a", 0.9, "another"))) == "abcd"
    won = known("go a", 1.3, context.task.name)
    plan = planned(won)
    assert plan.follows == (won.key,) and "Memory: walk won on this task" in plan.rationale


@pytest.mark.parametrize("details", ["", "{", '{"steps": []}', '{"steps": [{"transform": "a", "site": "b"}]}'])
def test_a_plan_of_someone_else_is_refused(details: str) -> None:
    trees = ScriptedTrees(FOUR)
    made = proposer(trees)
    plan = replace(made.planner.plan(trees.context("")), details=details)
    with pytest.raises(UnusableReply, match="not made by the catalogue"):
        made.executor.execute(trees.context(""), plan, ())


def test_a_step_that_is_gone_is_refused_and_a_failed_kernel_is_not_repaired() -> None:
    trees = ScriptedTrees(FOUR)
    made = proposer(trees)
    plan = made.planner.plan(trees.context(""))
    with pytest.raises(UnusableReply, match="is not open"):
        made.executor.execute(trees.context("", "a"), plan, ())
    with pytest.raises(CannotRepair, match="SBUF is full"):
        made.executor.execute(trees.context(""), plan, (Feedback("...", "SBUF is full"),))
