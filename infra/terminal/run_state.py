"""What a watcher knows of a run: the events so far, folded into one state. No rendering, no clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rich.console import Console
from rich.text import Text

from accelopt_core.candidate import Plan
from accelopt_core.evaluation import Evaluation, Measured, Step, explain, timed
from accelopt_core.loop.events import (
    BASELINE_ROUND,
    BaselineMeasured,
    BudgetUpdate,
    Event,
    LastCheck,
    Notice,
    PlanMade,
    RoundEnded,
    RoundStarted,
    RunEnded,
    RunStarted,
    StepBegan,
    StepNote,
)
from infra.runs.lineage import INPUT, Lineage
from infra.terminal import wording


@dataclass
class LaneState:
    """One of several candidates that are tried side by side."""

    plan: Plan | None = None
    step: Step | None = None
    step_began_at: float = 0.0
    detail: str = ""


@dataclass
class RunState:
    """Times are seconds of the clock whose readings `apply` is handed."""

    started: RunStarted | None = None
    started_at: float = 0.0
    baseline: Measured | None = None
    best: Measured | None = None
    best_round: int = BASELINE_ROUND
    best_id: str = INPUT
    parent_id: str = INPUT
    """What the round under way started from."""
    dropped: set[str] = field(default_factory=set)
    """Winners that failed their last check."""
    lanes: dict[str, LaneState] = field(default_factory=dict)
    """Of the round under way, by name; none where a round tries one candidate."""
    current: Evaluation | None = None
    """The newest evaluation of a candidate."""
    current_round: int = BASELINE_ROUND
    round: int = BASELINE_ROUND
    round_began_at: float = 0.0
    round_seconds: list[float] = field(default_factory=list)
    plan: Plan | None = None
    final_check: bool = False
    """The rounds are over, and the winner is verified once more."""
    step: Step | None = None
    step_began_at: float = 0.0
    detail: str = ""
    rounds: list[RoundEnded] = field(default_factory=list)
    budget: BudgetUpdate = field(default_factory=BudgetUpdate)
    notices: list[Notice] = field(default_factory=list)
    ended: RunEnded | None = None

    def apply(self, event: Event, at: float) -> None:
        match event:
            case RunStarted():
                self.started, self.started_at = event, at
            case BaselineMeasured(result=result):
                self.baseline = self.best = result
                self.step, self.detail = None, ""
            case RoundStarted(round=number, parent_id=parent):
                self.round, self.round_began_at, self.parent_id = number, at, parent
                self.plan, self.step, self.detail = None, None, ""
                self.lanes = {}
            case StepBegan(round=number, step=step, lane=lane):
                self.final_check = self.started is not None and number > self.started.rounds
                self._step(step, "", lane, at)
            case StepNote(step=step, detail=detail, lane=lane):
                self._step(step, detail, lane, at)
            case PlanMade(plan=plan, lane=lane):
                self.plan = plan
                if lane:
                    self.lanes.setdefault(lane, LaneState()).plan = plan
            case RoundEnded():
                self._end_round(event, at)
            case LastCheck(candidate_id=candidate, evaluation=evaluation, passed=passed):
                if passed and isinstance(evaluation, Measured) and candidate == self.best_id:
                    self.best = evaluation
                elif not passed:
                    self._drop(candidate)
            case BudgetUpdate():
                self.budget = event
            case Notice():
                self.notices.append(event)
            case RunEnded():
                self.ended = event

    def _step(self, step: Step, detail: str, lane: str, at: float) -> None:
        if step is not self.step:
            self.step, self.step_began_at = step, at
        self.detail = detail
        if lane:
            own = self.lanes.setdefault(lane, LaneState())
            if step is not own.step:
                own.step, own.step_began_at = step, at
            own.detail = detail

    def _end_round(self, event: RoundEnded, at: float) -> None:
        number, attempt = event.attempt.round, event.attempt
        if number == self.round:  # not one of before a resumed run was interrupted
            if self.rounds and self.rounds[-1].attempt.round == number:
                self.round_seconds.pop()
            self.round_seconds.append(at - self.round_began_at)
        self.rounds.append(event)
        if event.attempt.evaluation is not None:
            self.current, self.current_round = attempt.evaluation, number
        # What a resumed run tells of a winner that was dropped since is not the best any more.
        if event.decision.improved and self._may_be_best(attempt.measured) and attempt.last_check is None:
            self.best, self.best_round, self.best_id = attempt.measured, number, attempt.id
        self.step, self.detail = None, ""
        self.lanes.pop(attempt.lane, None)

    def _drop(self, candidate_id: str) -> None:
        """The fastest of the others is the best, as far as anybody knows before its own last check."""
        self.dropped.add(candidate_id)
        self.best, self.best_round, self.best_id = self.baseline, BASELINE_ROUND, INPUT
        for ended in self.rounds:
            result, name = ended.attempt.measured, ended.attempt.id
            if result is not None and self._may_be_best(result) and name not in self.dropped:
                if self.best is None or result.latency_us < self.best.latency_us:
                    self.best, self.best_round, self.best_id = result, ended.attempt.round, name

    def _may_be_best(self, result: Measured | None) -> bool:
        """A simulated latency that rests on a contested fact is no best (`SearchState`)."""
        if result is None or self.baseline is None:
            return False
        return not (result.simulated and result.contested_beside(self.baseline))

    @property
    def rounds_done(self) -> int:
        return len({ended.attempt.round for ended in self.rounds})

    @property
    def lineage(self) -> Lineage | None:
        """None before the input kernel is measured."""
        if self.baseline is None:
            return None
        attempts = [ended.attempt for ended in self.rounds]
        return Lineage(self.baseline.latency_us, attempts, self.best_id, self.dropped)

    def seconds_left(self, now: float) -> float | None:
        """At most, going by the rounds so far; None before the first round has ended."""
        if self.started is None or not self.round_seconds or self.final_check or self.ended is not None:
            return None
        usual = _median(self.round_seconds)
        under_way = all(ended.attempt.round != self.round for ended in self.rounds)
        in_round = now - self.round_began_at if under_way else 0.0
        left = max(0.0, (self.started.rounds - self.rounds_done) * usual - in_round)
        if self.started.max_hours is not None:
            hours = self.started.max_hours - self.started.hours_before
            left = min(left, max(0.0, self.started_at + 3600 * hours - now))
        return left


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


QUIET_S = 20.0
"""After so long without a line the step at hand is named: long work shows that it goes on."""


class PlainProgress:
    """A line for the input kernel, one for each round or lane of it, one for the last check; and what must be known."""

    def __init__(self, console: Console, *, quiet: bool = False, now: Callable[[], datetime] = datetime.now) -> None:
        self._console = console
        self._quiet = quiet
        self._now = now
        self._state = RunState()
        self._last = now()

    def tell(self, event: Event) -> None:
        self._state.apply(event, 0.0)
        line = self._line(event)
        if line is None and isinstance(event, (StepBegan, StepNote)):
            is_due = (self._now() - self._last).total_seconds() >= QUIET_S
            line = f"{self._where(event.round, event.lane)}: {self._under_way(event)}" if is_due else None
        if line is None or (self._quiet and not (isinstance(event, Notice) and event.level == "warning")):
            return
        # One event is one line of any length: a log that is wrapped at 80 columns cannot be searched.
        text = Text(f"{self._now():%H:%M:%S}  {wording.one_line(line)}")
        self._console.print(text, soft_wrap=True, highlight=False)
        self._console.file.flush()
        self._last = self._now()

    def close(self) -> None:
        self._console.file.flush()

    def _line(self, event: Event) -> str | None:
        match event:
            case RunStarted():
                return (
                    f"run {event.run_id}: {event.task} ({event.shape}) on {event.target.name}, proposed by "
                    f"{event.proposer}, at most {event.rounds} round{'s' if event.rounds > 1 else ''}"
                    f"{f' of {event.width} candidates' if event.width > 1 else ''}, "
                    f"experiences in memory: {event.experiences}"
                )
            case BaselineMeasured(result=result):
                rests_on = f"; {result.likely.sure}" if result.likely is not None else ""
                caveat = f"; {result.caveat}" if result.caveat else ""
                return f"input kernel: {explain(result)}{rests_on}{caveat}"
            case RoundEnded(attempt=attempt):
                label = wording.outcome_words(attempt.outcome).label
                best = self._state.best
                so_far = f"; best {self._label()}{timed(best)}" if best else ""
                if best and self._state.baseline:
                    so_far += f" ({wording.speedup(self._state.baseline.latency_us, best.latency_us)})"
                measured = f" at {self._label()}{timed(attempt.measured)}" if attempt.measured else ""
                change = (
                    f": {wording.one_line(attempt.title or attempt.summary, 120)}"
                    if attempt.title or attempt.summary
                    else ""
                )
                return f"{self._where(attempt.round, attempt.lane)}: {label}{measured}{so_far}{self._spent()}{change}"
            case LastCheck(candidate_id=winner, evaluation=evaluation, passed=True):
                return f"{winner} passed its last check: {explain(evaluation)}"
            case LastCheck():
                return None  # a warning says it
            case Notice(message=message, level=level):
                return f"{'warning: ' if level == 'warning' else ''}{message}"
            case _:
                return None  # steps are named when they take long; how it ended, the report says

    def _spent(self) -> str:
        spent = self._state.budget
        if spent is None or not (spent.usage.total_tokens or spent.unpriced_calls):
            return ""
        return f"; tokens {wording.tokens(spent.usage)}; cost {wording.cost(spent.cost_usd, spent.unpriced_calls)}"

    @staticmethod
    def _under_way(event: StepBegan | StepNote) -> str:
        return event.step.value if isinstance(event, StepBegan) else f"{event.step.value}: {event.detail}"

    def _where(self, number: int, lane: str = "") -> str:
        if number == BASELINE_ROUND:
            return "input"
        total = self._state.started.rounds if self._state.started else number
        return f"round {number}{lane}/{total}" if number <= total else "final check"

    def _label(self) -> str:
        return self._state.baseline.label if self._state.baseline is not None else ""
