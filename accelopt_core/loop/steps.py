"""The steps of a run as they are told, and the places between them where it may stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from accelopt_core.evaluation import Step
from accelopt_core.loop.events import BASELINE_ROUND, Ending, RunObserver, StepBegan, StepNote
from accelopt_core.ports import Budget, ModelUnusable, Progress


class Stop(Exception):
    """Ends the run from inside a round, between two steps."""

    def __init__(self, ending: Ending, reason: str) -> None:
        super().__init__(reason)
        self.ending = ending
        self.reason = reason


@dataclass(frozen=True)
class Place:
    """A round, and the lane where it tries several candidates side by side."""

    round: int
    lane: str = ""


class Steps:
    def __init__(self, observer: RunObserver, budget: Budget, interrupted: Callable[[], bool]) -> None:
        self._tell = observer.tell
        self._budget = budget
        self._interrupted = interrupted
        self._halted = threading.Event()

    def begin(self, place: Place, step: Step, detail: str = "", *, spends: bool = True) -> None:
        """Raises Stop where the run must not go on; a step that spends nothing is done in any case."""
        if spends:
            self.check(place)
        self._tell(StepBegan(place.round, step, place.lane))
        if detail:
            self.note(place, step, detail)

    def note(self, place: Place, step: Step, detail: str) -> None:
        self._tell(StepNote(place.round, step, detail, place.lane))

    def progress(self, place: Place) -> Progress:
        """What a target is handed: it tells each of its steps once, with their details."""
        seen: list[Step] = []

        def progress(step: Step, detail: str) -> None:
            if seen[-1:] != [step]:
                seen.append(step)
                self._tell(StepBegan(place.round, step, place.lane))
            if detail:
                self.note(place, step, detail)

        return progress

    def check(self, place: Place) -> None:
        """Where a run may stop. What it has earned so far is on disk by then."""
        if place.round == BASELINE_ROUND:
            return
        if self._interrupted():
            raise Stop(Ending.INTERRUPTED, "interrupted")
        if self._halted.is_set():
            raise Stop(Ending.FAILED, "another candidate of this round could not be evaluated")
        exhausted = self._budget.exhausted()
        if exhausted is not None:
            raise Stop(Ending.BUDGET, exhausted)

    def check_model(self, error: Exception) -> None:
        """Raises Stop where no later question would be answered either."""
        if isinstance(error, ModelUnusable):
            raise Stop(Ending.FAILED, str(error)) from error

    def halt(self) -> None:
        """The other lanes end at their next step: one has met an error that ends the run."""
        self._halted.set()
