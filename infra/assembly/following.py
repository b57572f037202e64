"""Who follows a run, and who may end it: a person at the command line, or a caller of the library."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from accelopt_core.loop import events
from infra.llm.retry import Stopping
from infra.runs.event_log import Observers
from infra.terminal.dashboard import View, open_view


@dataclass(frozen=True)
class Following:
    """Who follows a run beside its log, and who may end it."""

    open_view: Callable[[str], View] = open_view
    """By the setting `view`."""
    should_stop: Callable[[], bool] = lambda: False
    """Asked after each step; True ends the run there, saved, as Ctrl-C does."""
    takes_signals: bool = True
    """Whether Ctrl-C and SIGTERM let the step finish, and end the run then."""


A_PERSON = Following()
"""At the command line."""


@contextmanager
def interruptible(observer: Observers, following: Following, stopping: Stopping) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the step finish; the second stops at once. SIGTERM, which nobody may be there to repeat,
    does not wait for a model to finish it."""
    asked = False
    if not following.takes_signals:
        yield following.should_stop
        return

    def ask(number: int) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        if number == signal.SIGTERM:
            stopping.asked = True
        again = "the same signal" if stopping.asked else "Ctrl-C"
        step = f"this step ({observer.step.value})" if observer.step is not None else "this step"
        observer.tell(events.Notice(f"finishing {step}, then saving; {again} again stops at once", "warning"))

    with ending_signals(ask):
        yield lambda: asked or following.should_stop()


@contextmanager
def unhurried(following: Following = A_PERSON) -> Iterator[None]:
    """Ctrl-C changes nothing any more: what is left takes a moment, and is what the run was for."""
    with ending_signals(lambda number: None) if following.takes_signals else nullcontext():
        yield


@contextmanager
def ending_signals(heard: Callable[[int], object]) -> Iterator[None]:
    """Meanwhile `heard` is told of Ctrl-C and SIGTERM, by number, and nothing else comes of them."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, frame: heard(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
