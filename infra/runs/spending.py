"""One budget over dollars, tokens, device minutes and hours."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from accelopt_core.loop.events import BudgetUpdate, RunObserver
from infra.llm.ledger import Ledger, LedgerEntry

MOST_RESERVED = 0.25
"""Of the hours: an evaluation may have waited for a device."""


@dataclass(frozen=True)
class TimeLimits:
    hours: float | None = None
    device_minutes: float | None = None


class Spending:
    """`accelopt_core.ports.Budget` for what the ledger does not guard: time. Tells every change."""

    def __init__(
        self,
        limits: TimeLimits,
        observer: RunObserver,
        *,
        seconds_before: float = 0.0,
        on_time: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seconds_before`: what an interrupted run had used when it ended; `on_time` is told all that is used so far,
        before every step, so that a run that is killed knows it when it goes on."""
        self._limits = limits
        self._observer = observer
        self._on_time = on_time
        self._clock = clock
        self._began = clock() - seconds_before
        self._reserved_s = 0.0
        self._device_s = 0.0
        self._device_lock = threading.Lock()
        self._ledger: Ledger | None = None

    def attach(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def exhausted(self) -> str | None:
        self.note_time()
        minutes = self._device_s / 60
        if self.seconds_left() <= 0:
            kept = f", but for {self._reserved_s:.0f} s for the last check" if self._reserved_s else ""
            return f"the {self._limits.hours:g} hours are used up{kept}"
        if self._limits.device_minutes is not None and minutes >= self._limits.device_minutes:
            return f"the {self._limits.device_minutes:g} device minutes are used up"
        return None

    def seconds_left(self) -> float:
        if self._limits.hours is None:
            return math.inf
        return max(0.0, 3600 * self._limits.hours - self._reserved_s - (self._clock() - self._began))

    def reserve(self, seconds: float) -> None:
        """The most that was asked for, and at most a quarter of the hours."""
        most = MOST_RESERVED * 3600 * (self._limits.hours or 0.0)
        self._reserved_s = max(self._reserved_s, min(seconds, most))

    def note_time(self) -> float:
        """The seconds used so far, noted down."""
        seconds = self._clock() - self._began
        self._on_time(seconds)
        return seconds

    def model_called(self, entry: LedgerEntry) -> None:
        self._tell()

    def device_used(self, seconds: float) -> None:
        with self._device_lock:
            self._device_s += seconds
        self._tell()

    def _tell(self) -> None:
        total = self._ledger.total if self._ledger is not None else None
        if total is None:
            self._observer.tell(BudgetUpdate(device_s=self._device_s))
        else:
            self._observer.tell(BudgetUpdate(total.usage, total.cost_usd, total.unpriced_calls, self._device_s))
