"""The loop: nine steps a round, and the rules by which it goes on or stops.

profile -> plan -> execute -> upload -> compile and verify -> benchmark -> decide -> summarize -> reflect

A round may try several candidates side by side: each is planned in turn, knowing the plans before it, then all are
written, those worth it are evaluated (`side_by_side.py`), and they are decided one after the other. A round with one
lane is the plain case.
"""

from __future__ import annotations

import datetime
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from accelopt_core.candidate import MOST_AT_ONCE, MOST_LANES, Attempt, Candidate, Plan, lane_names
from accelopt_core.evaluation import Evaluation, Measured, Step, explain, own_faults
from accelopt_core.language import Language
from accelopt_core.learning.experiences import machine_and_toolchain, measured_rejection, refutation, way_experience
from accelopt_core.loop.beam import BeamState
from accelopt_core.loop.events import (
    BASELINE_ROUND,
    BaselineMeasured,
    Ending,
    LastCheck,
    Notice,
    PlanMade,
    RoundEnded,
    RoundStarted,
    RunObserver,
)
from accelopt_core.loop.known_programs import INPUT, known_programs
from accelopt_core.loop.lane import Lane
from accelopt_core.loop.mending import due_in
from accelopt_core.loop.screening import Guide, Screening, residuals
from accelopt_core.loop.search_state import Ended, SearchState
from accelopt_core.loop.side_by_side import try_by_try
from accelopt_core.loop.steps import Place, Steps, Stop
from accelopt_core.optimization_memory import Experience
from accelopt_core.ports import (
    Budget,
    BudgetExhausted,
    EvaluationLimits,
    EvaluationRequest,
    Journal,
    KnownProgram,
    ModelError,
    Target,
)
from accelopt_core.proposer import NothingToPlan, Proposer, RoundContext, UnusablePlan
from accelopt_core.task import Task
from ka_extensions.attempt_history import AttemptHistory
from ka_extensions.bandit import Spent
from ka_extensions.divergence_guard import Decision, DivergenceGuard
from ka_extensions.error_patterns import RepairRule, recurring_errors
from ka_extensions.idea_bans import BanRule
from ka_extensions.outcome import Outcome
from ka_extensions.reflexion import Reflexion, ReflexionWindow
from ka_extensions.residuals import Correction

WAYS_REMEMBERED = 3
"""Of an archive's, the fastest."""


@dataclass(frozen=True)
class LoopSettings:
    rounds: int = 10
    patience: int = 5
    """Stop after this many rounds without improvement."""
    width: int = 1
    """Candidates that a round tries side by side."""
    beam: int = 1
    """Kernels that a round starts from; with more than one, or several plans or samples, a run keeps an archive."""
    plans: int = 1
    """For each of them ..."""
    samples: int = 1
    """... and kernels written from each plan."""
    tie: float = 0.0
    """Of a simulated latency: kernels that differ by less are not told apart when an archive is gone on from."""
    max_repairs: int = 3
    repairs: RepairRule = field(default_factory=RepairRule)
    """Where there is an archive, and so always another kernel to go on from."""
    guard: DivergenceGuard = field(default_factory=DivergenceGuard)
    bans: BanRule = field(default_factory=BanRule)
    recurring_after: int = 3
    """An error that came so often changes how the executor is instructed."""
    model_failures: int = 2
    """Stop after this many rounds in a row that a model could not answer at all."""
    reflexion_window: int = 5
    experiences: int = 6
    """How many of memory's experiences a proposer is shown."""
    secret_seeds: int = 2
    """Fresh seeds per evaluation, beside the task's published ones."""
    bound_percent: float = 99.0
    """Stop when the best reaches this percentage of `Bounds.floor_us`; only where the task declares its work."""
    limits: EvaluationLimits = field(default_factory=EvaluationLimits)

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MOST_AT_ONCE:
            raise ValueError(f"1 to {MOST_AT_ONCE} candidates are tried at once, not {self.width}")
        if min(self.beam, self.plans, self.samples) < 1 or self.candidates > MOST_LANES:
            raise ValueError(f"a round tries 1 to {MOST_LANES} candidates, not {self.candidates}")

    @property
    def by_archive(self) -> bool:
        return self.beam * self.plans * self.samples > 1

    @property
    def candidates(self) -> int:
        """The most that a round tries."""
        return self.beam * self.plans * self.samples if self.by_archive else self.width


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `best` is the input kernel when nothing was faster."""

    ending: Ending
    reason: str
    baseline: Measured
    best: Candidate
    best_result: Measured
    attempts: tuple[Attempt, ...]
    nothing_left: bool = False
    """It ended since there was nothing left to plan."""


@dataclass(frozen=True)
class Past:
    """What an interrupted run has already done; a round without all its decisions is gone through again."""

    baseline: Measured
    attempts: tuple[Attempt, ...]
    nothing_left: str = ""
    """Why the planner, asked the same as now, had nothing left; empty where it is to be asked."""


class BaselineRejected(Exception):
    """The input kernel does not compile, is wrong or fails: there is nothing to optimise."""

    def __init__(self, evaluation: Evaluation, said: str = "") -> None:
        """`said`: in place of the evaluation's own words, by who knows the user's files."""
        super().__init__(said or explain(evaluation))
        self.evaluation = evaluation


def more_at_the_gates(task: Task, secret_seeds: int) -> float:
    """How many times the draws of a round's evaluation the last check takes at the small shapes, where every input
    distribution meets every seed (judging/draws.py)."""
    seeds, distributions = len(task.seeds) + secret_seeds, len(task.distributions)
    return seeds * distributions / (seeds + distributions - 1)


class Loop:
    """One run on one kernel. Raises BaselineRejected and TargetError; everything else ends in a RunResult."""

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
        guide: Guide | None = None,
        *,
        language: Language,
    ) -> None:
        """`language`: that its kernels are written in. `guide`: who tells kernels apart and which are worth a device's
        time; without one all are evaluated."""
        self._task = task
        self._language = language
        self._target = target
        self._proposer = proposer
        self._journal = journal
        self._tell = observer.tell
        self._budget = budget
        self._steps = Steps(observer, budget, interrupted)
        self._settings = settings
        self._history = AttemptHistory[Attempt]()
        self._window = ReflexionWindow(settings.reflexion_window)
        self._input = Candidate(INPUT, source)
        self._measured: dict[str, Attempt] = {}
        """By candidate: a winner that fails its last check is written once more."""
        self._nothing_left = False
        self._complete = 0
        """The last round of which every lane has its decision."""
        self._shortest_s = 0.0
        """That a round took; 0 before there was one."""
        self._confirmed: dict[str, Measured] = {}
        """By candidate that passed its last check: what that measured."""
        self._past = past
        self._today = today
        self._guide = guide

    def run(self) -> RunResult:
        past, baseline = self._past, self._past.baseline if self._past is not None else self._measure_input()
        if not isinstance(baseline, Measured):
            raise BaselineRejected(baseline)
        self._state = state = self._state_of(baseline)
        self._tell(BaselineMeasured(baseline))
        if baseline.shared_faults:
            self._tell(Notice(own_faults(baseline.shared_faults), "warning"))
        first = 1 if past is None else self._restore(past.attempts)
        # A resumed run writes it too: it may have been killed between two of its files.
        self._file_best()
        ending, reason = self._search(first)
        if ending is not Ending.FAILED:
            self._remember_ways()
        return RunResult(
            ending, reason, state.baseline, state.best, state.best_result, self._history.attempts, self._nothing_left
        )

    def _state_of(self, baseline: Measured) -> SearchState:
        guard, settings = self._settings.guard, self._settings
        if not settings.by_archive:
            return SearchState(self._input, baseline, guard)
        return BeamState(self._input, baseline, replace(guard, max_exploration=0), settings.beam, settings.tie)

    def _restore(self, attempts: tuple[Attempt, ...]) -> int:
        """Bring the state to where the last complete round left it; the number of the round to go on with."""
        rounds: dict[int, list[Attempt]] = {}
        for attempt in attempts:
            rounds.setdefault(attempt.round, []).append(attempt)
        # Runs of earlier versions do not say after which round: there it was the last.
        dropped = [attempt for attempt in attempts if attempt.last_check is not None]
        dropped.sort(key=lambda attempt: attempt.dropped_after or sys.maxsize)
        for number, of_round in sorted(rounds.items()):
            decided = [attempt for attempt in of_round if attempt.decision is not None]
            if not decided or len(decided) < decided[0].lanes:
                continue
            while dropped and 0 < dropped[0].dropped_after < number:
                at_once = [attempt for attempt in dropped if attempt.dropped_after == dropped[0].dropped_after]
                del dropped[: len(at_once)]
                self._restore_drops(at_once)
            self._complete = number
            ended: list[Ended] = []
            for attempt in of_round:
                self._history.add(attempt)
                if attempt.decision is None:
                    continue
                candidate, measured = attempt.candidate, attempt.measured
                if measured is not None and candidate is not None:
                    self._state.adopt(candidate, measured, attempt.decision, attempt.technique)
                    self._measured[candidate.id] = attempt
                if attempt.reflexion is not None:
                    self._window.add(attempt.reflexion)
                ended.append(Ended(attempt.parent_id, candidate, measured, attempt.decision))
                self._tell(RoundEnded(attempt, attempt.decision))
            self._state.end_round(ended)
        self._restore_drops(dropped)
        return self._complete + 1

    def _restore_drops(self, attempts: Sequence[Attempt]) -> None:
        """And what the last check that dropped them came to further on: it may have been cut, and what it measured of
        the next best, which is stored, counts from then on."""
        measured = {candidate.id for candidate, _ in self._state.measured}
        attempts = [attempt for attempt in attempts if attempt.id in measured]  # not those of a round that was cut
        for attempt in attempts:
            assert attempt.last_check is not None, "what was dropped failed its last check"
            if not attempt.dropped_after:
                corrected = replace(attempt, dropped_after=self._complete)
                self._history.correct(corrected)
                self._journal.attempt(corrected)
            self._state.drop(attempt.id)
            self._tell(LastCheck(attempt.id, attempt.last_check, False, attempt.summary))
        if attempts:
            self._confirm_winner()

    def _search(self, first: int) -> tuple[Ending, str]:
        """The rounds, and the last check of what they led to. Where it takes the best away, what ended them, such as
        how near the bound that was, need not hold any more: they go on, if any are left."""
        going_on = ""
        while True:
            ending, reason = self._rounds(first, going_on)
            if ending is Ending.FAILED:
                return ending, reason
            lost = self._confirm_winner()
            if not lost or ending is not Ending.FINISHED:
                return ending, reason
            first = self._complete + 1
            going_on = f"{reason}, but {lost} is not right: going on with round {first}"

    def _rounds(self, first: int, going_on: str) -> tuple[Ending, str]:
        """`going_on`: what is said before the first of them."""
        settings, self._nothing_left = self._settings, False
        for number in range(first, settings.rounds + 1):
            left_s = self._budget.seconds_left()
            if 0 < left_s < self._shortest_s:
                said = f"{left_s:.0f} s of its hours are left, and no round took less than {self._shortest_s:.0f} s"
                return Ending.BUDGET, said
            idle = self._history.rounds_without_improvement()
            if idle >= settings.patience:
                return Ending.FINISHED, f"{idle} rounds without improvement"
            best = self._state.best_result
            bounds = best.profile.bounds
            percent = 100 * bounds.floor_us / best.latency_us
            if bounds.source == "declared" and percent >= settings.bound_percent:
                counted = ", which counts the reference's operations as they stand" if percent > 100 else ""
                return Ending.FINISHED, f"the best kernel is at {percent:.1f} % of the bound{counted}"
            if self._past is not None and self._past.nothing_left and number == first and not going_on:
                self._nothing_left = True
                return Ending.FINISHED, self._past.nothing_left
            if going_on and self._budget.exhausted() is None:
                self._tell(Notice(going_on, "warning"))
                going_on = ""
            began = time.monotonic()
            try:
                self._round(number)
            except NothingToPlan as done:
                used_up = self._budget.exhausted()
                self._nothing_left = used_up is None
                return (Ending.FINISHED, str(done)) if used_up is None else (Ending.BUDGET, used_up)
            except Stop as stop:
                return stop.ending, stop.reason
            except BudgetExhausted as exhausted:
                return Ending.BUDGET, str(exhausted)
            self._complete = number
            took_s = time.monotonic() - began
            self._shortest_s = min(self._shortest_s or took_s, took_s)
            failures = self._history.model_failures_in_a_row()
            if failures >= settings.model_failures:
                return Ending.FAILED, f"the model failed in {failures} rounds in a row; see the log"
        return Ending.FINISHED, f"all {settings.rounds} rounds are done"

    # --- one round --------------------------------------------------------------------------------

    def _round(self, number: int) -> None:
        state = self._state
        self._tell(RoundStarted(number, state.parent.id, state.parent_result.latency_us))
        self._of_round: list[Attempt] = []
        lanes: list[Lane] = []
        try:
            context = self._context(number)
            self._steps.begin(Place(number), Step.PROFILE, _describe_profile(state.parent_result))
            lanes = self._planned(number, context)
            stopped_by = self._carry_out([lane for lane in lanes if lane.plan is not None])
            # What was measured is decided first, in the lanes' order: a new best is on disk whatever comes then.
            decisions = [self._decide(lane) for lane in lanes if lane.measured is not None or stopped_by is None]
            if stopped_by is not None:
                raise stopped_by
            for number_of_lane, (lane, decision) in enumerate(zip(lanes, decisions)):
                self._conclude(lane, decision, lanes[number_of_lane:])
            state.end_round(
                [
                    Ended(lane.context.parent.id, lane.candidate, lane.measured, decision)
                    for lane, decision in zip(lanes, decisions)
                ]
            )
        finally:  # a round that is stopped midway keeps what it tried
            for lane in lanes:
                self._file_last(lane)
            for attempt in sorted(self._of_round, key=lambda attempt: (attempt.lane, attempt.number)):
                self._history.add(attempt)

    def _planned(self, number: int, context: RoundContext) -> list[Lane]:
        """The lanes of a round: one for each sample of each plan; one whose planner gave none has no plan."""
        settings = self._settings
        names = lane_names(settings.candidates)
        lanes = self._mending(context, Place(number, names[0]))
        mended = len(lanes)
        plans = tuple(lane.plan for lane in lanes if lane.plan is not None)
        nothing: NothingToPlan | None = None
        for start, count, only_if_none in self._starts(context):
            for wanted in range(0 if only_if_none and len(lanes) > mended else count, 0, -1):
                if len(lanes) == len(names):
                    break
                place, *beside = (Place(number, name) for name in names[len(lanes) :][: settings.samples])
                self._steps.begin(place, Step.PLAN)
                known = replace(start, planned=plans, wanted=wanted)
                began, asked = time.monotonic(), ""
                try:
                    plan = self._proposer.planner.plan(known)
                    asked = plan.proposer
                    parted = known.started_from(plan.parent_id)
                except NothingToPlan as said:
                    nothing = said
                    if lanes:
                        self._steps.note(place, Step.PLAN, f"no further plan: {said}")
                    break
                except BudgetExhausted:
                    raise
                except (UnusablePlan, ModelError) as error:
                    self._steps.check_model(error)
                    asked = asked or (error.proposer if isinstance(error, UnusablePlan) else "")
                    lane = Lane(place, start, None, asked, time.monotonic() - began)
                    failed = isinstance(error, ModelError)
                    lane.last = lane.tried(1, Outcome.MODEL_FAILED if failed else Outcome.NO_PLAN, f"no plan: {error}")
                    lanes.append(lane)
                    self._steps.note(place, Step.PLAN, f"no plan: {error}")
                    if failed:
                        return _counted(lanes)  # it would not answer the next question either
                    continue
                if settings.by_archive:
                    plan = replace(plan, parent_id=parted.parent.id)  # the next plan may start from another
                if any(_same_change(parted, plan, lane) for lane in lanes):
                    self._steps.note(place, Step.PLAN, f"the same plan again is not tried twice: {plan.title}")
                    break
                plans += (plan,)
                plan = replace(plan, id=f"{plan.id}{place.lane}")
                of = 1 if plan.by_tool else 1 + len(beside)
                each_s = (time.monotonic() - began) / of
                for sample, each in enumerate((place, *beside[: of - 1]), 1):
                    self._tell(PlanMade(number, plan, each.lane))
                    lanes.append(Lane(each, replace(parted, sample=sample, samples=of), plan, asked, each_s))
                by = f"{asked}: " if asked else ""
                self._steps.note(
                    place, Step.PLAN, f"{by}{plan.title} (expects to gain {plan.expected_gain_us:,.1f} µs)"
                )
        if not lanes and nothing is not None:
            raise nothing
        return _counted(lanes)

    def _mending(self, context: RoundContext, place: Place) -> list[Lane]:
        """A lane for what a last check took away just before this round, if there is such."""
        due = due_in(place, self._history.attempts)
        if due is None:
            return []
        known = {each.id for each, _ in context.measured}
        start = context.started_from(due.dropped.parent_id if due.dropped.parent_id in known else None)
        plan = replace(due.plan, parent_id=start.parent.id)
        self._steps.begin(place, Step.PLAN)
        self._tell(PlanMade(place.round, plan, place.lane))
        self._steps.note(place, Step.PLAN, f"{plan.title}: {due.candidate.id} {due.dropped.summary}")
        return [Lane(place, start, plan, due.dropped.proposer, feedback=(due.feedback,))]

    def _starts(self, context: RoundContext) -> list[tuple[RoundContext, int, bool]]:
        """What plans of the round start from, how many of each, and whether only where nothing before gave any."""
        settings, state = self._settings, self._state
        if not settings.by_archive:
            return [(context, settings.width, False)]
        return [
            (context.started_from(parent.id), settings.plans, reserve)
            for parents, reserve in ((state.parents, False), (state.reserve, True))
            for parent, _ in parents
        ]

    def _carry_out(self, lanes: list[Lane]) -> BaseException | None:
        """Writes and evaluates the lanes' candidates, all at once where there are several.

        Returns what stopped some of several, when the others are through; what stops a single one it raises.
        """
        best, below_us = self._state.best, self._state.best_result.latency_us

        def evaluate(place: Place, candidate: Candidate, tries: Sequence[Attempt], by_tool: bool) -> Evaluation:
            known = known_programs(self._state.baseline, (*self._history.attempts, *tries), below_us)
            request = self._request(candidate, incumbent=best, below_us=below_us, known=known, by_tool=by_tool)
            return self._evaluate(request, place)

        settings = self._settings
        hopeless = settings.repairs.hopeless(self._history.attempts) if settings.by_archive else frozenset()

        def write(lane: Lane, file: Callable[[Attempt], None]) -> None:
            began = time.monotonic()
            lane.write(
                self._proposer.executor, self._steps, file, settings.max_repairs, lambda fault: fault not in hopeless
            )  # fmt: skip
            lane.seconds += time.monotonic() - began

        def judge(lane: Lane, file: Callable[[Attempt], None]) -> None:
            began = time.monotonic()
            by_tool = lane.plan is not None and lane.plan.by_tool
            lane.judge(partial(evaluate, by_tool=by_tool), self._steps, file)
            lane.seconds += time.monotonic() - began

        at_once = settings.width if settings.by_archive else len(lanes)
        screening = self._screening(lanes[0].place.round) if lanes else None
        try_by_try(lanes, write, judge, screening, self._steps, self._file, at_once)
        errors = [lane.stopped_by for lane in lanes if lane.stopped_by is not None]
        grave = [error for error in errors if not isinstance(error, (Stop, BudgetExhausted))]
        return next(iter([*grave, *errors]), None)

    def _screening(self, number: int) -> Screening | None:
        """What earlier rounds showed is learned; what this one shows, the next ones learn from."""
        if self._guide is None:
            return None
        seen = Correction((*self._guide.earlier, *residuals(self._history.attempts)))
        return Screening(self._guide, seen, number, self._journal, self._steps)

    def _conclude(self, lane: Lane, decision: Decision, open_lanes: Sequence[Lane]) -> None:
        """Summarize, reflect; then, and only then, the lane has its decision on file.

        `open_lanes`: those of the round that have none yet, this one among them.
        """
        began = time.monotonic()
        place, plan, candidate, measured = lane.place, lane.plan, lane.candidate, lane.measured
        reflexion = None
        if plan is not None:
            context = lane.context.with_parent_timed(measured.incumbent if measured is not None else None)
            context = replace(context, failed=lane.failed_before)
            if measured is not None and candidate is not None:
                self._steps.begin(place, Step.SUMMARIZE)
                self._summarize(place, context, plan, candidate, measured, decision)
            if lane.last is None or not lane.last.is_open:  # what was not tried has taught nothing
                if plan.follows and lane.last is not None and lane.last.outcome is not Outcome.MODEL_FAILED:
                    self._journal.credit(plan.follows, decision.improved, f"{lane.last.id}-followed")
                reflexion = self._reflect(place, context, plan, lane, decision)
        assert lane.last is not None, "a lane that came this far has tried something"
        lane.seconds += time.monotonic() - began
        spent = self._spent(lane, open_lanes)
        attempt = lane.last = replace(lane.last, decision=decision, reflexion=reflexion, spent=spent)
        if candidate is not None and measured is not None:
            self._measured[candidate.id] = attempt
        self._file_last(lane)
        self._tell(RoundEnded(attempt, decision))

    def _reflect(
        self, place: Place, context: RoundContext, plan: Plan, lane: Lane, decision: Decision
    ) -> Reflexion | None:
        self._steps.begin(place, Step.REFLECT)
        try:
            reflexion = self._proposer.reflector.reflect(context, plan, lane.candidate, lane.result, decision)
        except ModelError as error:
            self._steps.note(place, Step.REFLECT, f"no reflexion: {error}")
            self._steps.check_model(error)
            return None
        self._window.add(reflexion)
        self._steps.note(place, Step.REFLECT, reflexion.lesson)
        return reflexion

    def _spent(self, lane: Lane, open_lanes: Sequence[Lane]) -> Spent | None:
        """What a lane took, where several proposers take turns: of what its proposer cost and no lane has on file yet,
        an equal share, since one call may serve several lanes, and calls of a round that was cut served this one."""
        account = self._proposer.spent_usd
        if account is None or not lane.proposer:
            return None
        filed = [*self._history.attempts, *self._of_round]
        known = sum(each.spent.usd for each in filed if each.spent is not None and each.proposer == lane.proposer)
        sharing = sum(other.proposer == lane.proposer for other in open_lanes)
        return Spent(max(0.0, account(lane.proposer) - known) / sharing, lane.seconds)

    def _decide(self, lane: Lane) -> Decision:
        """Spends nothing, so it is done even where the run must stop."""
        decision, measured = self._state.decide(lane.measured), lane.measured
        if lane.plan is not None:
            self._steps.begin(lane.place, Step.DECIDE, f"{decision.verdict.value}: {decision.reason}", spends=False)
        if measured is not None and lane.candidate is not None and lane.last is not None:
            lane.last = self._measured[lane.candidate.id] = replace(lane.last, outcome=Outcome(decision.verdict.value))
            technique = lane.plan.technique if lane.plan is not None else ""
            before = self._state.best, self._state.counterpart
            self._state.adopt(lane.candidate, measured, decision, technique)
            if decision.improved and measured.refuted is not None:
                doubt = f"{lane.candidate.id} is the best, but {measured.rests_on}: {measured.refuted.reason}"
                self._tell(Notice(doubt, "warning"))
            if (self._state.best, self._state.counterpart) != before:
                self._file_best()
        return decision

    def _file_best(self) -> None:
        self._journal.best(self._state.best, self._state.best_result)
        self._journal.counterpart(self._state.counterpart)

    def _summarize(
        self, place: Place, context: RoundContext, plan: Plan, candidate: Candidate, measured: Measured,
        decision: Decision,
    ) -> None:  # fmt: skip
        if decision.improved:
            try:
                experience = self._proposer.summarizer.summarize(context, plan, candidate, measured, decision)
            except ModelError as error:
                self._steps.note(place, Step.SUMMARIZE, f"not remembered: {error}")
                self._steps.check_model(error)
                return
        else:  # the numbers say it all: no model is paid for it
            before, guard = context.parent_result, self._settings.guard
            noise = max(measured.spread, before.spread)
            faster = guard.decide(measured.latency_us, before.latency_us, noise).improved
            experience = measured_rejection(
                context, plan, candidate, measured, decision, self._today(), rejected=not faster
            )  # fmt: skip
        self._remember(experience, candidate, candidate.id, context.experiences)
        self._steps.note(place, Step.SUMMARIZE, f"remembered: {experience.title}")

    # --- evaluation -------------------------------------------------------------------------------

    def _measure_input(self) -> Evaluation:
        return self._evaluate(self._request(self._input), Place(BASELINE_ROUND))

    def _evaluate(self, request: EvaluationRequest, place: Place) -> Evaluation:
        began = time.monotonic()
        result = self._target.evaluate(request, self._steps.progress(place))
        if isinstance(result, Measured):  # the last check verifies once more
            at_the_gates = 1.0 if result.verified_full else more_at_the_gates(self._task, self._settings.secret_seeds)
            self._budget.reserve((time.monotonic() - began) * at_the_gates)
        return result

    def _request(
        self, candidate: Candidate, *, incumbent: Candidate | None = None, below_us: float | None = None,
        final: bool = False, known: tuple[KnownProgram, ...] = (), by_tool: bool = False,
    ) -> EvaluationRequest:  # fmt: skip
        seeds = tuple(secrets.randbelow(1 << 31) for _ in range(self._settings.secret_seeds))
        is_input = candidate is self._input
        original = None if is_input else self._input
        cores = None if is_input else self._state.baseline.cores
        types = None if is_input else self._state.baseline.output_types or None
        return EvaluationRequest(
            self._task, candidate, self._settings.limits, below_us, seeds, final, incumbent, original, is_input, cores,
            types, known, by_tool,
        )  # fmt: skip

    def _confirm_winner(self) -> str:
        """Every seed, and fresh ones, timed beside the input: the best and its counterpart; one that fails gives way to
        the next.

        Returns the id of the first best that failed, or nothing.

        It stays out for good: the journal says so, and a resumed run does not start from it again. What the input
        kernel fails as well does not count against a winner: the judge leaves it out, and it is said here.
        """
        state, lost = self._state, ""
        while (candidate := self._unconfirmed()) is not None:
            is_best = candidate is state.best
            self._tell(Notice(f"checking the winner {candidate.id} on every seed"))
            request = self._request(candidate, incumbent=self._input, final=True)
            result = self._evaluate(request, Place(self._settings.rounds + 1))
            if not isinstance(result, Measured):
                self._drop(candidate, result, Outcome(result.kind), explain(result))
                lost = lost or (candidate.id if is_best else "")
                continue
            if result.shared_faults and not state.baseline.shared_faults:
                self._tell(Notice(own_faults(result.shared_faults), "warning"))
            decision = state.against_input(result)
            if decision.improved:
                self._tell(LastCheck(candidate.id, result, True))
                self._confirmed[candidate.id] = result
                continue
            reason = f"beside the input kernel, {decision.reason}"
            self._drop(candidate, result, Outcome(decision.verdict.value), reason)
            lost = lost or (candidate.id if is_best else "")
        self._file_best()
        return lost

    def _unconfirmed(self) -> Candidate | None:
        """The best, or its counterpart, whose last check is due; those that passed have what that measured."""
        state = self._state
        for name, result in self._confirmed.items():
            state.confirm(name, result)
        other = state.counterpart
        winners = [state.best, *([other[0]] if other is not None else [])]
        due = [each for each in winners if each is not self._input and each.id not in self._confirmed]
        return due[0] if due else None

    def _remember_ways(self) -> None:
        """What an archive shows and no single change does: which changes, one after the other, led to its fastest."""
        for name in self._state.ways[:WAYS_REMEMBERED]:
            way: list[Attempt] = []
            at: str | None = name
            while at in self._measured:
                way.insert(0, self._measured[at])
                at = way[0].parent_id
            experience = way_experience(
                self._task.name, self._language, self._input.source, self._state.baseline, way, self._today()
            )
            if experience is not None and way[-1].candidate is not None:
                self._remember(experience, way[-1].candidate, f"{name}-way")

    def _remember(
        self, experience: Experience, of: Candidate, occasion: str, shown: tuple[Experience, ...] = ()
    ) -> None:
        """With the program and the shape that showed it."""
        evidence = (f"{of.content_hash} {self._task.full.describe()}",)
        self._journal.remember(replace(experience, evidence=evidence), occasion, shown)

    def _drop(self, candidate: Candidate, result: Evaluation, outcome: Outcome, reason: str) -> None:
        self._tell(LastCheck(candidate.id, result, False, reason))
        self._tell(Notice(f"{candidate.id} failed its last check and is dropped: {reason}", "warning"))
        summary = f"failed its last check: {reason}"
        attempt, measured = self._measured[candidate.id], dict(self._named_results())
        parent_us = measured.get(attempt.parent_id, self._state.baseline).latency_us
        if attempt.plan is not None:
            taken_for, refuted = refutation(
                self._task.name, self._language, attempt.plan, candidate, parent_us, measured[candidate.id], summary,
                self._today(),
            )  # fmt: skip
            self._remember(refuted, candidate, f"{candidate.id}-dropped", (taken_for,))
            if attempt.plan.follows and attempt.decision is not None and attempt.decision.improved:
                self._journal.credit(attempt.plan.follows, False, f"{candidate.id}-followed-dropped", instead=True)
        self._state.drop(candidate.id)
        corrected = replace(attempt, outcome=outcome, summary=summary, last_check=result, dropped_after=self._complete)
        self._history.correct(corrected)
        self._journal.attempt(corrected)

    def _named_results(self) -> list[tuple[str, Measured]]:
        return [(candidate.id, measured) for candidate, measured in self._state.measured]

    # --- what is known, and what is filed ---------------------------------------------------------

    def _context(self, number: int) -> RoundContext:
        state, settings, history = self._state, self._settings, self._history.attempts
        result = state.parent_result

        def choose() -> tuple[Experience, ...]:
            return self._journal.recall().retrieve(
                bottleneck=result.bottleneck.value,
                operators=self._language.operators(state.parent.source),
                limit=settings.experiences,
                machine=machine_and_toolchain(result.machine)[0],
                toolchain=machine_and_toolchain(result.machine)[1],
                kernel=self._task.name,
            )

        return RoundContext(
            number, self._task, state.parent, result, state.best, state.best_result,
            state.baseline.latency_us, self._language, history, self._window.entries, self._window.avoid,
            self._window.build_on, self._journal.shown(number, choose), settings.bans.banned(history, number),
            recurring_errors(history, number, least=settings.recurring_after), state.measured,
            rounds_left=max(0, self._settings.rounds - number), until=time.monotonic() + self._budget.seconds_left(),
        )  # fmt: skip

    def _file(self, attempt: Attempt) -> None:
        self._of_round.append(attempt)
        self._journal.attempt(attempt)

    def _file_last(self, lane: Lane) -> None:
        if lane.last is not None:
            attempt, lane.last = lane.last, None
            self._file(attempt)


def _counted(lanes: list[Lane]) -> list[Lane]:
    """Each knows how many there are: a round is complete when all of them are decided."""
    for lane in lanes:
        lane.lanes = len(lanes)
        if lane.last is not None:
            lane.last = replace(lane.last, lanes=len(lanes))
    return lanes


def _same_change(context: RoundContext, plan: Plan, lane: Lane) -> bool:
    other = lane.plan
    return other is not None and (context.parent.id, plan.technique, plan.title, plan.details) == (
        lane.context.parent.id, other.technique, other.title, other.details
    )  # fmt: skip


def _describe_profile(result: Measured) -> str:
    bounds = result.profile.bounds
    text = (
        f"{result.latency_us:,.1f} µs, {result.percent_of_peak:.1f} % of peak, "
        f"bound by {bounds.limiter} at {bounds.peak_us:,.1f} µs"
    )
    gaps = ", ".join(f"{gap.name} {gap.cost_us:,.1f} µs" for gap in result.profile.gaps[:3])
    return f"{text}; gaps: {gaps}" if gaps else text
