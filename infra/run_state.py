"""What a watcher knows of a run: the events so far, folded into one state. No rendering, no clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from accelopt_core.candidate import Plan
from accelopt_core.evaluation import Evaluation, Measured
from accelopt_core.events import (
    BASELINE_ROUND,
    BaselineMeasured,
    BudgetUpdate,
    Event,
    Notice,
    PlanMade,
    RoundEnded,
    RoundStarted,
    RunEnded,
    RunStarted,
    StepBegan,
    StepNote,
)
from accelopt_core.ports import Step


@dataclass
class RunState:
    """Times are seconds of the clock whose readings `apply` is handed."""

    started: RunStarted | None = None
    started_at: float = 0.0
    baseline: Measured | None = None
    best: Measured | None = None
    best_round: int = BASELINE_ROUND
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
            case RoundStarted(round=number):
                self.round, self.round_began_at = number, at
                self.plan, self.step, self.detail = None, None, ""
            case StepBegan(round=number, step=step):
                self.final_check = self.started is not None and number > self.started.rounds
                if step is not self.step:
                    self.step_began_at = at
                self.step, self.detail = step, ""
            case StepNote(step=step, detail=detail):
                if step is not self.step:
                    self.step, self.step_began_at = step, at
                self.detail = detail
            case PlanMade(plan=plan):
                self.plan = plan
            case RoundEnded():
                self._end_round(event, at)
            case BudgetUpdate():
                self.budget = event
            case Notice():
                self.notices.append(event)
            case RunEnded():
                self.ended = event

    def _end_round(self, event: RoundEnded, at: float) -> None:
        self.rounds.append(event)
        self.round_seconds.append(at - self.round_began_at)
        if event.evaluation is not None:
            self.current, self.current_round = event.evaluation, event.attempt.round
        if event.decision.improved and isinstance(event.evaluation, Measured):
            self.best, self.best_round = event.evaluation, event.attempt.round
        self.step, self.detail = None, ""

    def seconds_left(self, now: float) -> float | None:
        """At most, going by the rounds so far; None before the first round has ended."""
        if self.started is None or not self.round_seconds or self.final_check or self.ended is not None:
            return None
        usual = _median(self.round_seconds)
        in_round = now - self.round_began_at if self.round > len(self.round_seconds) else 0.0
        left = max(0.0, (self.started.rounds - len(self.rounds)) * usual - in_round)
        if self.started.max_hours is not None:
            left = min(left, max(0.0, self.started_at + 3600 * self.started.max_hours - now))
        return left


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
