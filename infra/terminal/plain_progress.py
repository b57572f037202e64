"""A run as plain lines, one per event, with the time of day: for pipes, CI and logs. Quiet: warnings only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from rich.console import Console
from rich.text import Text

from accelopt_core.evaluation import ROUND_STEPS, explain, timed
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
from infra.terminal import wording
from infra.terminal.run_state import RunState


class PlainProgress:
    def __init__(self, console: Console, *, quiet: bool = False, now: Callable[[], datetime] = datetime.now) -> None:
        self._console = console
        self._quiet = quiet
        self._now = now
        self._state = RunState()

    def tell(self, event: Event) -> None:
        self._state.apply(event, 0.0)
        line = self._line(event)
        if line is None or (self._quiet and not (isinstance(event, Notice) and event.level == "warning")):
            return
        # One event is one line of any length: a log that is wrapped at 80 columns cannot be searched.
        text = Text(f"{self._now():%H:%M:%S}  {wording.one_line(line)}")
        self._console.print(text, soft_wrap=True, highlight=False)
        self._console.file.flush()

    def close(self) -> None:
        self._console.file.flush()

    def _line(self, event: Event) -> str | None:
        match event:
            case RunStarted():
                return (
                    f"run {event.run_id}: {event.task} ({event.shape}) on {event.target.name}, proposed by "
                    f"{event.proposer}, at most {event.rounds} rounds"
                    f"{f' of {event.width} candidates' if event.width > 1 else ''}, "
                    f"{event.experiences} experiences in memory"
                )
            case BaselineMeasured(result=result):
                rests_on = f"; {result.likely.sure}" if result.likely is not None else ""
                caveat = f"; {result.caveat}" if result.caveat else ""
                return f"input kernel: {explain(result)}{rests_on}{caveat}"
            case RoundStarted(round=number, parent_id=parent, parent_us=us):
                return f"{self._where(number)}: from {parent} at {self._label()}{wording.latency(us)}"
            case StepBegan(round=number, step=step, lane=lane):
                return f"{self._where(number, lane)} [{ROUND_STEPS.index(step) + 1}/{len(ROUND_STEPS)}] {step.value}"
            case StepNote(round=number, step=step, detail=detail, lane=lane):
                return f"{self._where(number, lane)} {step.value}: {detail}"
            case PlanMade():
                return None  # the plan step's own note says it
            case RoundEnded(attempt=attempt):
                label = wording.outcome_words(attempt.outcome).label
                best = self._state.best
                so_far = f"; best {self._label()}{timed(best)}" if best else ""
                if best and self._state.baseline:
                    so_far += f" ({wording.speedup(self._state.baseline.latency_us, best.latency_us)})"
                measured = f" at {self._label()}{timed(attempt.measured)}" if attempt.measured else ""
                return f"{self._where(attempt.round, attempt.lane)}: {label}{measured}{so_far}"
            case LastCheck(candidate_id=winner, evaluation=evaluation, passed=True):
                return f"{winner} passed its last check: {explain(evaluation)}"
            case LastCheck():
                return None  # a warning says it
            case BudgetUpdate(usage=usage) if usage.total_tokens or event.unpriced_calls:
                return f"tokens {wording.tokens(usage)}; cost {wording.cost(event.cost_usd, event.unpriced_calls)}"
            case BudgetUpdate():
                return None
            case Notice(message=message, level=level):
                return f"{'warning: ' if level == 'warning' else ''}{message}"
            case RunEnded(ending=ending, reason=reason):
                return ending.value if reason == ending.value else f"{ending.value}: {reason}"

    def _where(self, number: int, lane: str = "") -> str:
        if number == BASELINE_ROUND:
            return "input"
        total = self._state.started.rounds if self._state.started else number
        return f"round {number}{lane}/{total}" if number <= total else "final check"

    def _label(self) -> str:
        return self._state.baseline.label if self._state.baseline is not None else ""
