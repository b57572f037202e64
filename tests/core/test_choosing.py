"""Several proposers that take turns in a run: who is asked, what it is held to have cost, and who is out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from accelopt_core.candidate import Attempt, Candidate, Plan
from accelopt_core.evaluation import Bottleneck, Bounds, Evaluation, Measured, Profile
from accelopt_core.languages.nki.language import NKI
from accelopt_core.loop.choosing import Contender, TakingTurns, Turn, pulls_of
from accelopt_core.loop.events import Ending
from accelopt_core.loop.rounds import Loop, LoopSettings, Past, RunResult
from accelopt_core.optimization_memory import Experience
from accelopt_core.ports import (
    BudgetExhausted,
    EvaluationRequest,
    ModelBusy,
    ModelError,
    ModelRejectedCredentials,
    Progress,
)
from accelopt_core.proposer import Feedback, NothingToPlan, Proposer, RoundContext, UnusablePlan
from accelopt_core.task import ShapePreset, Task
from ka_extensions.bandit import CostAware, Pull, Spent, Track
from ka_extensions.divergence_guard import Decision
from ka_extensions.outcome import Outcome
from ka_extensions.reflexion import Diagnosis, Reflexion
from tests.core.test_rounds import Script

TASK = Task("copy", "", (ShapePreset("full", ()),))


def measured(latency_us: float) -> Measured:
    profile = Profile({}, Bounds(0.0, 0.0, 10.0, "trace"))
    return Measured(latency_us, latency_us, latency_us, 1, True, "sim", profile)


@dataclass
class Player:
    """One proposer. `gains`: what each of its kernels makes of its parent's latency, the last for ever; a fault of
    planning in place of one is raised, one in `writing` when it writes."""

    name: str
    gains: Sequence[float | Exception] = (1.0,)
    usd: float = 0.0
    """Of a call; two make a round, and the reflexion a third."""
    typical: Spent = Spent(0.1, 1.0)
    promise_us: Callable[[RoundContext], float | None] | None = None
    writing: Sequence[Exception] = ()
    calls: int = 0
    asked: list[RoundContext] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._gains, self._writing, self._count = list(self.gains), list(self.writing), count(1)

    def plan(self, context: RoundContext) -> Plan:
        self.asked.append(context)
        self.calls += 1
        gain = self._gains.pop(0) if len(self._gains) > 1 else self._gains[0]
        if isinstance(gain, Exception):
            raise gain
        title = f"{self.name} {next(self._count)}"
        return Plan("p", title, self.name, Bottleneck.MEMORY_BOUND, 1.0, "because", str(gain))

    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        self.calls += 1
        if self._writing:
            raise self._writing.pop(0)
        self.written.append(plan.title)
        return f"kernel = {context.parent_result.latency_us / float(plan.details)!r}  # {plan.title}"

    def summarize(
        self, context: RoundContext, plan: Plan, candidate: Candidate, result: Measured, decision: Decision
    ) -> Experience:
        return Experience(f"{self.name} says", "s", plan.technique, speedup=2.0)

    def reflect(
        self, context: RoundContext, plan: Plan, candidate: Candidate | None, result: Evaluation | None,
        decision: Decision,
    ) -> Reflexion:  # fmt: skip
        self.calls += 1
        return Reflexion(context.round, plan.title, self.name, 1.0, None, Outcome.KEPT, Diagnosis.RIGHT, "l")

    def contender(self) -> Contender:
        proposer = Proposer(self.name, self, self, self, self, lambda name: self.usd * self.calls)
        return Contender(proposer, self.typical, self.promise_us)


class Stage(Script):
    """Everything around the loop. A kernel takes as long as its text says."""

    def __init__(self, *players: Player, before: Mapping[str, Track] | None = None, patience: int = 50) -> None:
        super().__init__([])
        self.players = players
        self.before = dict(before or {})
        self.patience = patience
        self.kept: list[Turn] = []
        self.told: list[Sequence[Pull]] = []
        self.said: list[str] = []

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        found = re.match(r"kernel = ([\d.e+-]+)", request.candidate.source)
        assert found is not None
        return measured(float(found[1]))

    def attempt(self, attempt: Attempt) -> None:
        self.filed = [each for each in self.filed if each.id != attempt.id] + [attempt]

    def turn_of(self, round: int, place: int) -> str | None:
        found = [each.proposer for each in self.kept if (each.round, each.place) == (round, place)]
        return found[-1] if found else None

    def take(self, turn: Turn) -> None:
        self.kept.append(turn)

    def run(self, rounds: int = 1, past: Past | None = None, seed: str = "run", **settings: object) -> RunResult:
        turns = TakingTurns(
            [player.contender() for player in self.players], CostAware(3.0), self, seed, lambda bottleneck: self.before,
            self.told.append, self.said.append, self.patience,
        )  # fmt: skip
        wanted = replace(LoopSettings(rounds=rounds, patience=self.patience, model_failures=4), **settings)
        return Loop(
            TASK, "kernel = 1e6", self, turns.together(), self, self, self, wanted, lambda: False, past, language=NKI
        ).run()

    @property
    def turns(self) -> list[str]:
        return [attempt.proposer for attempt in self.filed if attempt.decision is not None]


def test_the_one_that_gains_or_is_cheaper_is_asked_and_the_other_not_forgotten() -> None:
    stage = Stage(Player("good", [1.1]), Player("poor", [0.9]))
    stage.run(rounds=40)
    assert stage.turns.count("good") > 30 and 0 < stage.turns.count("poor") < 10
    stage = Stage(
        Player("cheap", [1.05], usd=0.01, typical=Spent(0.03)), Player("dear", [1.05], usd=1.0, typical=Spent(3))
    )
    stage.run(rounds=20)
    assert stage.turns.count("cheap") >= 19


def test_what_one_plans_it_also_writes_summarizes_and_reviews() -> None:
    one, other = Player("one", [1.1], usd=0.033), Player("other", [1.1], usd=0.033)
    stage = Stage(one, other)
    stage.run(rounds=12)
    assert one.written and other.written and not set(one.written) & set(other.written)
    assert {experience.title for experience in stage.memory.experiences} == {"one says", "other says"}
    for attempt in stage.filed:
        assert attempt.plan is not None and attempt.plan.title.split()[0] == attempt.proposer == attempt.plan.proposer
        assert attempt.reflexion is not None and attempt.reflexion.technique == attempt.proposer


def test_what_the_catalogue_promises_is_asked_for_first() -> None:
    rest = iter([400_000.0, 100_000.0])
    catalogue = Player("catalogue", [1.5, 1.2, 0.99], promise_us=lambda context: next(rest, 0.0))
    stage = Stage(catalogue, Player("model", [1.01], usd=0.1))
    stage.run(rounds=5)
    assert stage.turns == ["catalogue", "catalogue", "model", "model", "model"]


def test_every_dollar_is_on_file_once_also_of_a_round_that_was_cut() -> None:
    players = Player("one", [1.1], usd=0.25), Player("other", [1.1], usd=0.5)
    stage = Stage(*players)
    stage.run(rounds=8, width=3)
    for player in players:
        spent = [each.spent for each in stage.filed if each.proposer == player.name and each.spent is not None]
        assert sum(each.usd for each in spent) == pytest.approx(player.usd * player.calls)
        assert all(each.seconds > 0 for each in spent)
    assert len(stage.filed) == 24 and {attempt.lanes for attempt in stage.filed} == {3}
    player = Player("good", [1.1], usd=0.5, calls=2)
    stage = Stage(player)
    stage.run(rounds=2)
    assert [each.spent.usd for each in stage.filed if each.spent is not None] == [2.5, 1.5]


def test_pulls_say_what_was_gained_where() -> None:
    stage = Stage(Player("good", [2.0, 0.9], usd=0.5))
    result = stage.run(rounds=2)
    pulls = pulls_of(result.attempts, result.baseline)
    assert [(p.proposer, p.round, round(math.exp(p.log_speedup), 6)) for p in pulls] == [("good", 1, 2), ("good", 2, 1)]
    assert [p.spent.usd for p in pulls] == [1.5, 1.5] and pulls[0].bottleneck == result.baseline.bottleneck.value
    (won, lost) = result.attempts
    dropped = replace(won, last_check=measured(1.0))
    assert [pull.log_speedup for pull in pulls_of([dropped, lost], result.baseline)] == [0, 0]
    assert list(stage.told[-1]) == pulls[:1], "told at the beginning of the second round"


def test_the_same_run_makes_the_same_choices_and_another_makes_others() -> None:
    def turns(seed: str) -> list[str]:
        stage = Stage(Player("one", [1.02], usd=0.033), Player("other", [1.02], usd=0.033))
        stage.run(rounds=20, seed=seed)
        return stage.turns

    assert turns("a") == turns("a")
    assert len({tuple(turns(str(number))) for number in range(5)}) == 5


def test_a_round_that_is_gone_through_again_asks_whom_it_asked_before() -> None:
    for who in ("one", "other"):
        stage = Stage(Player("one", [1.02], usd=0.033), Player("other", [1.02], usd=0.033))
        stage.kept = [Turn(1, 0, "other" if who == "one" else "one", ()), Turn(1, 0, who, ())]
        stage.run(rounds=1)
        assert stage.turns == [who] and len(stage.kept) == 2, "the last choice counts, and is not made again"
    stage = Stage(Player("one", [1.02]))
    stage.kept = [Turn(1, 0, "somebody who is not here any more", ())]
    stage.run(rounds=1)
    assert stage.turns == ["one"] and stage.kept[-1].proposer == "one"


def test_a_resumed_run_knows_what_was_tried_and_paid() -> None:
    first = Stage(Player("good", [1.1], usd=0.5), Player("poor", [0.9], usd=0.5))
    whole = first.run(rounds=12)
    half = tuple(attempt for attempt in whole.attempts if attempt.round <= 6)
    good, poor = Player("good", [1.1], usd=0.5), Player("poor", [0.9], usd=0.5)
    for player in (good, poor):  # as their ledger says
        player.calls = 3 * sum(attempt.proposer == player.name for attempt in half)
    second = Stage(good, poor)
    second.run(rounds=12, past=Past(whole.baseline, half))
    assert [choice.proposer for choice in second.kept] == [choice.proposer for choice in first.kept[6:]]
    assert {each.spent.usd for each in second.filed if each.spent is not None} == {1.5}


REFUSED = ModelRejectedCredentials("m: the key is wrong")
FULL = BudgetExhausted("m: $5.00 spent: raise the cost budget to go on")


@pytest.mark.parametrize("error", [REFUSED, FULL], ids=["401", "budget"])
def test_one_that_never_will_answer_is_out_for_the_run_and_costs_no_round(error: ModelError) -> None:
    refused = Player("refused", [error], typical=Spent(0.0))
    stage = Stage(refused, Player("other", [1.1], typical=Spent(1.0)))
    result = stage.run(rounds=6)
    assert len(refused.asked) == 1 and stage.turns == ["other"] * 6
    assert [attempt.outcome for attempt in result.attempts] == ["improved"] * 6
    (said,) = stage.said
    assert said == f"refused is out for this run, other goes on: {error}"
    mended = Stage(Player("refused", [1.1], typical=Spent(0.0)), Player("other", [1.1], typical=Spent(1.0)))
    mended.run(rounds=8, past=Past(result.baseline, result.attempts))
    assert "refused" in mended.turns, "a resumed run asks again: the key may be right by now"


def test_one_that_is_busy_is_asked_again_in_the_next_round_and_out_after_two_in_a_row() -> None:
    busy = Player("busy", [ModelBusy("later"), 1.1, ModelBusy("later"), ModelBusy("later"), 1.1], typical=Spent(0.0))
    stage = Stage(busy, Player("other", [1.01], typical=Spent(9.0)))
    stage.run(rounds=8)
    assert stage.turns == ["other", "busy", "other", "other", "other", "other", "other", "other"]
    assert len(busy.asked) == 4 and len(stage.said) == 1


@pytest.mark.parametrize(
    ("error", "ending"), [(REFUSED, Ending.FAILED), (FULL, Ending.BUDGET)], ids=["401", "budget"]
)  # fmt: skip
def test_where_nobody_is_left_the_run_ends_as_with_one(error: ModelError, ending: Ending) -> None:
    result = Stage(Player("one", [error]), Player("other", [error])).run(rounds=9)
    assert result.ending is ending and result.reason == str(error)


def test_one_without_ideas_gives_way_and_is_asked_again_when_there_is_something_new() -> None:
    dry = Player("dry", [NothingToPlan("no idea left"), 1.1], typical=Spent(0.0))
    stage = Stage(dry, Player("other", [0.4, 0.4, 1.1, 1.1], typical=Spent(9.0)))
    stage.run(rounds=2)
    assert stage.turns[:2] == ["other", "dry"], "a kernel was measured meanwhile"
    both = Stage(Player("dry", [NothingToPlan("no idea left")]), Player("other", [NothingToPlan("none here")]))
    result = both.run(rounds=9)
    assert result.ending is Ending.FINISHED and "no idea left" in result.reason and "none here" in result.reason


def test_no_plan_is_a_try_of_whoever_gave_none() -> None:
    stage = Stage(Player("mute", [UnusablePlan("it only talks")]))
    result = stage.run(rounds=1)
    assert [(pull.proposer, pull.log_speedup) for pull in pulls_of(result.attempts, result.baseline)] == [("mute", 0)]
    assert result.attempts[0].outcome is Outcome.NO_PLAN and result.attempts[0].spent is not None


@pytest.mark.parametrize("error", [REFUSED, FULL], ids=["401", "budget"])
def test_one_that_cannot_write_its_plan_is_out_and_the_run_goes_on(error: ModelError) -> None:
    stage = Stage(
        Player("refused", [1.1], typical=Spent(0.0), writing=[error]), Player("other", [1.1], typical=Spent(1.0))
    )
    result = stage.run(rounds=3)
    assert stage.turns == ["refused", "other", "other"] and len(stage.said) == 1
    assert result.ending is Ending.FINISHED and result.attempts[0].measured is None


def test_no_run_gives_up_before_the_dear_one_was_asked() -> None:
    cheap = Player("cheap", [1.0001], usd=0.01, typical=Spent(0.01))
    stage = Stage(cheap, Player("dear", [1.5], usd=9.0, typical=Spent(27.0)), patience=4)
    result = stage.run(rounds=6)
    assert stage.turns[:4] == ["cheap", "cheap", "cheap", "dear"] and result.best.id == "r004t1"


def test_what_earlier_runs_know_is_asked_for() -> None:
    before = {"good": Track(40, 30, 6.0, 4.0, 400), "poor": Track(40, 0, 0.0, 4.0, 400)}
    firsts = []
    for number in range(20):
        stage = Stage(Player("good", [1.1]), Player("poor", [0.9]), before=before)
        stage.run(rounds=1, seed=str(number))
        firsts += stage.turns
    assert firsts.count("good") >= 18


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two proposers of one name"):
        Stage(Player("one"), Player("one")).run()
