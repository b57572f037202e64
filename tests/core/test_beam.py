"""Rounds that start from an archive: of each kind the fastest kernel, several plans of each, samples of each plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from accelopt_core.candidate import MOST_LANES, Attempt, Candidate, Plan, lane_names
from accelopt_core.evaluation import Bottleneck, Evaluation, Measured
from accelopt_core.languages.nki.language import NKI
from accelopt_core.loop.beam import BeamState
from accelopt_core.loop.rounds import Loop, LoopSettings, Past, RunResult
from accelopt_core.loop.search_state import Ended
from accelopt_core.ports import EvaluationRequest, Progress
from accelopt_core.proposer import Feedback, NothingToPlan, Proposer, RoundContext
from ka_extensions.divergence_guard import DivergenceGuard
from ka_extensions.error_patterns import RepairRule
from tests.core.test_rounds import BROKEN, TASK, WRONG, Script, measured

BEAM = LoopSettings(rounds=1, beam=2, patience=99)


class BeamScript(Script):
    """A kernel's text is the list of what was done to it, and `worth` says what that comes to."""

    def __init__(self, worth: dict[str, Any], by_tool: bool = False) -> None:
        super().__init__([measured(100)])
        self.worth = worth
        self.by_tool = by_tool
        self.ideas: dict[str, list[str]] = defaultdict(list)
        """By what the parent is, the techniques that a planner has for it, in this order."""
        self.at_once = self.most_at_once = 0

    def plan(self, context: RoundContext) -> Plan:
        self.contexts.append(context)
        ideas = self.ideas[context.parent.source]
        if not ideas:
            raise NothingToPlan(f"nothing for {context.parent.source}")
        name = ideas.pop(0)
        return Plan(f"p{context.round}", name, name, Bottleneck.MEMORY_BOUND, 5.0, "because", by_tool=self.by_tool)

    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        self.written_for.append(context)
        sample = f"#{context.sample}" if context.samples > 1 else ""
        return f"{context.parent.source} + {plan.technique}{sample}{'!' * len(feedback)}"

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        if request.final and request.candidate.id in self.final:
            return self.final[request.candidate.id]
        if request.candidate.id == "input" or request.final:
            return self.measured_by(request.candidate.source)
        self.requests.append(request)
        return self.measured_by(request.candidate.source)

    def measured_by(self, source: str) -> Evaluation:
        result = self.worth[source]
        return result if not isinstance(result, (int, float)) else measured(result)

    def go(self, settings: LoopSettings, past: Past | None = None) -> RunResult:
        proposer = Proposer("script", self, self, self, self)
        return Loop(TASK, "k", self, proposer, self, self, self, settings, lambda: False, past, language=NKI).run()

    def started_from(self, number: int) -> list[str]:
        return [context.parent.source for context in self.contexts if context.round == number]


def told(attempts: Sequence[Attempt]) -> list[tuple[str, str, str]]:
    return [(attempt.id, attempt.parent_id, attempt.outcome.value) for attempt in attempts]


@pytest.mark.parametrize(("count", "first", "last"), [(1, "", ""), (2, "a", "b"), (26, "a", "z"), (27, "aa", "ba")])
def test_lanes_are_named_in_the_order_of_the_alphabet(count: int, first: str, last: str) -> None:
    names = lane_names(count)
    assert (len(set(names)), names[0], names[-1]) == (count, first, last) and list(names) == sorted(names)


def test_every_parent_has_its_plans_and_every_plan_its_samples() -> None:
    script = BeamScript({"k": 100, "k + a#1": 90, "k + a#2": 80, "k + b#1": WRONG, "k + b#1!": 95, "k + b#2": 70})
    script.ideas["k"] = ["a", "b"]
    result = script.go(replace(BEAM, beam=1, plans=2, samples=2, width=3))
    assert [(c.sample, c.samples) for c in sorted(script.written_for, key=lambda c: c.sample)][::4] == [(1, 2), (2, 2)]
    assert told(result.attempts) == [
        ("r001at1", "input", "improved"), ("r001bt1", "input", "improved"), ("r001ct1", "input", "incorrect"),
        ("r001ct2", "input", "no_improvement"), ("r001dt1", "input", "improved"),
    ]  # fmt: skip
    assert [a.plan.id for a in result.attempts if a.plan] == ["p1a", "p1a", "p1c", "p1c", "p1c"]
    assert {a.lanes for a in result.attempts} == {4} and result.best.source == "k + b#2"
    assert [[plan.title for plan in context.planned] for context in script.contexts] == [[], ["a"]]


@pytest.mark.parametrize(("by_tool", "samples", "lanes"), [(True, 5, 1), (False, 1, 1)])
def test_a_plan_that_a_tool_carries_out_is_written_once_and_told_from_a_model_s(by_tool, samples, lanes) -> None:
    script = BeamScript({"k": 100, "k + a": 90}, by_tool=by_tool)
    script.ideas["k"] = ["a"]
    result = script.go(replace(BEAM, samples=samples))
    assert told(result.attempts) == [("r001at1", "input", "improved")] and result.attempts[0].lanes == lanes
    assert [request.by_tool for request in script.requests] == [by_tool]


def two_ways() -> BeamScript:
    """Technique a leads down to 80 and ends there; b begins at 90 and leads to 50."""
    script = BeamScript({"k": 100, "k + a": 80, "k + b": 90, "k + a + c": 85, "k + a + d": 84, "k + b + c": 88,
                         "k + b + d": 50, "k + b + d + e": 49.9, "k + a + e": 83})  # fmt: skip
    script.ideas |= {"k": ["a", "b"], "k + a": ["c", "d", "e"], "k + b": ["c", "d"], "k + b + d": ["e"]}
    return script


def test_which_kernels_a_round_starts_from() -> None:
    script = two_ways()
    result = script.go(replace(BEAM, plans=2, rounds=3))
    assert [script.started_from(number)[::2] for number in (1, 2)] == [["k"], ["k + a", "k + b"]]
    assert script.started_from(3)[0] == "k + b + d"
    assert result.best.source == "k + b + d" and result.best_result.latency_us == 50
    second = sorted((request.candidate for request in script.requests[2:6]), key=lambda each: each.id)
    assert [candidate.parent_id for candidate in second[:2]] == ["r001at1", "r001at1"]
    script = two_ways()
    script.worth |= {f"k + a + {each}": 95 for each in "cdef"} | {"k + b + c": 70}
    script.ideas["k + a"] += ["f"]
    script.go(replace(BEAM, beam=1, plans=2, rounds=4))
    assert [script.started_from(number)[0] for number in (1, 2, 3, 4)] == ["k", "k + a", "k + a", "k + b"]
    script = two_ways()
    script.worth["k + a"] = replace(measured(80), contested=("a fact",))
    script.go(replace(BEAM, beam=1, plans=2, rounds=2))
    assert script.started_from(2)[0] == "k + b"
    script = two_ways()
    script.ideas["k + a"].clear()
    result = script.go(replace(BEAM, beam=1, plans=2, rounds=9))
    assert script.started_from(2) == ["k + a", "k + b", "k + b"] and script.started_from(3)[0] == "k + b + d"
    assert [attempt.lane for attempt in result.attempts if attempt.round == 2] == ["a", "b"]
    assert result.best.source == "k + b + d" and result.reason.startswith("nothing for")
    script = two_ways()
    script.worth["k + b"] = 121
    script.go(replace(BEAM, plans=2, rounds=2, guard=DivergenceGuard(revert_above=0.5)))
    assert set(script.started_from(2)) == {"k + a", "k"}


@pytest.mark.parametrize(("tie", "simulated", "parent"), [(0.01, True, "a"), (0.1, True, "b"), (0.1, False, "a")])
def test_what_is_no_faster_than_a_tie_came_of_a_kernel_in_vain(tie: float, simulated: bool, parent: str) -> None:
    """Of 80 µs came 77 twice: where that is a tie, another kind is gone on from. What a device took is no tie."""

    def took(latency_us: float) -> Measured:
        return replace(measured(latency_us), simulated=simulated)

    state = BeamState(Candidate("input", "k"), took(100), DivergenceGuard(max_exploration=0), 1, tie)
    for name, latency_us in (("a", 80), ("b", 90)):
        state.adopt(Candidate(name, name, "input"), took(latency_us), state.decide(took(latency_us)), name)
    made = Candidate("c", "c", "a")
    for _ in range(2):
        state.end_round([Ended("a", made, took(77), state.decide(took(77)))])
    assert state.parents[0][0].id == parent


@pytest.mark.parametrize("cut", range(9))
def test_a_run_that_was_cut_anywhere_goes_on_as_it_would_have(cut: int) -> None:
    settings = replace(BEAM, plans=2, rounds=4)
    whole = two_ways()
    expected = whole.go(settings)
    again = two_ways()
    filed = tuple(whole.filed[:cut])
    complete = [round for round in (1, 2, 3) if sum(a.round == round for a in filed) == len(
        [a for a in whole.filed if a.round == round])]  # fmt: skip
    for attempt in filed:  # a planner does not plan what it sees in the history
        if attempt.round in complete and attempt.plan is not None:
            parent = next((a.candidate.source for a in filed if a.candidate and a.id == attempt.parent_id), "k")
            again.ideas[parent].remove(attempt.plan.technique)
    resumed = again.go(settings, Past(measured(100), filed))
    assert told(resumed.attempts) == told(expected.attempts) and resumed.best == expected.best
    assert again.started_from(4) == whole.started_from(4)


def test_a_winner_that_fails_its_last_check_is_mended_beside_other_plans() -> None:
    script = BeamScript({"k": 100, "k + a": 80, "k + b": 90, "k + a!": 75, "k + b + c": 85, "k + d": 95})
    script.ideas |= {"k": ["a", "b", "d"], "k + b": ["c"]}
    script.final["r001at1"] = WRONG
    script.go(replace(BEAM, plans=2))
    kept = {attempt.id: attempt for attempt in script.filed}
    later = BeamScript(script.worth)
    later.ideas |= script.ideas
    result = later.go(replace(BEAM, plans=2, rounds=2), Past(measured(100), tuple(kept.values())))
    assert told(result.attempts)[-3:] == [
        ("r002at1", "input", "improved"),
        ("r002bt1", "r001bt1", "no_improvement"), ("r002ct1", "input", "no_improvement"),
    ]  # fmt: skip
    assert result.best.source == "k + a!" and [len(context.planned) for context in later.contexts[:2]] == [1, 2]


def test_a_winner_that_fails_its_last_check_leaves_its_place_to_the_next_of_its_kind() -> None:
    script = BeamScript({"k": 100, "k + a": 80, "k + b": 90}, by_tool=True)
    script.ideas["k"] = ["a", "b"]
    script.final["r001at1"] = WRONG
    result = script.go(replace(BEAM, plans=2))
    assert result.best.source == "k + b"
    kept = {attempt.id: attempt for attempt in script.filed}
    later = BeamScript({"k": 100, "k + b": 90, "k + b + c": 85})
    later.ideas["k + b"] = ["c"]
    later.go(replace(BEAM, plans=2, rounds=2), Past(measured(100), tuple(kept.values())))
    assert set(later.started_from(2)) == {"k + b", "k"}


def test_a_fault_whose_repairs_come_to_nothing_is_not_repaired_for_ever() -> None:
    script = BeamScript({"k": 100})
    for name in "abcdef":
        for tries in range(4):
            script.worth[f"k + {name}{'!' * tries}"] = BROKEN
    script.ideas["k"] = list("abcdef")
    result = script.go(replace(BEAM, plans=2, rounds=3, max_repairs=3, repairs=RepairRule(after=6, least_share=0.1)))
    tries = [sum(attempt.round == number for attempt in result.attempts) for number in (1, 2, 3)]
    assert tries == [8, 2, 2]
    plain = BeamScript(script.worth)
    plain.ideas["k"] = list("abcdef")
    many = plain.go(LoopSettings(rounds=3, width=2, repairs=RepairRule(after=6)))
    assert len(many.attempts) == 24, "without an archive a round has nothing else to go on from"


def test_which_changes_led_together_to_the_fastest_is_remembered() -> None:
    script = two_ways()
    script.go(replace(BEAM, plans=2, rounds=3))
    ways = [experience for experience in script.memory.experiences if " + " in experience.technique]
    assert [(way.technique, way.bottleneck, way.kernel, way.is_win) for way in ways] == [
        ("b + d + e", "underutilized", "copy", True), ("b + d", "underutilized", "copy", True),
    ], "and a alone, the third, is no way of several"  # fmt: skip
    assert ways[1].speedup == pytest.approx(2.0)
    assert ways[1].summary == "Together 2.00x: b (100.0 µs to 90.0 µs); then d (90.0 µs to 50.0 µs)."
    alone = Script([measured(100), measured(80), measured(60)])
    alone.run(rounds=2)
    assert not [experience for experience in alone.memory.experiences if " + " in experience.technique]


def test_at_most_so_many_candidates() -> None:
    with pytest.raises(ValueError, match=f"1 to {MOST_LANES} candidates"):
        LoopSettings(beam=20, plans=20, samples=2)
    assert LoopSettings(beam=6, plans=12, samples=2).candidates == 144
    assert LoopSettings(width=3).candidates == 3 and not LoopSettings(width=3).by_archive
