"""Of a round's kernels: what may be the best goes to the device, and what is one program is judged once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from accelopt_core.candidate import Plan
from accelopt_core.evaluation import Bottleneck, Crashed, Evaluation, Predicted, Step
from accelopt_core.languages.nki.language import NKI
from accelopt_core.loop.rounds import Loop, LoopSettings, Past, RunResult
from accelopt_core.loop.screening import Guide, may_be_best
from accelopt_core.ports import EvaluationRequest, Progress, TargetUnreachable
from accelopt_core.proposer import CannotRepair, Feedback, NothingToPlan, Proposer, RoundContext
from ka_extensions.residuals import Residual
from tests.core.test_rounds import BROKEN, TASK, WRONG, Script, measured
from tests.processes import PATIENCE_S

TIE = 0.02


@dataclass
class TableSimulator:
    """Knows kernels by their text. `us`: predicted latencies, with what binds them; `same`: names of programs."""

    us: Mapping[str, float | tuple[Any, ...] | None] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Every source that had to be priced."""
    compared: int = 0

    def predicted(self, sources: Sequence[str]) -> dict[str, Predicted | None]:
        self.asked += sources
        return {source: self._of(self.us[source]) for source in sources}

    def _of(self, said: float | tuple[Any, ...] | None) -> Predicted | None:
        if said is None:
            return None
        return Predicted(*said) if isinstance(said, tuple) else Predicted(said, "dma")

    def programs(self, sources: Sequence[str]) -> dict[str, tuple[str, ...]]:
        self.compared += 1
        return {source: (self.same[source],) if source in self.same else () for source in sources}


class Kernels(Script):
    """Lane a writes `a`, and after a failed try `a!`; in round 2 `2a`. `worth` says what the target finds of each."""

    def __init__(self, worth: Mapping[str, Any], simulator: TableSimulator, **guide: Any) -> None:
        super().__init__([measured(100)])
        self.worth = dict(worth)
        self.guide = Guide(simulator, TIE, **{"prices": True, **guide})
        self.repairs = True
        self.sent: list[str] = []
        self.slow: set[str] = set()
        """Which reach the target only when all others of their round have come back from it."""
        self._fast = threading.Semaphore(0)

    def plan(self, context: RoundContext) -> Plan:
        name = "abcdefgh"[len(context.planned)]
        kernel = name if context.round == 1 else f"{context.round}{name}"
        return Plan(f"p{context.round}", kernel, kernel, Bottleneck.MEMORY_BOUND, 5.0, "because")

    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        if feedback and not self.repairs:
            raise CannotRepair("there is no second version")
        return plan.title + "!" * len(feedback)

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        if request.candidate.id == "input" or request.final:
            return measured(100) if request.candidate.id == "input" else self._found(request.candidate.source)
        if request.candidate.source in self.slow:
            assert self._fast.acquire(timeout=PATIENCE_S), "no other kernel is evaluated beside it"
        self.sent.append(request.candidate.source)
        self._fast.release()
        return self._found(request.candidate.source)

    def _found(self, source: str) -> Evaluation:
        found = self.worth[source]
        if isinstance(found, Exception):
            raise found
        return measured(found) if isinstance(found, (int, float)) else found

    def go(self, past: Past | None = None, **settings: Any) -> RunResult:
        proposer = Proposer("script", self, self, self, self)
        wanted = replace(LoopSettings(rounds=1, patience=99), **settings)
        loop = Loop(
            TASK, "k", self, proposer, self, self, self, wanted, lambda: False, past, guide=self.guide, language=NKI
        )
        return loop.run()


def told(result: RunResult) -> dict[str, str]:
    return {a.candidate.source: a.outcome.value for a in result.attempts if a.candidate is not None}


SIX = {"a": 90.0, "b": 50.0, "c": 80.0, "d": 50.9, "e": 70.0, "f": 49.95}


@pytest.mark.parametrize(
    ("predicted", "sent"),
    [
        ([], []),
        ([5.0], [True]),
        ([9.0, 1.0, 5.0], [True, True, True]),
        ([9.0, 1.0, 5.0, 8.0], [False, True, True, True]),
        ([100.0, 101.0, 101.9, 102.0, 102.1], [True, True, True, True, False]),
        ([7.0, 7.0, 7.0, 7.0], [True, True, True, True]),
        ([1.0, 7.0, 7.0, 7.0], [True, True, True, False]),
    ],
)
def test_what_cannot_be_told_from_the_best_may_be_it_and_three_in_any_case(predicted, sent) -> None:
    assert may_be_best(predicted, TIE, least=3) == sent


def test_the_device_times_what_may_be_the_best_and_the_others_say_why_not() -> None:
    script = Kernels({"b": 60, "d": 58, "f": 65}, TableSimulator(SIX))
    result = script.go(width=6)
    assert sorted(script.sent) == ["b", "d", "f"] and result.best.source == "d"
    assert told(result) == {
        "a": "outranked", "b": "improved", "c": "outranked", "d": "improved", "e": "outranked", "f": "no_improvement",
    }  # fmt: skip
    left = next(attempt for attempt in result.attempts if attempt.outcome.value == "outranked")
    assert left.summary == "predicted 90.0 µs, 3 others were better (from 50.0 µs): not timed on the device"
    assert left.decision is not None and left.reflexion is None and left.evaluation is None
    assert {context.parent.id for context in script.reviewed} == {"input"} and len(script.reviewed) == 3
    assert [attempt.predicted for attempt in result.attempts] == [Predicted(us, "dma") for us in SIX.values()]


@pytest.mark.parametrize(("contested", "more"), [("bdf", ["e"]), ("bd", []), ("abcdef", [])])
def test_beside_what_rests_on_a_contested_fact_the_device_times_one_that_rests_on_none(contested, more) -> None:
    """Predicted to be the best of those, however far behind; none where there is none, or one goes anyway."""
    table = TableSimulator({name: (us, "dma", ("a fact",) if name in contested else ()) for name, us in SIX.items()})
    script = Kernels({"b": 60, "d": 58, "f": 65, "e": 80}, table)
    script.go(width=6)
    assert sorted(script.sent) == sorted(["b", "d", "f", *more])


def test_more_than_three_go_where_there_is_room_a_tie_or_no_price() -> None:
    script = Kernels(dict.fromkeys("bcdef", 60), TableSimulator(SIX), least=5)
    assert told(script.go(width=6))["a"] == "outranked" and sorted(script.sent) == list("bcdef")
    ties = {name: 50.0 + 0.2 * number for number, name in enumerate("abcde")} | {"f": 52.0}
    script = Kernels(dict.fromkeys("abcde", 60), TableSimulator(ties))
    script.go(width=6)
    assert sorted(script.sent) == list("abcde")
    script = Kernels(dict.fromkeys("abdf", 60), TableSimulator(SIX | {"a": None}))
    script.go(width=6)
    assert sorted(script.sent) == list("abdf")


def test_what_the_device_finds_wrong_gives_its_place_to_the_next_that_is_better() -> None:
    script = Kernels({"f": WRONG, "b": 60, "d": BROKEN, "e": 65, "c": 70}, TableSimulator(SIX))
    script.repairs = False
    result = script.go(width=6)
    assert script.sent[:3] != script.sent[3:] and sorted(script.sent[3:]) == ["c", "e"]
    assert told(result)["a"] == "outranked" and result.best.source == "b"
    predicted = {"a": 90.0, "b": 90.0, "c": 50.0, "d": 50.0, "c!": 60.0}
    script = Kernels({"a": 95, "c": WRONG, "c!": 65, "d": 66}, TableSimulator(predicted))
    assert told(script.go(width=4))["b"] == "outranked" and sorted(script.sent) == ["a", "c", "c!", "d"]
    predicted = SIX | {"f!": 49.0, "d!": 99.0}
    script = Kernels({"f": WRONG, "f!": 55, "b": 60, "d": WRONG, "e": 65}, TableSimulator(predicted))
    result = script.go(width=6)
    assert sorted(script.sent) == ["b", "d", "e", "f", "f!"] and result.best.source == "f!"
    of_lane = [attempt.outcome.value for attempt in result.attempts if attempt.lane == "d"]
    assert of_lane == ["incorrect", "outranked"]


def test_what_the_device_showed_of_a_kind_corrects_the_next_round() -> None:
    bound_by = {"a": "dma", "b": "dma", "c": "tensor"}
    us = {name: (50.0, kind) for name, kind in bound_by.items()}
    us |= {"2a": (40.0, "dma"), "2b": (41.0, "dma"), "2c": (42.0, "dma"), "2d": (45.0, "tensor")}
    worth = {"a": 150, "b": 150, "c": 50, "2a": 99, "2b": 99, "2c": 99, "2d": 40}
    script = Kernels(worth, TableSimulator(us))
    script.plan = _three_then_four(script.plan)  # type: ignore[method-assign]
    result = script.go(width=4, rounds=2)
    assert "2d" in script.sent and "2c" not in script.sent and result.best.source == "2d"
    assert "predicted 115" in next(a.summary for a in result.attempts if a.id == "r002ct1")


def _three_then_four(plan: Any) -> Any:
    def planned(context: RoundContext) -> Plan:
        if context.round == 1 and len(context.planned) == 3:
            raise NothingToPlan("three are enough")
        found: Plan = plan(context)
        return found

    return planned


def test_what_other_runs_measured_on_such_a_device_counts_from_the_first_round() -> None:
    us = {"a": (40.0, "dma"), "b": (41.0, "dma"), "c": (42.0, "dma"), "d": (45.0, "tensor")}
    earlier = tuple(Residual.of("dma", 1.0, 2.0) for _ in range(9)) + (Residual.of("tensor", 1.0, 1.0),)
    script = Kernels(dict.fromkeys("abcd", 60), TableSimulator(us), earlier=earlier)
    script.go(width=4)
    assert sorted(script.sent) == ["a", "b", "d"]


def test_a_run_that_goes_on_sends_what_was_chosen_and_prices_nothing_again() -> None:
    first = Kernels({"b": 60, "d": 58, "f": TargetUnreachable("the host is gone")}, TableSimulator(SIX))
    with pytest.raises(TargetUnreachable):
        first.go(width=6)
    chosen = dict(first.choices)
    assert sorted(c.predicted.latency_us for c in chosen[1, 1] if c.sent and c.predicted) == [49.95, 50.0, 50.9]
    otherwise = TableSimulator({name: 200.0 - us for name, us in SIX.items()})
    again = Kernels({"b": 60, "d": 58, "f": 65}, otherwise)
    again.choices = first.choices
    result = again.go(Past(measured(100), tuple(first.filed)), width=6)
    assert sorted(again.sent) == ["b", "d", "f"] and otherwise.asked == [] and again.choices[1, 1] == chosen[1, 1]
    assert result.best.source == "d" and told(result)["a"] == "outranked"


def test_what_is_new_after_an_interruption_is_chosen_beside_what_was_sent() -> None:
    first = Kernels({"b": 60, "d": 58, "f": 65}, TableSimulator(SIX))
    first.go(width=6)
    again = Kernels({"b": 60, "d": 58, "f": 65, "g": 50}, TableSimulator(SIX | {"g": 40.0}))
    again.choices = {(1, 1): first.choices[1, 1]}
    again.chosen = lambda round, number, choose: choose(again.choices.get((round, number), ()))  # type: ignore[method-assign]
    again.go(width=7)
    assert sorted(again.sent) == ["b", "d", "f", "g"]
    assert isinstance(again.guide.simulator, TableSimulator) and again.guide.simulator.asked == ["g"]


def test_only_what_can_be_compared_for_a_device_is_priced() -> None:
    simulator = TableSimulator({"a": 70.0})
    result = Kernels({"a": 90}, simulator).go()
    assert result.attempts[0].predicted == Predicted(70.0, "dma") and simulator.compared == 0
    simulator = TableSimulator()
    script = Kernels(dict.fromkeys("abcdef", 60), simulator, prices=False)
    result = script.go(width=6)
    assert sorted(script.sent) == list("abcdef") and simulator.asked == []
    assert all(attempt.predicted is None for attempt in result.attempts)


@pytest.mark.parametrize("prices", [True, False], ids=["device", "simulated"])
@pytest.mark.parametrize("slow", [{"a"}, {"c"}, set()], ids=["the first is slow", "another is slow", "any order"])
def test_of_lanes_with_one_program_the_first_is_judged_and_the_others_are_told(prices: bool, slow: set[str]) -> None:
    simulator = TableSimulator(
        {"a": 50.0, "b": 50.0, "c": 60.0, "b!": 70.0, "d!": 70.0}, {"a": "x", "b": "x", "c": "y", "d": "x"}
    )
    script = Kernels({"a": 90, "c": 95}, simulator, prices=prices)
    script.slow, script.repairs = slow, False
    result = script.go(width=4)
    assert sorted(script.sent) == ["a", "c"]
    assert told(result) == {"a": "improved", "b": "duplicate", "c": "no_improvement", "d": "duplicate"}
    said = {attempt.lane: attempt.summary for attempt in result.attempts}
    assert "the same program as r001at1, which came to: simulated 90.0 µs" in said["b"] == said["d"]


def test_whoever_wrote_a_program_twice_may_write_another_one() -> None:
    simulator = TableSimulator(same={"a": "x", "b": "x", "b!": "y", "c": "z", "c!": "y"})
    script = Kernels({"a": 90, "b!": 80, "c": WRONG}, simulator, prices=False)
    result = script.go(width=3, max_repairs=1)
    assert script.sent[-1] == "b!" and sorted(script.sent) == ["a", "b!", "c"]
    outcomes = [(attempt.id, attempt.outcome.value) for attempt in result.attempts]
    assert outcomes == [("r001at1", "improved"), ("r001bt1", "duplicate"), ("r001bt2", "improved"),
                        ("r001ct1", "incorrect"), ("r001ct2", "duplicate")]  # fmt: skip
    assert "the same program as r001bt2" in result.attempts[-1].summary


def test_the_same_text_is_the_same_program_though_it_does_not_compile() -> None:
    script = Kernels({"a": BROKEN}, TableSimulator(), prices=False)
    script.execute = lambda context, plan, feedback: _once(feedback)  # type: ignore[method-assign]
    assert told(script.go(width=3)) == {"a": "duplicate"} and script.sent == ["a"]


def _once(feedback: tuple[Feedback, ...]) -> str:
    if feedback:
        raise CannotRepair("one version")
    return "a"


def test_a_crash_says_nothing_of_the_next_try_of_the_same_program() -> None:
    simulator = TableSimulator(same=dict.fromkeys("abc", "x"))
    script = Kernels({"a": Crashed(Step.RUN, "the device was lost"), "b": 90}, simulator, prices=False)
    script.repairs = False
    assert told(script.go(width=3)) == {"a": "crashed", "b": "improved", "c": "duplicate"}
    assert script.sent == ["a", "b"]


def test_a_program_that_is_not_sent_is_not_sent_twice() -> None:
    simulator = TableSimulator(SIX | {"g": 90.0}, {"a": "x", "g": "x"})
    script = Kernels({"b": 60, "d": 58, "f": 65}, simulator)
    result = script.go(width=7)
    assert told(result)["a"] == told(result)["g"] == "outranked" and "g" not in simulator.asked
    assert result.attempts[-1].predicted == Predicted(90.0, "dma")


def test_a_run_that_goes_on_tells_the_same_duplicates() -> None:
    def script() -> Kernels:
        simulator = TableSimulator(same={"a": "x", "b": "x", "c": "y"})
        made = Kernels({"a": 90, "c": 95}, simulator, prices=False)
        made.repairs = False
        return made

    first = script()
    whole = first.go(width=3)
    for cut in range(1, len(first.filed)):
        half = tuple(
            replace(each, decision=None) if n == cut else each for n, each in enumerate(first.filed[: cut + 1])
        )
        assert told(script().go(Past(measured(100), half), width=3)) == told(whole), cut
