"""A long step says how far it is, in every view and in the log: nobody sits before a silent screen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from accelopt_core.evaluation import Step
from accelopt_core.loop.events import BudgetUpdate, Event, Notice, StepBegan, StepNote

FIRST_S = 5.0
EVERY_S = 10.0
"""While kernels are priced; where there is nothing new to say, each time twice as long as the last."""
_TICK_S = 0.5
_EVALUATING = (Step.VERIFY, Step.BENCHMARK)
"""Steps that price nothing, and say at most what they begin with."""


class Pricing(Protocol):
    """What a predictor says of its work; both only grow, but for what is given up before it has begun."""

    @property
    def asked(self) -> int:
        """Kernels that it was asked to price so far."""
        ...

    @property
    def priced(self) -> int:
        """Of those, the ones it is through with."""
        ...


class NothingPriced:
    """In place of a predictor, where there is none."""

    asked = priced = 0


@dataclass(frozen=True)
class _Work:
    """What is under way."""

    say: Callable[[str], None]
    began: float
    asked: int
    """What the predictor had been asked for when it began ..."""
    priced: int
    """... and was through with."""
    prices: bool
    """Else what the predictor does is other work's."""


class PlanningWatch:
    """A RunObserver that hears when planning and evaluating begin and end, and a thread that speaks meanwhile."""

    def __init__(
        self, tell: Callable[[Event], None], pricing: Pricing, *, first_s: float = FIRST_S, every_s: float = EVERY_S
    ) -> None:
        """`tell`: whoever is told; not this watch itself."""
        self._tell = tell
        self._pricing = pricing
        self._first_s, self._every_s = first_s, every_s
        self._work: _Work | None = None  # set as a whole: a signal's handler may tell something in the middle of this
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="planning watch", daemon=True)

    def __enter__(self) -> PlanningWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def tell(self, event: Event) -> None:
        if isinstance(event, StepBegan) and event.step is Step.PLAN:
            number, lane = event.round, event.lane
            self._begin(lambda line: self._tell(StepNote(number, Step.PLAN, line, lane)))
        elif isinstance(event, (StepBegan, StepNote)) and event.step in _EVALUATING:
            number, lane, step = event.round, event.lane, event.step
            self._begin(lambda line: self._tell(StepNote(number, step, line, lane)), prices=False)
        elif not isinstance(event, (Notice, BudgetUpdate)):  # which come in the middle of planning
            self._work = None

    @contextmanager
    def over(self, what: str) -> Iterator[None]:
        """For work that is no step: its lines begin with `what`."""
        self._begin(lambda line: self._tell(Notice(f"{what}: {line}")))
        try:
            yield
        finally:
            self._work = None

    def _begin(self, say: Callable[[str], None], *, prices: bool = True) -> None:
        self._work = _Work(say, time.monotonic(), self._pricing.asked, self._pricing.priced, prices)

    def _watch(self) -> None:
        work, due_s, pause_s, last = None, 0.0, 0.0, ""
        while not self._closed.wait(min(_TICK_S, self._every_s)):
            if work is not self._work:
                work, pause_s, last = self._work, self._every_s, ""
                due_s = self._first_s if work is None or work.prices else self._every_s
            if work is None or (age_s := time.monotonic() - work.began) < due_s:
                continue
            said = self._how_far(work)
            pause_s = self._every_s if said and said != last else 2 * pause_s
            due_s, last = age_s + pause_s, said
            if work is self._work:
                work.say(said or f"still at it, for {age_s:.0f} s")

    def _how_far(self, work: _Work) -> str:
        """Empty where nothing is priced."""
        if not work.prices:
            return ""
        priced = self._pricing.priced - work.priced
        return f"priced {priced} kernels" if self._pricing.asked - work.asked > priced >= 0 else ""
