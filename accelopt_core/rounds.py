"""The loop: nine steps a round, and the rules by which it goes on or stops.

profile -> plan -> execute -> upload -> compile and verify -> benchmark -> decide -> summarize -> reflect
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from accelopt_core.bounds import bottleneck_of
from accelopt_core.candidate import Candidate, Plan, source_hash
from accelopt_core.evaluation import Evaluation, Implausible, Measured, explain
from accelopt_core.events import (
    BASELINE_ROUND,
    BaselineMeasured,
    Notice,
    PlanMade,
    RoundEnded,
    RoundStarted,
    RunObserver,
    StepBegan,
    StepNote,
)
from accelopt_core.operators import kernel_operators
from accelopt_core.optimization_memory import Experience
from accelopt_core.ports import (
    Budget,
    BudgetExhausted,
    EvaluationLimits,
    EvaluationRequest,
    Journal,
    ModelError,
    Progress,
    Step,
    Target,
    Try,
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
from accelopt_core.summarizer import machine_and_toolchain, measured_rejection
from accelopt_core.task import Task
from ka_extensions.attempt_history import MODEL_FAILED, Attempt, AttemptHistory
from ka_extensions.divergence_guard import Decision, DivergenceGuard, Verdict
from ka_extensions.error_patterns import recurring_errors
from ka_extensions.idea_bans import BanRule
from ka_extensions.reflexion import ReflexionWindow

MODEL_FAILURES_IN_A_ROW = 2
"""After this many rounds that a model could not answer at all, the run stops."""


@dataclass(frozen=True)
class LoopSettings:
    rounds: int = 10
    patience: int = 5
    """Stop after this many rounds without improvement."""
    max_repairs: int = 3
    guard: DivergenceGuard = field(default_factory=DivergenceGuard)
    bans: BanRule = field(default_factory=BanRule)
    recurring_after: int = 3
    """An error that came so often changes how the executor is instructed."""
    reflexion_window: int = 5
    experiences: int = 6
    """How many of memory's experiences a proposer is shown."""
    secret_seeds: int = 2
    """Fresh seeds per evaluation, beside the task's published ones."""
    bound_percent: float = 99.0
    """Stop when the best reaches this percent of peak; only where the task declares its work."""
    limits: EvaluationLimits = field(default_factory=EvaluationLimits)


class Ending(str, Enum):
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    BUDGET = "budget"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `best` is the input kernel when nothing was faster."""

    ending: Ending
    reason: str
    baseline: Measured
    best: Candidate
    best_result: Measured
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True)
class Past:
    """What an interrupted run has already done; a round without a decision is gone through again."""

    baseline: Measured
    tries: tuple[Try, ...]


class BaselineRejected(Exception):
    """The input kernel does not compile, is wrong or fails: there is nothing to optimise."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__(explain(evaluation))
        self.evaluation = evaluation


class Stop(Exception):
    """Ends the run from inside a round, between two steps."""

    def __init__(self, ending: Ending, reason: str) -> None:
        super().__init__(reason)
        self.ending = ending
        self.reason = reason


class Loop:
    """One run on one kernel. Raises BaselineRejected and TargetError; everything else ends in an Outcome."""

    def __init__(
        self,
        task: Task,
        source: str,
        target: Target,
        proposer: Proposer,
        journal: Journal,
        budget: Budget,
        observer: RunObserver,
        settings: LoopSettings,
        interrupted: Callable[[], bool],
        past: Past | None = None,
        today: Callable[[], datetime.date] = datetime.date.today,
    ) -> None:
        self._task = task
        self._target = target
        self._proposer = proposer
        self._journal = journal
        self._budget = budget
        self._tell = observer.tell
        self._settings = settings
        self._interrupted = interrupted
        self._history = AttemptHistory()
        self._window = ReflexionWindow(settings.reflexion_window)
        self._machine = target.describe()
        self._input = Candidate("input", source)
        self._pending: Try | None = None
        self._past = past
        self._today = today

    def run(self) -> Outcome:
        if self._past is not None:
            baseline: Evaluation = self._past.baseline
        else:
            baseline = self._evaluate(BASELINE_ROUND, self._input, verify_full_below_us=None)
        if not isinstance(baseline, Measured):
            raise BaselineRejected(baseline)
        self._baseline = self._best_result = self._parent_result = baseline
        self._best = self._parent = self._input
        self._ranking: list[tuple[Candidate, Measured]] = [(self._input, baseline)]
        self._measured = [(self._input, baseline)]
        self._tell(BaselineMeasured(baseline))
        if self._past is None:
            self._journal.best(self._input, baseline)
            first = 1
        else:
            first = self._restore(self._past.tries)
        ending, reason = self._rounds(first)
        if self._best is not self._input and ending is not Ending.FAILED:
            self._confirm_winner()
        return Outcome(ending, reason, self._baseline, self._best, self._best_result, self._history.attempts)

    def _restore(self, tries: tuple[Try, ...]) -> int:
        """Bring the state to where the last complete round left it; the number of the round to go on with."""
        done = {entry.round for entry in tries if entry.decision is not None}
        for entry in tries:
            if entry.round not in done:
                continue
            self._history.add(entry.attempt)
            if entry.reflexion is not None:
                self._window.add(entry.reflexion)
            if entry.decision is not None:
                if entry.candidate is not None and isinstance(entry.evaluation, Measured):
                    self._adopt(entry.decision, entry.candidate, entry.evaluation)
                self._tell(RoundEnded(entry.attempt, entry.decision, entry.evaluation))
        self._journal.best(self._best, self._best_result)  # the run may have been killed between two of its files
        return max(done, default=0) + 1

    def _rounds(self, first: int) -> tuple[Ending, str]:
        settings = self._settings
        for number in range(first, settings.rounds + 1):
            idle = self._history.rounds_without_improvement()
            if idle >= settings.patience:
                return Ending.FINISHED, f"{idle} rounds without improvement"
            bounds = self._best_result.profile.bounds
            percent = bounds.percent_of_peak(self._best_result.latency_us)
            if bounds.source == "declared" and percent >= settings.bound_percent:
                return Ending.FINISHED, f"the best kernel is at {percent:.1f} % of the bound"
            try:
                try:
                    self._round(number)
                finally:
                    self._flush()  # a round that is stopped midway keeps what it tried
            except NothingToPlan as done:
                return Ending.FINISHED, str(done)
            except Stop as stop:
                return stop.ending, stop.reason
            except BudgetExhausted as exhausted:
                return Ending.BUDGET, str(exhausted)
            failures = self._history.model_failures_in_a_row()
            if failures >= MODEL_FAILURES_IN_A_ROW:
                return Ending.FAILED, f"the model failed in {failures} rounds in a row; see the log"
        return Ending.FINISHED, f"all {settings.rounds} rounds are done"

    # --- one round --------------------------------------------------------------------------------

    def _round(self, number: int) -> None:
        self._tell(RoundStarted(number, self._parent.id, self._parent_result.latency_us))
        context = self._context(number)
        self._step(number, Step.PROFILE, _describe_profile(self._parent_result))
        self._step(number, Step.PLAN)
        try:
            plan = self._proposer.planner.plan(context)
            context = context.started_from(plan.parent_id)
        except BudgetExhausted:
            raise
        except (UnusablePlan, ModelError) as error:
            self._no_plan(number, MODEL_FAILED if isinstance(error, ModelError) else "no_plan", f"no plan: {error}")
            return
        self._tell(PlanMade(number, plan))
        self._note(number, Step.PLAN, f"{plan.title} (expects {plan.expected_gain_us:,.1f} µs)")

        candidate: Candidate | None = None
        result: Evaluation | None = None
        feedback: tuple[Feedback, ...] = ()
        tries = 0
        while tries <= self._settings.max_repairs:
            tries += 1
            self._step(number, Step.EXECUTE, f"repair {tries - 1} of {self._settings.max_repairs}" if tries > 1 else "")
            try:
                source = self._proposer.executor.execute(context, plan, feedback)
            except UnusableReply as unusable:
                message = f"no kernel in the reply: {unusable}"
                self._note(number, Step.EXECUTE, message)
                self._pend(number, tries, plan, None, None, "no_kernel", message)
                feedback += (Feedback(unusable.reply, str(unusable)),)
                continue
            except BudgetExhausted:
                raise
            except (CannotRepair, ModelError) as error:
                self._note(number, Step.EXECUTE, str(error))
                if isinstance(error, ModelError):
                    self._pend(number, tries, plan, None, None, MODEL_FAILED, str(error))
                elif self._pending is None:
                    self._pend(number, tries, plan, None, None, "no_kernel", str(error))
                break
            candidate = Candidate(f"r{number:03d}t{tries}", source, context.parent.id, plan.id)
            result = self._evaluate(number, candidate, verify_full_below_us=self._best_result.latency_us)
            message = explain(result)
            self._pend(number, tries, plan, candidate, result, result.kind, message)
            if isinstance(result, (Measured, Implausible)):
                break
            self._note(number, Step.VERIFY, message)
            feedback += (Feedback(source, message),)
        self._finish_round(number, context, plan, candidate, result)

    def _finish_round(
        self, number: int, context: RoundContext, plan: Plan, candidate: Candidate | None, result: Evaluation | None
    ) -> None:
        self._step(number, Step.DECIDE)
        measured = result if isinstance(result, Measured) else None
        spread = max(measured.spread if measured else 0.0, self._best_result.spread)
        decision = self._settings.guard.decide(
            measured.latency_us if measured else None, self._best_result.latency_us, spread
        )
        self._note(number, Step.DECIDE, f"{decision.verdict.value}: {decision.reason}")
        pending = self._pending
        assert pending is not None, "a round that came this far has tried something"
        if measured is not None and candidate is not None:
            pending = replace(pending, attempt=replace(pending.attempt, outcome=decision.verdict.value))
            self._adopt(decision, candidate, measured)
        self._pending = pending
        if measured is not None and candidate is not None:
            self._step(number, Step.SUMMARIZE)
            self._summarize(number, context, plan, candidate, measured, decision)
        self._step(number, Step.REFLECT)
        reflexion = None
        try:
            reflexion = self._proposer.reflector.reflect(context, plan, candidate, result, decision)
            self._window.add(reflexion)
            self._note(number, Step.REFLECT, reflexion.lesson)
        except ModelError as error:
            self._note(number, Step.REFLECT, f"no reflexion: {error}")
        self._pending = replace(pending, decision=decision, reflexion=reflexion)  # only now the round is complete
        self._flush()
        self._tell(RoundEnded(pending.attempt, decision, result))

    def _adopt(self, decision: Decision, candidate: Candidate, measured: Measured) -> None:
        self._measured.append((candidate, measured))
        if decision.verdict is Verdict.IMPROVED:
            self._best, self._best_result = candidate, measured
            self._parent, self._parent_result = candidate, measured
            self._ranking.append((candidate, measured))
            self._journal.best(candidate, measured)
        elif decision.verdict is Verdict.REVERTED:
            self._parent, self._parent_result = self._best, self._best_result

    def _summarize(
        self, number: int, context: RoundContext, plan: Plan, candidate: Candidate, measured: Measured,
        decision: Decision,
    ) -> None:  # fmt: skip
        if decision.improved:
            try:
                experience = self._proposer.summarizer.summarize(context, plan, candidate, measured, decision)
            except ModelError as error:
                self._note(number, Step.SUMMARIZE, f"not remembered: {error}")
                return
        else:  # the numbers say it all: no model is paid for it
            experience = measured_rejection(context, plan, candidate, measured, decision, self._today())
        self._journal.remember(experience, candidate.id, context.experiences)
        self._note(number, Step.SUMMARIZE, f"remembered: {experience.title}")

    def _no_plan(self, number: int, outcome: str, summary: str) -> None:
        self._note(number, Step.PLAN, summary)
        self._pend(number, 1, None, None, None, outcome, summary)
        decision = self._settings.guard.decide(None, self._best_result.latency_us)
        assert self._pending is not None
        self._pending = replace(self._pending, decision=decision)
        attempt = self._pending.attempt
        self._flush()
        self._tell(RoundEnded(attempt, decision, None))

    # --- evaluation -------------------------------------------------------------------------------

    def _evaluate(
        self, number: int, candidate: Candidate, *, verify_full_below_us: float | None, final: bool = False
    ) -> Evaluation:
        request = EvaluationRequest(
            self._task,
            candidate,
            self._settings.limits,
            verify_full_below_us,
            tuple(secrets.randbelow(1 << 31) for _ in range(self._settings.secret_seeds)),
            final,
        )
        self._between_steps(number)
        return self._target.evaluate(request, self._relay(number))

    def _relay(self, number: int) -> Progress:
        seen: list[Step] = []

        def progress(step: Step, detail: str) -> None:
            if seen[-1:] != [step]:
                seen.append(step)
                self._tell(StepBegan(number, step))
            if detail:
                self._note(number, step, detail)

        return progress

    def _confirm_winner(self) -> None:
        """Every seed at every shape, and fresh ones; a winner that fails gives way to the one before it."""
        while len(self._ranking) > 1:
            candidate, measured = self._ranking[-1]
            self._tell(Notice(f"checking the winner {candidate.id} on every seed at every shape"))
            number = self._settings.rounds + 1
            request = EvaluationRequest(
                self._task, candidate, self._settings.limits, None,
                tuple(secrets.randbelow(1 << 31) for _ in range(self._settings.secret_seeds)), True,
            )  # fmt: skip
            result = self._target.evaluate(request, self._relay(number))
            if isinstance(result, Measured):
                self._best, self._best_result = candidate, result
                self._journal.best(candidate, result)
                return
            self._tell(Notice(f"{candidate.id} failed its last check and is dropped: {explain(result)}", "warning"))
            self._ranking.pop()
        self._best, self._best_result = self._ranking[0]
        self._journal.best(self._best, self._best_result)

    # --- what is known and what is told -----------------------------------------------------------

    def _context(self, number: int) -> RoundContext:

        def choose() -> tuple[Experience, ...]:
            return self._journal.recall().retrieve(
                bottleneck=bottleneck_of(self._parent_result.profile, self._parent_result.latency_us).value,
                operators=kernel_operators(self._parent.source),
                limit=self._settings.experiences,
                toolchain=machine_and_toolchain(self._parent_result.machine)[1],
            )

        experiences = self._journal.shown(number, choose)
        return RoundContext(
            number, self._task, self._parent, self._parent_result, self._best, self._best_result,
            self._baseline.latency_us, self._history.attempts, self._window.entries, self._window.avoid,
            self._window.build_on, experiences, self._settings.bans.banned(self._history.attempts, number),
            recurring_errors(self._history.attempts, number, least=self._settings.recurring_after),
            tuple(self._measured),
        )  # fmt: skip

    def _pend(
        self, number: int, tries: int, plan: Plan | None, candidate: Candidate | None, result: Evaluation | None,
        outcome: str, summary: str,
    ) -> None:  # fmt: skip
        """The try that is being worked on; an earlier one of the round is complete now."""
        self._flush()
        attempt = Attempt(
            round=number,
            candidate_id=candidate.id if candidate else f"r{number:03d}t{tries}",
            content_hash=candidate.content_hash if candidate else source_hash(summary),
            parent_id=(plan.parent_id if plan else None) or self._parent.id,
            technique=plan.technique if plan else "",
            title=plan.title if plan else "",
            outcome=outcome,
            latency_us=result.latency_us if isinstance(result, Measured) else None,
            summary=summary,
        )
        self._pending = Try(number, tries, plan, candidate, result, attempt)

    def _flush(self) -> None:
        if self._pending is not None:
            entry, self._pending = self._pending, None
            self._history.add(entry.attempt)
            self._journal.attempt(entry)

    def _step(self, number: int, step: Step, detail: str = "") -> None:
        self._between_steps(number)
        self._tell(StepBegan(number, step))
        if detail:
            self._note(number, step, detail)

    def _note(self, number: int, step: Step, detail: str) -> None:
        self._tell(StepNote(number, step, detail))

    def _between_steps(self, number: int) -> None:
        """Where a run may stop. What a round has already earned (a new best) is on disk by then."""
        if number == BASELINE_ROUND:
            return
        if self._interrupted():
            raise Stop(Ending.INTERRUPTED, "interrupted")
        exhausted = self._budget.exhausted()
        if exhausted is not None:
            raise Stop(Ending.BUDGET, exhausted)


def _describe_profile(result: Measured) -> str:
    bounds = result.profile.bounds
    text = (
        f"{result.latency_us:,.1f} µs, {result.percent_of_peak:.1f} % of peak, "
        f"bound by {bounds.limiter} at {bounds.peak_us:,.1f} µs"
    )
    gaps = ", ".join(f"{gap.name} {gap.cost_us:,.1f} µs" for gap in result.profile.gaps[:3])
    return f"{text}; gaps: {gaps}" if gaps else text
