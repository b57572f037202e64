"""Waiting for a model no longer than its run is wanted: a reply may take minutes, and a person's in a mailbox a day."""

from __future__ import annotations

import importlib
import importlib.util
import queue
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from accelopt_core.loop.events import Ending
from accelopt_core.loop.steps import Stop

T = TypeVar("T")

POLL_S = 0.1


class Stopping:
    """Whether the run is to end, set by a signal's handler and looked at by whoever waits."""

    def __init__(self) -> None:
        self.asked = False  # no lock and no event: a handler may run while this very thread holds one

    def check(self) -> None:
        """Raises Stop once the run is to end."""
        if self.asked:
            raise Stop(Ending.INTERRUPTED, "interrupted")

    def sleep(self, seconds: float) -> None:
        """Raises Stop."""
        until = time.monotonic() + seconds
        self.check()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_S))
            self.check()

    def answered(self, ask: Callable[[], T]) -> T:
        """What it returns or raises; it runs in a thread of its own, which is left behind where Stop is raised.

        For calls that nothing can end from outside, as a library's that waits for a socket.
        """
        said: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def listen() -> None:
            try:
                said.put((ask(), None))
            except BaseException as error:  # not this thread's to handle: whoever waits raises it again
                said.put((None, error))

        self.check()
        threading.Thread(target=listen, name="model call", daemon=True).start()
        while True:
            try:
                reply, error = said.get(timeout=POLL_S)
            except queue.Empty:
                self.check()
                continue
            if error is not None:
                raise error
            return reply  # type: ignore[return-value]  # of `ask`, which did not raise


@cache
def transport_errors() -> tuple[type[Exception], ...]:
    """Imports the library: call it when an SDK, which imports it too, is already loaded."""
    found: list[type[Exception]] = []
    for library in ("httpx", "httpx2"):
        if importlib.util.find_spec(library) is not None:
            module = importlib.import_module(library)
            found += [module.TransportError, module.StreamError, module.DecodingError]
    return tuple(found)
