"""A best kernel that rests on no contested fact, the fastest of all beside it, and prices without contested facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelopt_core.candidate import Attempt
from accelopt_core.evaluation import Incorrect, Measured
from accelopt_core.loop.events import LastCheck
from accelopt_core.loop.rounds import Past
from infra.terminal.run_state import RunState
from ka_extensions.divergence_guard import DivergenceGuard
from ka_extensions.outcome import Outcome
from tests.core.test_rounds import WRONG, Script, measured

FACT = ("4-byte dma_transpose",)
HALVES = "half-array products side by side"


def contested(latency_us: float, facts: tuple[str, ...] = FACT) -> Measured:
    return replace(measured(latency_us), contested=facts)


def on_a_device(*results: Measured) -> list[Measured]:
    return [replace(each, simulated=False) for each in results]


def latest(filed: list[Attempt]) -> tuple[Attempt, ...]:
    return tuple({attempt.id: attempt for attempt in filed}.values())


def test_the_best_rests_on_none_and_the_fastest_of_all_is_kept_beside_it() -> None:
    script = Script([measured(100), contested(60), measured(90), contested(50)])
    outcome = script.run(rounds=3)
    assert (outcome.best.id, outcome.best_result.latency_us) == ("r002t1", 90)
    assert script.bests[-1] == "r002t1" and script.counterparts[-1] == "r003t1"
    assert [attempt.outcome for attempt in outcome.attempts] == [Outcome.IMPROVED] * 3
    assert {request.candidate.id for request in script.finals} == {"r002t1", "r003t1"}, "both have a last check"
    script = Script([measured(100), contested(60), measured(50)])
    outcome = script.run(rounds=2)
    assert outcome.best.id == "r002t1" and script.counterparts[-1] is None


def test_it_is_decided_against_the_fastest_of_all_and_gone_on_from_the_best() -> None:
    script = Script([measured(100), contested(60), contested(70)])
    outcome = script.run(rounds=2)
    assert outcome.attempts[1].outcome is not Outcome.IMPROVED and script.counterparts[-1] == "r001t1"
    assert outcome.best.id == "input"
    script = Script([measured(100), contested(60), measured(90), contested(99)])
    script.run(rounds=4, guard=DivergenceGuard(max_exploration=2))
    assert [context.parent.id for context in script.contexts] == ["input", "input", "r002t1", "r002t1"]


def test_a_fact_that_the_input_kernel_rests_on_is_none_of_the_candidates() -> None:
    script = Script([contested(100), contested(60), contested(50, (*FACT, HALVES))])
    outcome = script.run(rounds=2)
    assert outcome.best.id == "r001t1" and script.counterparts[-1] == "r002t1"


def test_on_a_device_the_fastest_is_the_best_and_the_fastest_without_contested_facts_is_timed_beside_it() -> None:
    script = Script([*on_a_device(measured(100), contested(60), measured(90), measured(80), measured(85))])
    outcome = script.run(rounds=4)
    assert outcome.best.id == "r001t1" and script.counterparts[-1] == "r003t1"
    assert {request.candidate.id for request in script.finals} == {"r001t1", "r003t1"}


def test_a_counterpart_that_fails_its_last_check_gives_way_to_the_next_and_the_best_stays() -> None:
    script = Script([measured(100), contested(60), measured(90), contested(50)], final={"r003t1": WRONG})
    outcome = script.run(rounds=3)
    assert isinstance(script.final["r003t1"], Incorrect)
    assert outcome.best.id == "r002t1" and script.counterparts[-1] == "r001t1"
    assert len(script.contexts) == 3, "the best stands: no round is gone on with"


def test_a_resumed_run_comes_to_the_same_two() -> None:
    results = [measured(100), contested(60), measured(90), contested(50)]
    whole = Script(list(results))
    outcome = whole.run(rounds=3)
    baseline = measured(100)
    again = Script([baseline])
    again.final = {"r002t1": measured(90), "r003t1": contested(50)}
    resumed = again.run(Past(baseline, latest(whole.filed)), rounds=3)
    assert resumed.best.id == outcome.best.id and again.counterparts[-1] == whole.counterparts[-1] == "r003t1"


@pytest.mark.parametrize("passed", ["r002t1", "r003t1"])
def test_a_watcher_shows_the_same_best(passed: str) -> None:
    script = Script([measured(100), contested(60), measured(90), contested(50)])
    script.run(rounds=3)
    state = RunState()
    for event in script.events:
        state.apply(event, 0.0)
    assert state.best_id == "r002t1" and state.best is not None and state.best.latency_us == 90
    assert any(isinstance(event, LastCheck) and event.candidate_id == passed for event in script.events)
