"""A limit to the time that a piece of this process's own work takes, whatever it is at."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def within(limit_s: float, late: Callable[[], BaseException]) -> Iterator[None]:
    """Raises `late()` in the block when it takes longer, between two steps of Python's; one inside another is kept.

    By a signal, which only the main thread of a process gets: in another thread the block has no limit of its own,
    and whoever started the process has one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise late()

    began = time.monotonic()
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    if 0 < left_s <= limit_s:  # the outer one is due first
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(limit_s, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left_s - (time.monotonic() - began)))
