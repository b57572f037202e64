"""The loop on scripted scenarios: nine steps in order, and the rules by which it goes on or stops."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NoReturn

import pytest

from accelopt_core.candidate import Attempt, Candidate, Plan, source_hash
from accelopt_core.evaluation import (
    ROUND_STEPS,
    Bottleneck,
    Bounds,
    CheckFailure,
    CompileFailed,
    Duplicate,
    Evaluation,
    Finding,
    Implausible,
    Incorrect,
    IncumbentTiming,
    Measured,
    Profile,
    Proof,
    Property,
    Step,
    explain,
)
from accelopt_core.judging.inputs.draws import draws_at_a_gate
from accelopt_core.languages.nki.language import NKI
from accelopt_core.loop.events import BASELINE_ROUND, Ending, Event, Notice, PlanMade, RoundEnded, StepBegan
from accelopt_core.loop.known_programs import known_programs
from accelopt_core.loop.rounds import BaselineRejected, Loop, LoopSettings, Past, RunResult, more_at_the_gates
from accelopt_core.optimization_memory import Experience, OptimizationMemory
from accelopt_core.ports import (
    BudgetExhausted,
    Choice,
    EvaluationRequest,
    ModelError,
    ModelRejectedCredentials,
    ModelUnreachable,
    ModelUnusable,
    Progress,
    TargetInfo,
    TargetUnreachable,
)
from accelopt_core.proposer import (
    CannotRepair,
    Feedback,
    NothingToPlan,
    Proposer,
    RoundContext,
    UnusablePlan,
    UnusableReply,
)
from accelopt_core.task import ShapePreset, Task
from ka_extensions.divergence_guard import Decision, DivergenceGuard
from ka_extensions.idea_bans import BanRule
from ka_extensions.outcome import Outcome
from ka_extensions.reflexion import Diagnosis, Reflexion
from tests.processes import PATIENCE_S

TASK = Task("copy", "", (ShapePreset("full", ()),))
BOUNDS = Bounds(0.0, 0.0, 10.0, "declared")
BROKEN = CompileFailed("no name foo", 3)
WRONG = Incorrect(CheckFailure(0, "full", 0, "outputs differ"))


def measured(latency_us: float) -> Measured:
    return Measured(latency_us, latency_us, latency_us, 1, True, "sim", Profile({}, BOUNDS))


@dataclass
class Script:
    """Plays every role outside the loop. `results`: for the baseline, then for each candidate; the last repeats."""

    results: list[Evaluation]
    replies: list[str | Exception] = field(default_factory=list)
    plans: list[Exception] = field(default_factory=list)
    parents: dict[int, str] = field(default_factory=dict)
    """By round: the measured candidate that the plan starts from."""
    final: dict[str, Evaluation] = field(default_factory=dict)
    by_tool: bool = False
    """Plans are carried out without a model."""
    exhausted_after: int | None = None
    interrupt_at: Step | None = None
    events: list[Event] = field(default_factory=list)
    requests: list[EvaluationRequest] = field(default_factory=list)
    finals: list[EvaluationRequest] = field(default_factory=list)
    filed: list[Attempt] = field(default_factory=list)
    bests: list[str] = field(default_factory=list)
    counterparts: list[str | None] = field(default_factory=list)
    reserved: list[float] = field(default_factory=list)
    seconds: float = math.inf
    """That are left, from the second round on."""
    memory: OptimizationMemory = field(default_factory=OptimizationMemory)
    contexts: list[RoundContext] = field(default_factory=list)
    written_for: list[RoundContext] = field(default_factory=list)
    reviewed: list[RoundContext] = field(default_factory=list)
    feedbacks: list[tuple[Feedback, ...]] = field(default_factory=list)
    written: int = 0
    interrupted: bool = False
    choices: dict[tuple[int, int], tuple[Choice, ...]] = field(default_factory=dict)
    """On file, by round and number."""

    # Target
    def describe(self) -> TargetInfo:
        return TargetInfo("sim", "sim-1", True, "trn2")

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        for step in (Step.UPLOAD, Step.VERIFY, Step.BENCHMARK):
            progress(step, "scripted")
        if request.final:
            self.finals.append(request)
            return self.final.get(request.candidate.id) or self.measured_of(request.candidate.id)
        self.requests.append(request)
        return self.results[min(len(self.requests), len(self.results)) - 1]

    @property
    def width(self) -> int:
        return 1

    def measured_of(self, candidate_id: str) -> Evaluation:
        index = next(i for i, r in enumerate(self.requests) if r.candidate.id == candidate_id)
        return self.results[min(index, len(self.results) - 1)]

    def close(self) -> None: ...

    # the four roles
    def plan(self, context: RoundContext) -> Plan:
        self.contexts.append(context)
        if self.plans:
            raise self.plans.pop(0)
        parent = self.parents.get(context.round)
        return Plan(
            f"p{context.round}", "hoist x", "hoist", Bottleneck.MEMORY_BOUND, 5.0, "because", "", parent, self.by_tool
        )

    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        self.written_for.append(context)
        self.feedbacks.append(feedback)
        self.written += 1
        if self.replies:
            reply = self.replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return reply
        return f"kernel = {self.written}"

    def summarize(self, context: RoundContext, plan: Plan, candidate: Candidate, result: Measured,
                  decision: Decision) -> Experience:  # fmt: skip
        return Experience(plan.title, decision.reason, plan.technique, speedup=context.parent_result.latency_us
                          / result.latency_us, kernel=candidate.id)  # fmt: skip

    def reflect(self, context: RoundContext, plan: Plan, candidate: Candidate | None, result: Evaluation | None,
                decision: Decision) -> Reflexion:  # fmt: skip
        self.reviewed.append(context)
        outcome = Outcome.IMPROVED if decision.improved else Outcome.NO_IMPROVEMENT
        return Reflexion(context.round, plan.title, plan.technique, 5.0, None, outcome, Diagnosis.RIGHT, "learned",
                         avoid=(f"avoid {context.round}",))  # fmt: skip

    # Journal, Budget, RunObserver
    def attempt(self, attempt: Attempt) -> None:
        self.filed.append(attempt)

    def best(self, candidate: Candidate, result: Measured) -> None:
        self.bests.append(candidate.id)

    def counterpart(self, kernel: tuple[Candidate, Measured] | None) -> None:
        self.counterparts.append(kernel[0].id if kernel is not None else None)

    def remember(self, experience: Experience, occasion: str, shown: tuple[Experience, ...]) -> None:
        self.memory.add(experience, shown)

    def shown(self, round: int, choose: Callable[[], tuple[Experience, ...]]) -> tuple[Experience, ...]:
        return choose()

    def chosen(
        self, round: int, number: int, choose: Callable[[tuple[Choice, ...]], tuple[Choice, ...]]
    ) -> tuple[Choice, ...]:
        return self.choices.setdefault((round, number), choose(self.choices.get((round, number), ())))

    def recall(self) -> OptimizationMemory:
        return self.memory

    def exhausted(self) -> str | None:
        spent = self.exhausted_after is not None and self.written >= self.exhausted_after
        return "all tokens are used" if spent else None

    def seconds_left(self) -> float:
        return self.seconds if len(self.requests) > 1 else math.inf

    def reserve(self, seconds: float) -> None:
        self.reserved.append(seconds)

    def tell(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, StepBegan) and event.round != BASELINE_ROUND and event.step is self.interrupt_at:
            self.interrupted = True

    def run(self, past: Past | None = None, **settings: object) -> RunResult:
        proposer = Proposer("script", self, self, self, self)
        wanted = replace(LoopSettings(rounds=1), **settings)
        return Loop(
            TASK, "kernel = 0", self, proposer, self, self, self, wanted, lambda: self.interrupted, past, language=NKI
        ).run()

    def steps(self, round: int) -> list[Step]:
        return [e.step for e in self.events if isinstance(e, StepBegan) and e.round == round]


class WideScript(Script):
    """By lane: what its candidates come to, one after the other, in every round; `must_meet` of them are on at once."""

    def __init__(self, lanes: dict[str, Any], ideas: Sequence[str | Exception] = ()) -> None:
        super().__init__([measured(100)])
        self.lanes = {lane: of if isinstance(of, list) else [of] for lane, of in lanes.items()}
        self.ideas = list(ideas) or [f"idea {number}" for number in range(1, 99)]
        self.interrupt_after: int | None = None
        self.most_at_once = self.at_once = 0
        self.must_meet = 1
        self.gate = threading.Condition()

    def plan(self, context: RoundContext) -> Plan:
        self.contexts.append(context)
        idea = self.ideas.pop(0)
        if isinstance(idea, Exception):
            raise idea
        return Plan(f"p{context.round}", idea, idea, Bottleneck.MEMORY_BOUND, 5.0, "because")

    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        return f"kernel = {plan.title!r}, {context.round}, {len(feedback)}"

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        found = re.fullmatch(r"r\d{3}([a-z])t(\d)", request.candidate.id)
        if found is None or request.final:
            self.requests += [] if request.final else [request]
            return measured(100 if found is None else 50)
        with self.gate:
            self.requests.append(request)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.gate.notify_all()
            assert self.gate.wait_for(lambda: self.most_at_once >= self.must_meet, PATIENCE_S), "they did not meet"
            self.interrupted = self.interrupted or len(self.requests) == self.interrupt_after
        self.at_once -= 1
        of = self.lanes[found[1]]
        result = of[min(int(found[2]), len(of)) - 1]
        if isinstance(result, Exception):
            raise result
        return result


def test_a_winning_round_goes_through_the_nine_steps_in_order() -> None:
    script = Script([measured(100), measured(80)])
    outcome = script.run()
    assert script.steps(1) == list(ROUND_STEPS)
    assert outcome.best.id == "r001t1" and outcome.best_result.latency_us == 80
    assert script.bests[0] == "input" and "r001t1" in script.bests
    (experience,) = script.memory.experiences
    assert experience.speedup == pytest.approx(1.25) and experience.kernel == "r001t1"
    assert experience.evidence == (f"{outcome.best.content_hash} {TASK.full.describe()}",)
    assert [e.attempt.outcome for e in script.events if isinstance(e, RoundEnded)] == ["improved"]
    assert sum(isinstance(e, PlanMade) for e in script.events) == 1


def test_what_a_right_kernel_took_to_judge_is_kept_for_the_last_check() -> None:
    script = Script([measured(100), WRONG, measured(80)])
    script.run()
    assert len(script.reserved) == 3, "the input kernel, the second try, the last check; nothing for a wrong one"
    assert all(0 <= seconds < 60 for seconds in script.reserved)


def test_the_next_round_knows_the_reflexion_the_history_and_the_new_parent() -> None:
    script = Script([measured(100), measured(80), measured(79.9)])
    script.run(rounds=2)
    context = script.contexts[1]
    assert context.parent.id == "r001t1" and context.baseline_us == 100
    assert [a.outcome for a in context.history] == ["improved"] and context.avoid == ("avoid 1",)
    assert context.experiences[0].title == "hoist x"


@pytest.mark.parametrize(
    ("latency_us", "outcome"),
    [(149.0, "no_improvement"), (151.0, "reverted"), (99.5, "no_improvement"), (98.0, "improved")],
)
def test_the_guard_decides(latency_us: float, outcome: str) -> None:
    script = Script([measured(100), measured(latency_us)])
    script.run()
    assert script.filed[-1].outcome == outcome


@pytest.mark.parametrize("fault", [BROKEN, WRONG], ids=["broken", "wrong"])
def test_a_faulty_kernel_is_repaired_with_the_message_fed_back(fault: Evaluation) -> None:
    script = Script([measured(100), fault, fault, measured(70)])
    outcome = script.run()
    assert outcome.best.id == "r001t3"
    assert [len(f) for f in script.feedbacks] == [0, 1, 2]
    assert script.feedbacks[1][0].source == "kernel = 1"
    assert [t.outcome for t in script.filed] == [fault.kind, fault.kind, "improved"]
    assert [each.message for each in script.reviewed[-1].failed] == [explain(fault)] * 2
    ended_wrong = Script([measured(100), fault])
    ended_wrong.run()
    assert len(ended_wrong.reviewed[-1].failed) == len(ended_wrong.filed) - 1, "the last one is what is reviewed"


def test_repairs_end_after_three_or_where_nothing_can_be_repaired() -> None:
    script = Script([measured(100), BROKEN])
    script.run()
    assert script.written == 4 and len(script.filed) == 4
    assert script.filed[-1].reflexion is not None and script.filed[-1].decision is not None
    assert Step.SUMMARIZE not in script.steps(1) and Step.REFLECT in script.steps(1)
    script = Script([measured(100), Implausible("below the bound", 0.1)])
    outcome = script.run()
    assert outcome.best.id == "input" and script.written == 1
    script = Script([measured(100), BROKEN], replies=["kernel = 1", CannotRepair("nothing better")])
    script.run()
    assert [t.outcome for t in script.filed] == ["compile_failed"]


def test_a_reply_without_a_kernel_is_asked_again_with_what_was_missing() -> None:
    script = Script([measured(100), measured(70)], replies=[UnusableReply("no code block", "Sure!"), "kernel = 9"])
    outcome = script.run()
    assert script.feedbacks[1] == (Feedback("Sure!", "no code block"),)
    assert outcome.best.source == "kernel = 9"


def test_a_program_that_was_tried_before_is_told_as_such_and_costs_a_repair() -> None:
    first = replace(measured(90.0), programs=("small-1", "full-1"))
    wrong = replace(WRONG, programs=("small-2",))
    again = Duplicate("r001t1", "what the target was told")
    script = Script([replace(measured(100.0), programs=("small-0", "full-0")), first, wrong, again, measured(80.0)])
    result = script.run(rounds=2)
    assert [entry.outcome for entry in result.attempts] == ["improved", "incorrect", "duplicate", "improved"]
    assert script.feedbacks[-1][-1].message == result.attempts[2].summary
    assert "the same program as r001t1, which came to: what the target was told" in result.attempts[2].summary
    known = [[each.candidate_id for each in request.known] for request in script.requests]
    assert known == [[], ["input"], ["input", "r001t1"], *[["input", "r001t1", "r002t1"]] * 2]
    told = {each.candidate_id: each for each in script.requests[-1].known}
    assert told["r001t1"].programs == ("small-1", "full-1") and told["r002t1"].programs == ("small-2",)
    assert "90.0 µs" in told["r001t1"].came_to and "round 1, improved" in told["r001t1"].came_to
    assert "outputs differ" in told["r002t1"].came_to and "round 2, incorrect" in told["r002t1"].came_to
    assert [request.known for request in script.finals] == [()]


def test_which_earlier_kernels_are_known_to_be_right() -> None:
    best = replace(measured(50.0), programs=("s1", "f1"))
    unverified = replace(measured(60.0), verified_full=False, programs=("s2", "f2"))
    script = Script([measured(100.0), best, unverified, measured(70.0)])
    script.run(rounds=3)
    assert [each.candidate_id for each in script.requests[-1].known] == ["r001t1", "r002t1"]
    without_the_best = [each.candidate_id for each in known_programs(measured(100.0), script.filed, below_us=100.0)]
    assert without_the_best == ["r001t1"]
    proofs = tuple(Proof(each, Finding.HELD, "") for each in (Property.COVERAGE, Property.EQUIVALENCE))
    proved = replace(measured(50.0), verified_full=False, proofs=proofs, programs=("s1", "f1"))
    script = Script([measured(100.0), proved, measured(70.0)])
    script.run(rounds=2)
    assert [each.candidate_id for each in script.requests[-1].known] == ["r001t1"]


def test_every_evaluation_has_fresh_seeds_and_a_slow_one_is_not_verified_in_full() -> None:
    script = Script([measured(100), measured(80), measured(79)])
    script.run(rounds=2)
    assert [r.verify_full_below_us for r in script.requests] == [None, 100, 80]
    script = Script([measured(100), measured(80), measured(60)])
    script.run(rounds=2, secret_seeds=2)
    seeds = [r.extra_seeds for r in script.requests]
    assert all(len(s) == 2 for s in seeds) and len(set(seeds)) == 3


@pytest.mark.parametrize("cores", [1, 2])
def test_every_kernel_is_for_as_many_cores_as_the_input(cores: int) -> None:
    """Given an input on so many cores, then nothing is judged that runs on another number of them."""
    script = Script([replace(measured(100), cores=cores), measured(80)])
    script.run()
    assert [request.cores for request in (*script.requests, *script.finals)] == [None, cores, cores]


def test_it_stops_for_want_of_gains_of_room_or_of_ideas() -> None:
    outcome = (script := Script([measured(100)])).run(rounds=50, patience=5)
    assert len({t.round for t in script.filed}) == 5
    assert outcome.ending is Ending.FINISHED and "5 rounds without improvement" in outcome.reason
    at_bound = Script([measured(100), measured(10.05)])
    assert at_bound.run(rounds=50, bound_percent=99.0).reason == "the best kernel is at 99.5 % of the bound"
    beyond = Script([measured(100), measured(9.0)]).run(rounds=50, bound_percent=99.0)
    assert beyond.reason.endswith("111.1 % of the bound, which counts the reference's operations as they stand")
    near = Script([measured(100), measured(10.5)])
    assert "bound" not in near.run(rounds=50, bound_percent=99.0).reason
    outcome = Script([measured(100)], plans=[NothingToPlan("every site was tried")]).run(rounds=50)
    assert (outcome.ending, outcome.reason) == (Ending.FINISHED, "every site was tried")


def test_a_planner_that_had_nothing_left_is_not_asked_again_unless_its_winner_turns_out_wrong() -> None:
    script = Script([measured(100), measured(60)], plans=[])
    ended = script.run(rounds=1)
    assert not ended.nothing_left
    again = Script([measured(100)], final={"r001t1": measured(60)})
    result = again.run(Past(measured(100), tuple(script.filed), "no idea left"), rounds=3)
    assert (result.ending, result.reason, result.nothing_left) == (Ending.FINISHED, "no idea left", True)
    assert again.contexts == [] and result.best.id == "r001t1"
    wrong = Script([measured(90)], final={"r001t1": WRONG})
    wrong.run(Past(measured(100), tuple(script.filed), "no idea left"), rounds=3)
    assert wrong.contexts, "what it had left was planned from a kernel that is gone"
    assert Script([measured(100)], plans=[NothingToPlan("none")]).run(rounds=1).nothing_left


def test_a_planner_that_found_nothing_in_the_time_that_was_left_ends_with_the_budget(monkeypatch) -> None:
    script = Script([measured(100)], plans=[NothingToPlan("none in time")])
    told = script.tell

    def tell(event: Event) -> None:
        told(event)
        if isinstance(event, StepBegan) and event.step is Step.PLAN:
            script.exhausted_after = 0

    monkeypatch.setattr(script, "tell", tell)
    outcome = script.run(rounds=50)
    assert (outcome.ending, outcome.reason) == (Ending.BUDGET, "all tokens are used")


def test_a_planner_is_shown_every_right_kernel_and_may_start_from_any() -> None:
    script = Script([measured(100), measured(80), WRONG, measured(90), measured(70)], parents={3: "input", 4: "r003t1"})
    outcome = script.run(rounds=4, max_repairs=0)
    assert [[c.id for c, _ in context.measured] for context in script.contexts] == [
        ["input"], ["input", "r001t1"], ["input", "r001t1"], ["input", "r001t1", "r003t1"]
    ]  # fmt: skip
    assert [t.parent_id for t in script.filed] == ["input", "r001t1", "input", "r003t1"]
    assert outcome.best.parent_id == "r003t1"
    written = script.written_for
    assert [(c.parent.id, c.parent_result.latency_us) for c in written][2:] == [("input", 100), ("r003t1", 90)]
    reviewed = script.reviewed
    assert [c.parent.id for c in reviewed] == ["input", "r001t1", "input", "r003t1"]


def test_a_budget_stops_it_between_steps_or_before_a_call() -> None:
    script = Script([measured(100), measured(80), measured(60)], exhausted_after=2)
    outcome = script.run(rounds=50)
    assert outcome.ending is Ending.BUDGET and outcome.best_result.latency_us in (80, 60)
    script = Script([measured(100)], plans=[BudgetExhausted("the next call could cost $2")])
    assert script.run(rounds=5).ending is Ending.BUDGET


@pytest.mark.parametrize("step", [Step.PLAN, Step.EXECUTE, Step.DECIDE, Step.REFLECT])
def test_an_interrupt_finishes_the_step_and_loses_nothing(step: Step) -> None:
    script = Script([measured(100), measured(80)], interrupt_at=step)
    outcome = script.run(rounds=50)
    assert len({t.round for t in script.filed}) <= 1
    if step in (Step.DECIDE, Step.REFLECT):
        assert outcome.best.id == "r001t1" and script.filed[0].outcome == "improved"
    assert outcome.ending is (Ending.INTERRUPTED)


@pytest.mark.parametrize("error", [ModelUnusable("m: a web page"), ModelRejectedCredentials("m: 401: set KEY")])
@pytest.mark.parametrize("role", ["plan", "execute", "summarize", "reflect"])
def test_a_model_that_never_will_answer_ends_the_run_at_once_in_its_own_words(role: str, error: ModelError) -> None:
    asked: list[str] = []

    def refuse(*_: object) -> NoReturn:
        asked.append(role)
        raise error

    script = Script([measured(100), measured(50)])
    setattr(script, role, refuse)
    result = script.run(rounds=3)
    assert (result.ending, result.reason) == (Ending.FAILED, str(error))
    assert len(asked) == 1, "nobody is asked again"
    if role in ("summarize", "reflect"):
        assert result.best.id == "r001t1" and script.bests[-1] == "r001t1", "what was measured is kept"


@pytest.mark.parametrize(("settings", "rounds"), [({}, 2), ({"model_failures": 1}, 1), ({"model_failures": 3}, 3)])
def test_a_model_that_fails_so_often_in_a_row_ends_the_run(settings, rounds) -> None:
    script = Script([measured(100)], plans=[ModelUnreachable("no route") for _ in range(9)])
    assert script.run(rounds=50, **settings).ending is Ending.FAILED and len(script.filed) == rounds


@pytest.mark.parametrize("fault", [BROKEN, WRONG])
def test_a_baseline_that_is_wrong_is_refused(fault: Evaluation) -> None:
    with pytest.raises(BaselineRejected) as raised:
        Script([fault]).run()
    assert raised.value.evaluation == fault


def test_a_winner_that_fails_its_last_check_gives_way_to_the_next_best_that_passes() -> None:
    script = Script([measured(100), measured(80), measured(60)], final={"r002t1": WRONG})
    outcome = script.run(rounds=2)
    assert outcome.best.id == "r001t1" and script.bests[-1] == "r001t1"
    results = [measured(us) for us in (100, 60, 62, 70, 90)]
    script = Script(results, final={"r001t1": WRONG, "r002t1": WRONG})
    outcome = script.run(rounds=4)
    assert [request.candidate.id for request in script.finals] == ["r001t1", "r002t1", "r003t1"]
    assert outcome.best.id == "r003t1" and outcome.best_result.latency_us == 70
    script = Script([measured(100), measured(80), measured(60)], final={"r002t1": beside(60, 60.3)})
    outcome = script.run(rounds=2)
    assert outcome.best.id == "r001t1" and "beside the input kernel" in script.filed[-1].summary


def test_a_rejection_is_filed_from_the_numbers_without_asking_the_summarizer() -> None:
    script = Script([measured(100), measured(120)])
    script.summarize = None  # type: ignore[method-assign,assignment]  # calling it would fail the round
    script.run()
    (experience,) = script.memory.experiences
    assert not experience.is_win and experience.speedup == pytest.approx(100 / 120)
    assert "120" in experience.summary and experience.technique == "hoist"


@pytest.mark.parametrize(
    ("settings", "banned", "told"),
    [
        ({}, [[], [], [], ["hoist"]], [[], [], [], [3]]),
        ({"bans": BanRule(after=1, rounds=2), "recurring_after": 2}, [[], *[["hoist"]] * 3], [[], [], [2], [3]]),
    ],
)
def test_an_idea_that_failed_is_banned_in_the_next_round_and_an_error_told(settings, banned, told) -> None:
    script = Script([measured(100), BROKEN])
    script.run(rounds=4, max_repairs=0, **settings)
    assert [[ban.technique for ban in context.banned] for context in script.contexts] == banned
    assert [[error.times for error in context.recurring] for context in script.contexts] == told


def outcomes(script: Script) -> list[tuple[str | None, str]]:
    """(the kernel a round started from, what came of it)"""
    return [(t.parent_id, t.outcome) for t in script.filed]


EXPLORING = DivergenceGuard(max_exploration=2)


@pytest.mark.parametrize(
    ("guard", "latencies_us", "expected"),
    [
        (DivergenceGuard(), [149, 110], [("input", "no_improvement"), ("input", "no_improvement")]),
        (EXPLORING, [151, 110], [("input", "reverted"), ("input", "kept")]),
        (EXPLORING, [149, 90], [("input", "kept"), ("r001t1", "improved")]),
        (EXPLORING, [110, 120, 90], [("input", "kept"), ("r001t1", "reverted"), ("input", "improved")]),
        (EXPLORING, [99.5, 98.5], [("input", "kept"), ("r001t1", "improved")]),
        (EXPLORING, [110, None, 90], [("input", "kept"), ("r001t1", "compile_failed"), ("input", "improved")]),
        (EXPLORING, [80, 85, 119, 121], [("input", "improved"), ("r001t1", "kept"), ("r002t1", "reverted"),
                                       ("r001t1", "reverted")]),
        (DivergenceGuard(max_exploration=3), [110, 120, 130, 90], [("input", "kept"), ("r001t1", "kept"),
                                                               ("r002t1", "reverted"), ("input", "improved")]),
    ],
    ids=["none allowed", "151 % goes back, 110 % goes on", "149 % goes on, and pays", "the second step must pay",
         "a tie within the noise is a step", "a failure is a step", "counted from the newest best", "three steps"],
)  # fmt: skip
def test_exploration_leads_over_slower_kernels_and_ends(guard, latencies_us, expected) -> None:
    results = [measured(100), *(BROKEN if us is None else measured(us) for us in latencies_us)]
    script = Script(results)
    script.run(rounds=len(latencies_us), guard=guard, max_repairs=0)
    assert outcomes(script) == expected


def test_an_exploration_step_that_pays_is_a_win_to_memory_though_it_is_no_best() -> None:
    script = Script([measured(100), measured(140), measured(110)])
    script.run(rounds=2, guard=DivergenceGuard(max_exploration=3))
    rejection, win = script.memory.experiences
    assert not rejection.is_win and rejection.speedup == pytest.approx(100 / 140)
    assert win.is_win and win.speedup == pytest.approx(140 / 110)


def test_an_interrupted_exploration_goes_on_from_the_same_kernel_with_the_same_count() -> None:
    latencies = [measured(us) for us in (100, 110, 120, 105, 130, 104)]
    guard = DivergenceGuard(max_exploration=3)
    whole = Script(latencies)
    whole.run(rounds=5, guard=guard, patience=9)
    for cut in range(1, 5):
        first = Script(latencies)
        first.run(rounds=cut, guard=guard, patience=9)
        second = Script(latencies[1 + cut :])
        second.run(Past(measured(100), tuple(first.filed)), rounds=5, guard=guard, patience=9)
        assert [t.parent_id for t in first.filed + second.filed] == [t.parent_id for t in whole.filed]


def beside(latency_us: float, incumbent_us: float, noise: float = 0.0, source: str = "kernel = 0") -> Measured:
    return replace(measured(latency_us), incumbent=IncumbentTiming(source_hash(source), incumbent_us, noise))


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (beside(104, 110), "improved"),
        (beside(95, 90), "no_improvement"),
        (beside(95, 98, noise=0.05), "no_improvement"),
        (beside(95, 98, noise=0.02), "improved"),
        (beside(140, 80), "reverted"),
        (beside(95, 50, source="another = 1"), "improved"),
    ],
    ids=["the device got slower", "or faster", "within their noise", "beyond it", "far off", "not beside the best"],
)  # fmt: skip
def test_what_the_best_took_beside_the_candidate_decides(result: Measured, outcome: str) -> None:
    script = Script([measured(100), result])
    script.run()
    assert script.filed[0].outcome == outcome


def test_every_candidate_is_timed_beside_the_best_and_gains_over_its_parent_there() -> None:
    script = Script([measured(100), measured(80), measured(90), measured(60)])
    script.run(rounds=3)
    assert [r.incumbent.id if r.incumbent else None for r in script.requests] == [None, "input", "r001t1", "r001t1"]
    assert [(r.candidate.id, r.incumbent.id if r.incumbent else None) for r in script.finals] == [("r003t1", "input")]
    script = Script([measured(100), beside(60, 120)])
    script.run()
    (experience,) = script.memory.experiences
    assert experience.speedup == pytest.approx(2.0)


def test_a_winner_that_failed_stays_out_when_the_run_goes_on() -> None:
    first = Script([measured(100), measured(80), measured(60)], final={"r002t1": WRONG}, by_tool=True)
    first.run(rounds=2)
    assert first.filed[-1].last_check == WRONG and first.filed[-1].outcome == "incorrect"
    kept = {(t.round, t.number): t for t in first.filed}  # of a try that is written again the last line counts
    second = Script([measured(75)], final={"r001t1": measured(80)})  # of a real target the evaluation is stored
    outcome = second.run(Past(measured(100), tuple(kept.values())), rounds=3)
    (context,) = second.contexts
    assert context.parent.id == context.best.id == "r001t1" and "r002t1" not in [c.id for c, _ in context.measured]
    assert [a.outcome for a in context.history] == ["improved", "incorrect"] and outcome.best.id == "r003t1"
    assert [request.candidate.id for request in second.finals] == ["r001t1", "r003t1"]


def test_a_run_that_ended_at_the_bound_goes_on_when_what_was_there_turns_out_wrong() -> None:
    """BOUNDS are 10 us: 10.05 is at 99.5 % of it."""
    script = Script([measured(us) for us in (100, 80, 10.05, 60, 90)], final={"r002t1": WRONG}, by_tool=True)
    outcome = script.run(rounds=4, bound_percent=99.0)
    assert outcome.best.id == "r003t1" and outcome.reason == "all 4 rounds are done"
    third = script.contexts[2]
    assert third.round == 3 and third.parent.id == third.best.id == "r001t1" and third.best_result.latency_us == 80
    assert [attempt.outcome for attempt in third.history] == ["improved", "incorrect"]
    assert [request.candidate.id for request in script.finals] == ["r002t1", "r001t1", "r003t1"]
    said = [event.message for event in script.events if isinstance(event, Notice) and "going on" in event.message]
    assert said == ["the best kernel is at 99.5 % of the bound, but r002t1 is not right: going on with round 3"]


def test_what_passed_its_last_check_is_not_checked_again_where_nothing_better_follows() -> None:
    results = [measured(us) for us in (100, 80, 10.05, 10.01, 90)]
    script = Script(results, final={"r002t1": WRONG, "r003t1": WRONG, "r001t1": measured(81)}, by_tool=True)
    outcome = script.run(rounds=4, bound_percent=99.0)
    assert [request.candidate.id for request in script.finals] == ["r002t1", "r001t1", "r003t1"]
    assert outcome.best.id == "r001t1" and outcome.best_result.latency_us == 81, "as the last check measured it"
    assert [context.round for context in script.contexts] == [1, 2, 3, 4]


def test_a_run_that_ended_for_want_of_ideas_asks_again_when_the_best_turns_out_wrong() -> None:
    class Planner(Script):
        def plan(self, context: RoundContext) -> Plan:
            plan = super().plan(context)
            if context.best.id == "r001t1":
                raise NothingToPlan("no idea left")
            return plan

    script = Planner([measured(100), measured(60), measured(70)], final={"r001t1": WRONG}, by_tool=True)
    outcome = script.run(rounds=5)
    assert outcome.best.id == "r002t1" and [context.round for context in script.contexts][:3] == [1, 2, 2]


def test_what_the_last_check_took_away_is_written_once_more_by_who_is_told_why() -> None:
    script = Script([measured(us) for us in (100, 80, 10.05, 10.04, 90)], final={"r002t1": WRONG})
    outcome = script.run(rounds=4, bound_percent=99.0)
    assert outcome.best.id == "r003t1" and outcome.reason == "the best kernel is at 99.6 % of the bound"
    assert [context.round for context in script.contexts] == [1, 2], "nobody is asked for a plan in round 3"
    (told,) = script.feedbacks[2]
    assert told.source == "kernel = 2" and told.message.startswith("failed its last check: ")
    third = outcome.attempts[2]
    assert third.plan is not None and third.plan.title == "hoist x (mended)" and third.parent_id == "r001t1"
    assert [event.plan.title for event in script.events if isinstance(event, PlanMade)][-1] == "hoist x (mended)"


def test_killed_in_the_middle_of_a_last_check_it_is_gone_on_with() -> None:
    """Of two that fail it the second was not checked yet."""
    results = [measured(us) for us in (100, 80, 10.05)]
    first = Script(results, final={"r002t1": WRONG, "r001t1": WRONG})
    first.run(rounds=2, bound_percent=99.0)
    cut = first.filed[: [t.id for t in first.filed].index("r002t1") + 2]  # the second line of r002t1 is the last
    kept = {(t.round, t.number): t for t in cut}
    assert [t.outcome for t in kept.values()] == ["improved", "incorrect"]
    second = Script([measured(60)], final={"r001t1": WRONG})
    second.run(Past(measured(100), tuple(kept.values())), rounds=3, bound_percent=99.0)
    assert [request.candidate.id for request in second.finals] == ["r001t1", "r003t1"]
    assert [attempt.outcome for attempt in second.filed[:1]] == ["incorrect"]
    assert second.feedbacks[0][0].source == "kernel = 2" and second.written_for[0].parent.id == "input"


@pytest.mark.parametrize("step", [Step.SUMMARIZE, Step.REFLECT])
def test_a_winner_of_a_round_that_was_stopped_before_it_was_reviewed_may_fail_its_last_check(step: Step) -> None:
    script = Script([measured(100), measured(60)], final={"r001t1": WRONG}, interrupt_at=step)
    outcome = script.run(rounds=3)
    assert outcome.best.id == "input" and outcome.ending is Ending.INTERRUPTED


def test_it_is_not_said_to_go_on_where_the_next_best_is_at_the_bound_too() -> None:
    class AtTheBound(WideScript):
        def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
            if request.final:
                self.finals.append(request)
                return WRONG if request.candidate.id == "r001bt1" else measured(10.2)
            return super().evaluate(request, progress)

    script = AtTheBound({"a": measured(10.2), "b": measured(10.05)})
    outcome = script.run(rounds=9, width=2, bound_percent=97.5)
    assert outcome.best.id == "r001at1" and outcome.reason == "the best kernel is at 98.0 % of the bound"
    assert [request.candidate.id for request in script.finals] == ["r001bt1", "r001at1"]
    assert not any("going on" in event.message for event in script.events if isinstance(event, Notice))


def test_a_kernel_that_passes_by_luck_has_one_draw_for_each_program_that_it_is() -> None:
    """A search that writes the dropped one again, with another comment, would have its last check drawn anew."""
    lucky = replace(measured(10.05), programs=("p",), verified_full=False)
    other = replace(lucky, programs=("q",))
    script = Script([measured(100), lucky, other], final={"r001t1": WRONG})
    script.run(rounds=2, bound_percent=99.0)
    known = {each.candidate_id: each for each in script.requests[2].known}
    assert known["r001t1"].programs == ("p",) and "failed its last check" in known["r001t1"].came_to
    first, second = (set(request.extra_seeds) for request in script.finals)
    assert len(first) == len(second) == 2 and not first & second, "what the fault told of seeds helps nobody"


def test_what_cannot_be_mended_is_tried_so_each_time_and_patience_ends_it() -> None:
    finals = {f"r{number:03d}t1": WRONG for number in range(1, 9)}
    script = Script([measured(us) for us in (100, 10.05)], final=finals)
    outcome = script.run(rounds=50, bound_percent=99.0, patience=3)
    assert outcome.best.id == "input" and outcome.reason == "3 rounds without improvement"
    assert [a.plan.title for a in outcome.attempts if a.plan] == ["hoist x", "hoist x (mended)", "hoist x (mended)"]


def test_of_a_run_that_ended_before_it_is_mended_when_the_run_is_resumed() -> None:
    first = Script([measured(100), measured(60)], final={"r001t1": WRONG})
    first.run(rounds=1)
    kept = {(t.round, t.number): replace(t, dropped_after=0) for t in first.filed}  # as earlier versions filed it
    second = Script([measured(61)])
    outcome = second.run(Past(measured(100), tuple(kept.values())), rounds=2)
    assert outcome.best.id == "r002t1" and not second.contexts
    assert [told.source for told in second.feedbacks[0]] == ["kernel = 1"]


def test_where_the_kernel_it_came_from_is_gone_too_it_is_mended_from_the_best() -> None:
    results = [measured(us) for us in (100, 80, 10.05, 60)]
    script = Script(results, final={"r002t1": WRONG, "r001t1": WRONG})
    outcome = script.run(rounds=3, bound_percent=99.0)
    assert outcome.attempts[2].parent_id == "input" and script.feedbacks[2][0].source == "kernel = 2"


@pytest.mark.parametrize("why", ["patience", "budget", "rounds"])
def test_nothing_goes_on_that_ended_for_another_reason(why: str) -> None:
    results = [measured(100), measured(60), measured(100)]
    script = Script(results, final={"r001t1": WRONG}, exhausted_after=2 if why == "budget" else None)
    outcome = script.run(rounds=2 if why == "rounds" else 9, patience=1 if why == "patience" else 9)
    assert outcome.best.id == "input" and len(script.finals) == 1
    assert not any("going on" in event.message for event in script.events if isinstance(event, Notice))


def test_a_run_that_went_on_after_a_drop_is_restored_as_it_was() -> None:
    """Killed in round 4; round 3 started an exploration from the kernel before the one that was dropped."""
    exploring = DivergenceGuard(max_exploration=2)
    results = [measured(us) for us in (100, 80, 10.05, 81)]
    first = Script(results, final={"r002t1": WRONG})
    first.run(rounds=3, bound_percent=99.0, guard=exploring)
    kept = {(t.round, t.number): t for t in first.filed}
    assert kept[2, 1].dropped_after == 2
    went_on = Script(results + [measured(79)], final={"r002t1": WRONG, "r001t1": measured(80.5)})
    resumed = Script([measured(79)], final={"r001t1": measured(80.5)})
    went_on.run(rounds=4, bound_percent=99.0, guard=exploring)
    resumed.run(Past(measured(100), tuple(kept.values())), rounds=4, bound_percent=99.0, guard=exploring)
    (again,), expected = resumed.contexts, went_on.contexts[-1]
    assert (again.parent.id, again.best.id, again.round) == (expected.parent.id, expected.best.id, 4)
    assert again.parent.id == "r003t1", "the exploration goes on"
    assert again.best_result.latency_us == expected.best_result.latency_us == 80.5, "as the last check measured it"
    assert [attempt.id for attempt in again.history] == [attempt.id for attempt in expected.history]


def test_memory_takes_back_what_it_learned_from_a_winner_that_failed() -> None:
    script = Script([measured(100), measured(80)], final={"r001t1": WRONG})
    script.summarize = None  # type: ignore[method-assign,assignment]  # the loop's own numbers will do
    script.memory.add(
        Experience("hoist x", "won", "hoist", "memory-bound", speedup=1.25, kernel="copy", machine="sim")
    )  # fmt: skip
    script.summarize = lambda *_: script.memory.experiences[0]  # type: ignore[method-assign,assignment]
    script.run()
    win, refuted = script.memory.experiences
    assert win.refuted == 1 and refuted.rejected and "failed its last check" in refuted.summary


def test_what_the_input_kernel_fails_too_drops_no_winner_and_is_said() -> None:
    said = "wrong: the output has a NaN (seed 84); the input kernel too"
    right_elsewhere = replace(beside(60, 100), shared_faults=(said,))
    script = Script([measured(100), measured(60)], final={"r001t1": right_elsewhere})
    outcome = script.run(rounds=1)
    assert outcome.best.id == "r001t1" and outcome.best_result.shared_faults == (said,)
    assert [event.message for event in script.events if isinstance(event, Notice) and event.level == "warning"] == [
        f"the input kernel itself is wrong, and the winner may be as far off there: {said}"
    ]
    assert not any(experience.rejected for experience in script.memory.experiences)


def test_a_wide_round_plans_in_turn_evaluates_at_once_and_decides_in_order() -> None:
    script = WideScript({"a": measured(80), "b": measured(60), "c": measured(70)})
    script.must_meet = 3
    outcome = script.run(rounds=1, width=3)
    assert [[plan.title for plan in context.planned] for context in script.contexts] == [
        [], ["idea 1"], ["idea 1", "idea 2"]
    ]  # fmt: skip
    assert script.most_at_once == 3
    assert [(t.lane, t.lanes, t.plan.id, t.candidate.id, t.outcome) for t in script.filed] == [
        ("a", 3, "p1a", "r001at1", "improved"),
        ("b", 3, "p1b", "r001bt1", "improved"),
        ("c", 3, "p1c", "r001ct1", "no_improvement"),
    ]
    assert outcome.best.id == "r001bt1" and script.bests[-2:] == ["r001bt1", "r001bt1"]
    assert [request.verify_full_below_us for request in script.requests[1:]] == [100, 100, 100]


def test_after_a_wide_round_the_next_starts_from_the_best_or_the_fastest_that_was_kept() -> None:
    script = WideScript({"a": measured(120), "b": measured(110), "c": measured(200)})
    script.run(rounds=2, width=3, guard=EXPLORING)
    assert [a.outcome for a in script.contexts[3].history] == ["kept", "kept", "reverted"]
    assert script.contexts[3].parent.id == "r001bt1" and script.contexts[3].best.id == "input"


def test_each_lane_repairs_its_own_kernel_and_fails_by_itself() -> None:
    script = WideScript({"a": [BROKEN, measured(90)], "b": measured(95)})
    script.run(rounds=2, width=2)
    history = script.contexts[2].history
    assert [(a.id, a.outcome) for a in history] == [
        ("r001at1", "compile_failed"), ("r001at2", "improved"), ("r001bt1", "no_improvement")
    ]  # fmt: skip
    script = WideScript({"a": measured(90)}, ideas=["same", "same"])
    script.run(rounds=1, width=2)
    assert [(t.candidate.id, t.lanes) for t in script.filed] == [("r001at1", 1)]
    script = WideScript({"b": measured(90)}, ideas=[UnusablePlan("gibberish"), "idea"])
    outcome = script.run(rounds=1, width=2)
    assert [(t.lane, t.outcome) for t in script.filed] == [("a", "no_plan"), ("b", "improved")]
    assert outcome.best.id == "r001bt1"


def test_a_round_counts_as_the_models_failure_only_when_every_lane_does() -> None:
    failing = WideScript({}, ideas=[ModelUnreachable("no route")] * 4)
    assert failing.run(rounds=9, width=2).ending is Ending.FAILED and len(failing.filed) == 2
    mixed = WideScript({"a": measured(90)}, ideas=["one", ModelUnreachable("no route")] * 3)
    assert mixed.run(rounds=3, width=2).ending is Ending.FINISHED


@pytest.mark.parametrize(
    ("error", "ending"),
    [(BudgetExhausted("the next call could cost $2"), Ending.BUDGET), (TargetUnreachable("host gone"), None)],
)
def test_what_stops_one_lane_ends_the_run_and_what_the_others_earned_is_kept(error, ending) -> None:
    script = WideScript({"a": measured(60), "b": error})
    if ending is None:
        with pytest.raises(TargetUnreachable):
            script.run(rounds=3, width=2)
    else:
        assert script.run(rounds=3, width=2).ending is ending
    assert "r001at1" in script.bests
    assert all(t.decision is None for t in script.filed), "a round that was stopped is gone through again"


def test_an_interrupt_stops_every_lane_between_two_steps() -> None:
    script = WideScript({"a": [BROKEN, measured(90)], "b": [BROKEN, measured(90)]})
    script.interrupt_after = 3
    assert script.run(rounds=9, width=2).ending is Ending.INTERRUPTED
    assert len(script.requests) == 3 and [t.outcome for t in script.filed] == ["compile_failed"] * 2


def test_a_round_that_was_cut_between_two_decisions_is_gone_through_again() -> None:
    first = WideScript({"a": measured(90), "b": measured(80)})
    first.run(rounds=1, width=2)
    half = [first.filed[0], replace(first.filed[1], decision=None)]
    second = WideScript({"a": measured(90), "b": measured(80)})
    second.run(Past(measured(100), tuple(half)), rounds=1, width=2)
    assert [c.round for c in second.contexts] == [1, 1] and second.contexts[0].history == ()


class FollowingScript(Script):
    """Its plans go by an experience; what is said of it is kept."""

    def __init__(self, *results: Evaluation, **more: Any) -> None:
        super().__init__(list(results), **more)
        self.credited: list[tuple[tuple[str, ...], bool, str]] = []

    def plan(self, context: RoundContext) -> Plan:
        return replace(super().plan(context), follows=("key",))

    def credit(self, keys: tuple[str, ...], improved: bool, occasion: str, instead: bool = False) -> None:
        self.credited.append((keys, improved, f"{occasion}{' instead' if instead else ''}"))


def test_what_a_plan_went_by_is_told_whether_it_helped() -> None:
    script = FollowingScript(measured(100), measured(80), BROKEN, BROKEN, measured(79.9))
    script.run(rounds=3, max_repairs=1)
    assert script.credited == [
        (("key",), True, "r001t1-followed"), (("key",), False, "r002t2-followed"), (("key",), False, "r003t1-followed"),
    ]  # fmt: skip
    wrong = FollowingScript(measured(100), measured(80), final={"r001t1": WRONG})
    wrong.run()
    assert [(improved, occasion) for _, improved, occasion in wrong.credited] == [
        (True, "r001t1-followed"), (False, "r001t1-followed-dropped instead"),
    ], "a winner that was none takes it back"  # fmt: skip
    silent = FollowingScript(measured(100), replies=[ModelUnreachable("no answer")])
    silent.run()
    assert silent.credited == [], "a model that cannot answer says nothing of an idea"


def test_the_last_check_takes_so_many_times_what_a_round_takes_at_the_gates(monkeypatch) -> None:
    secret = 2
    task = replace(TASK, seeds=(0, 1, 2, 3, 4))
    in_a_round = EvaluationRequest(task, Candidate("c", "kernel = 1"), extra_seeds=tuple(range(90, 90 + secret)))
    last = replace(in_a_round, final=True)
    expected = len(draws_at_a_gate(last)) / len(draws_at_a_gate(in_a_round))
    assert more_at_the_gates(task, secret) == pytest.approx(expected) and expected > 2
    ticks = count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    script = Script([measured(100.0), replace(measured(50.0), verified_full=False)])
    script.run(rounds=1)
    whole, at_the_gates = script.reserved[:2]
    assert at_the_gates == pytest.approx(whole * more_at_the_gates(TASK, 2))


def test_no_round_is_begun_that_cannot_end_in_time() -> None:
    script = Script([measured(100.0), measured(90.0), measured(80.0)], seconds=1e-9)
    outcome = script.run(rounds=5)
    assert (outcome.ending, outcome.best.id) == (Ending.BUDGET, "r001t1")
    assert re.fullmatch(r"0 s of its hours are left, and no round took less than \d+ s", outcome.reason)


def test_a_plan_that_starts_from_a_kernel_that_is_none_is_unusable() -> None:
    script = Script([measured(100), measured(80)], parents={1: "r009t1"})
    script.run(rounds=1)
    assert script.written == 0 and script.filed[0].outcome == "no_plan"
