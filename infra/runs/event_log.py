"""run.log: every event of a run as one JSON object per line, for `grep` and `jq`; nothing is read back from it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from accelopt_core.evaluation import Step
from accelopt_core.loop.events import Event, RoundEnded, RunObserver, StepBegan
from infra.journal import explained, utc_now
from infra.records import to_document


class EventLog:
    """A RunObserver. A log that cannot be written must not end a run, so after a first failure it keeps quiet."""

    def __init__(self, path: Path, *, now: Callable[[], datetime] = utc_now) -> None:
        """Raises JournalError when the file cannot be opened."""
        self._now = now
        with explained(path, "open"):
            self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed by close)
        self.failure: OSError | None = None

    def tell(self, event: Event) -> None:
        document = to_document(event)
        if isinstance(event, RoundEnded):  # by name: the run's folder has the kernel and its evaluation
            document["attempt"] |= {"candidate": event.attempt.id, "evaluation": None, "last_check": None}
            document["attempt"]["latency_us"] = event.attempt.latency_us
        self.write(type(event).__name__, document)

    def trace(self, text: str) -> None:
        """A stack trace: the user sees one line, the log has the rest."""
        self.write("Trace", {"text": text})

    def write(self, name: str, fields: dict[str, Any]) -> None:
        if self.failure is not None:
            return
        try:
            self._file.write(json.dumps({"at": self._now().isoformat(), "event": name, **fields}) + "\n")
        except OSError as error:
            self.failure = error

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            self.failure = self.failure or error

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Observers:
    """Tells several, the first one first, and one event after the other, whichever thread it comes from."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = observers
        self.step: Step | None = None
        """The last that began."""
        self._lock = threading.RLock()  # the handler of Ctrl-C may tell something in the middle of telling

    def tell(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, StepBegan):
                self.step = event.step
            for observer in self._observers:
                observer.tell(event)
