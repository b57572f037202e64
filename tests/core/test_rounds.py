"""The loop on scripted scenarios: nine steps in order, and the rules by which it goes on or stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from accelopt_core.candidate import Bottleneck, Candidate, Plan
from accelopt_core.evaluation import (
    Bounds,
    CheckFailure,
    CompileFailed,
    Evaluation,
    Implausible,
    Incorrect,
    Measured,
    Profile,
)
from accelopt_core.events import BASELINE_ROUND, Event, PlanMade, RoundEnded, StepBegan
from accelopt_core.optimization_memory import Experience, OptimizationMemory
from accelopt_core.ports import (
    BudgetExhausted,
    EvaluationRequest,
    ModelUnreachable,
    Progress,
    Step,
    TargetInfo,
    Try,
)
from accelopt_core.proposer import CannotRepair, Feedback, NothingToPlan, Proposer, RoundContext, UnusableReply
from accelopt_core.rounds import BaselineRejected, Loop, LoopSettings, Outcome
from accelopt_core.steps import Ending
from accelopt_core.task import ShapePreset, Task
from ka_extensions.divergence_guard import Decision
from ka_extensions.reflexion import Reflexion

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
    exhausted_after: int | None = None
    interrupt_at: Step | None = None
    events: list[Event] = field(default_factory=list)
    requests: list[EvaluationRequest] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)
    bests: list[str] = field(default_factory=list)
    memory: OptimizationMemory = field(default_factory=OptimizationMemory)
    contexts: list[RoundContext] = field(default_factory=list)
    written_for: list[RoundContext] = field(default_factory=list)
    reviewed: list[RoundContext] = field(default_factory=list)
    feedbacks: list[tuple[Feedback, ...]] = field(default_factory=list)
    written: int = 0
    interrupted: bool = False

    # Target
    def describe(self) -> TargetInfo:
        return TargetInfo("sim", "sim-1", True)

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        for step in (Step.UPLOAD, Step.VERIFY, Step.BENCHMARK):
            progress(step, "scripted")
        if request.final:
            return self.final.get(request.candidate.id, self.measured_of(request.candidate.id))
        self.requests.append(request)
        return self.results[min(len(self.requests), len(self.results)) - 1]

    def measured_of(self, candidate_id: str) -> Evaluation:
        index = next(i for i, r in enumerate(self.requests) if r.candidate.id == candidate_id)
        return self.results[min(index + 1, len(self.results)) - 1]

    def close(self) -> None: ...

    # the four roles
    def plan(self, context: RoundContext) -> Plan:
        self.contexts.append(context)
        if self.plans:
            raise self.plans.pop(0)
        parent = self.parents.get(context.round)
        return Plan(f"p{context.round}", "hoist x", "hoist", Bottleneck.MEMORY_BOUND, 5.0, "because", "", parent)

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
        return Reflexion(context.round, plan.title, plan.technique, 5.0, None, decision.verdict.value, True, "learned",
                         avoid=(f"avoid {context.round}",))  # fmt: skip

    # Journal, Budget, RunObserver
    def attempt(self, entry: Try) -> None:
        self.tries.append(entry)

    def best(self, candidate: Candidate, result: Measured) -> None:
        self.bests.append(candidate.id)

    def remember(self, experience: Experience, occasion: str, shown: tuple[Experience, ...]) -> None:
        self.memory.add(experience, shown)

    def shown(self, round: int, choose: Callable[[], tuple[Experience, ...]]) -> tuple[Experience, ...]:
        return choose()

    def recall(self) -> OptimizationMemory:
        return self.memory

    def exhausted(self) -> str | None:
        spent = self.exhausted_after is not None and self.written >= self.exhausted_after
        return "all tokens are used" if spent else None

    def tell(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, StepBegan) and event.round != BASELINE_ROUND and event.step is self.interrupt_at:
            self.interrupted = True

    def run(self, **settings: object) -> Outcome:
        proposer = Proposer("script", self, self, self, self)
        wanted = replace(LoopSettings(rounds=1), **settings)
        return Loop(TASK, "kernel = 0", self, proposer, self, self, self, wanted, lambda: self.interrupted).run()

    def steps(self, round: int) -> list[Step]:
        return [e.step for e in self.events if isinstance(e, StepBegan) and e.round == round]


def test_a_winning_round_goes_through_the_nine_steps_in_order() -> None:
    script = Script([measured(100), measured(80)])
    outcome = script.run()
    assert script.steps(1) == list(Step)
    assert outcome.best.id == "r001t1" and outcome.best_result.latency_us == 80
    assert script.bests[0] == "input" and "r001t1" in script.bests


def test_a_win_is_remembered_with_its_measured_speed_up() -> None:
    script = Script([measured(100), measured(80)])
    script.run()
    (experience,) = script.memory.experiences
    assert experience.speedup == pytest.approx(1.25) and experience.kernel == "r001t1"


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
    assert script.tries[-1].attempt.outcome == outcome


@pytest.mark.parametrize("fault", [BROKEN, WRONG], ids=["broken", "wrong"])
def test_a_faulty_kernel_is_repaired_with_the_message_fed_back(fault: Evaluation) -> None:
    script = Script([measured(100), fault, fault, measured(70)])
    outcome = script.run()
    assert outcome.best.id == "r001t3"
    assert [len(f) for f in script.feedbacks] == [0, 1, 2]
    assert script.feedbacks[1][0].source == "kernel = 1"
    assert [t.attempt.outcome for t in script.tries] == [fault.kind, fault.kind, "improved"]


def test_repairs_end_after_three_and_the_round_still_reflects() -> None:
    script = Script([measured(100), BROKEN])
    script.run()
    assert script.written == 4 and len(script.tries) == 4
    assert script.tries[-1].reflexion is not None and script.tries[-1].decision is not None
    assert Step.SUMMARIZE not in script.steps(1) and Step.REFLECT in script.steps(1)


def test_a_reply_without_a_kernel_is_asked_again_with_what_was_missing() -> None:
    script = Script([measured(100), measured(70)], replies=[UnusableReply("no code block", "Sure!"), "kernel = 9"])
    outcome = script.run()
    assert script.feedbacks[1] == (Feedback("Sure!", "no code block"),)
    assert outcome.best.source == "kernel = 9"


def test_an_implausible_latency_is_not_repaired_and_never_best() -> None:
    script = Script([measured(100), Implausible("below the bound", 0.1)])
    outcome = script.run()
    assert outcome.best.id == "input" and script.written == 1


def test_an_executor_that_cannot_repair_ends_the_round() -> None:
    script = Script([measured(100), BROKEN], replies=["kernel = 1", CannotRepair("nothing better")])
    script.run()
    assert [t.attempt.outcome for t in script.tries] == ["compile_failed"]


def test_a_slow_candidate_need_not_be_verified_at_full_shape() -> None:
    script = Script([measured(100), measured(80), measured(79)])
    script.run(rounds=2)
    assert [r.verify_full_below_us for r in script.requests] == [None, 100, 80]


def test_every_evaluation_has_fresh_secret_seeds() -> None:
    script = Script([measured(100), measured(80), measured(60)])
    script.run(rounds=2, secret_seeds=2)
    seeds = [r.extra_seeds for r in script.requests]
    assert all(len(s) == 2 for s in seeds) and len(set(seeds)) == 3


def test_it_stops_after_rounds_without_improvement() -> None:
    outcome = (script := Script([measured(100)])).run(rounds=50, patience=5)
    assert len({t.round for t in script.tries}) == 5
    assert outcome.ending is Ending.FINISHED and "5 rounds without improvement" in outcome.reason


def test_it_stops_at_the_bound_and_only_there() -> None:
    at_bound = Script([measured(100), measured(10.05)])
    assert "bound" in at_bound.run(rounds=50, bound_percent=99.0).reason
    near = Script([measured(100), measured(10.5)])
    assert "bound" not in near.run(rounds=50, bound_percent=99.0).reason


def test_it_stops_when_the_planner_has_nothing_left() -> None:
    outcome = Script([measured(100)], plans=[NothingToPlan("every site was tried")]).run(rounds=50)
    assert (outcome.ending, outcome.reason) == (Ending.FINISHED, "every site was tried")


def test_a_planner_is_shown_every_right_kernel_and_may_start_from_any() -> None:
    script = Script([measured(100), measured(80), WRONG, measured(90), measured(70)], parents={3: "input", 4: "r003t1"})
    outcome = script.run(rounds=4, max_repairs=0)
    assert [[c.id for c, _ in context.measured] for context in script.contexts] == [
        ["input"], ["input", "r001t1"], ["input", "r001t1"], ["input", "r001t1", "r003t1"]
    ]  # fmt: skip
    assert [t.attempt.parent_id for t in script.tries] == ["input", "r001t1", "input", "r003t1"]
    assert outcome.best.parent_id == "r003t1"
    written = script.written_for
    assert [(c.parent.id, c.parent_result.latency_us) for c in written][2:] == [("input", 100), ("r003t1", 90)]
    reviewed = script.reviewed
    assert [c.parent.id for c in reviewed] == ["input", "r001t1", "input", "r003t1"]


def test_a_plan_that_starts_from_a_kernel_that_is_none_is_unusable() -> None:
    script = Script([measured(100), measured(80)], parents={1: "r009t1"})
    script.run(rounds=1)
    assert script.written == 0 and script.tries[0].attempt.outcome == "no_plan"
    assert "'r009t1'" in script.tries[0].attempt.summary and "input" in script.tries[0].attempt.summary


def test_a_budget_that_runs_out_stops_it_between_steps_and_keeps_the_best() -> None:
    script = Script([measured(100), measured(80), measured(60)], exhausted_after=2)
    outcome = script.run(rounds=50)
    assert outcome.ending is Ending.BUDGET and outcome.best_result.latency_us in (80, 60)


def test_a_budget_that_a_call_would_break_stops_it() -> None:
    script = Script([measured(100)], plans=[BudgetExhausted("the next call could cost $2")])
    assert script.run(rounds=5).ending is Ending.BUDGET


@pytest.mark.parametrize("step", [Step.PLAN, Step.EXECUTE, Step.DECIDE, Step.REFLECT])
def test_an_interrupt_finishes_the_step_and_loses_nothing(step: Step) -> None:
    script = Script([measured(100), measured(80)], interrupt_at=step)
    outcome = script.run(rounds=50)
    assert len({t.round for t in script.tries}) <= 1
    if step in (Step.DECIDE, Step.REFLECT):
        assert outcome.best.id == "r001t1" and script.tries[0].attempt.outcome == "improved"
    assert outcome.ending is (Ending.INTERRUPTED)


def test_a_model_that_fails_twice_in_a_row_ends_the_run() -> None:
    script = Script([measured(100)], plans=[ModelUnreachable("no route") for _ in range(9)])
    outcome = script.run(rounds=50)
    assert outcome.ending is Ending.FAILED and len(script.tries) == 2


@pytest.mark.parametrize("fault", [BROKEN, WRONG])
def test_a_baseline_that_is_wrong_is_refused(fault: Evaluation) -> None:
    with pytest.raises(BaselineRejected) as raised:
        Script([fault]).run()
    assert raised.value.evaluation == fault


def test_a_winner_that_fails_its_last_check_gives_way_to_the_one_before() -> None:
    script = Script([measured(100), measured(80), measured(60)], final={"r002t1": WRONG})
    outcome = script.run(rounds=2)
    assert outcome.best.id == "r001t1" and script.bests[-1] == "r001t1"


def test_what_a_round_did_is_told_once_it_ended() -> None:
    script = Script([measured(100), measured(80)])
    script.run()
    ended = [e for e in script.events if isinstance(e, RoundEnded)]
    assert [e.attempt.outcome for e in ended] == ["improved"]
    assert sum(isinstance(e, PlanMade) for e in script.events) == 1


def test_a_rejection_is_filed_from_the_numbers_without_asking_the_summarizer() -> None:
    script = Script([measured(100), measured(120)])
    script.summarize = None  # type: ignore[method-assign,assignment]  # calling it would fail the round
    script.run()
    (experience,) = script.memory.experiences
    assert not experience.is_win and experience.speedup == pytest.approx(100 / 120)
    assert "120" in experience.summary and experience.technique == "hoist"


def test_an_idea_that_failed_three_times_is_banned_in_the_next_round_and_an_error_told() -> None:
    script = Script([measured(100), BROKEN])
    script.run(rounds=4, max_repairs=0)
    assert [[ban.technique for ban in context.banned] for context in script.contexts] == [[], [], [], ["hoist"]]
    assert [[error.times for error in context.recurring] for context in script.contexts] == [[], [], [], [3]]
