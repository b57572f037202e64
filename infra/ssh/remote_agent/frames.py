"""Frames out, words in.

A frame is one JSON line (`frame`: its kind, `bytes`: how much follows, and its fields) and then as many raw bytes.
A word is one line on standard input.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any


class Refused(Exception):
    """The request cannot be met; `code` is for the program, the message for the person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Wire:
    def __init__(self, heartbeat_s: float, on_broken: Callable[[], None]) -> None:
        """heartbeat_s: something is said at least this often; the client takes a long silence for a dead link.
        on_broken: called when nobody reads any more, just before this process ends.
        """
        self._heartbeat_s = heartbeat_s
        self._on_broken = on_broken
        self._last = time.monotonic()
        self._words: list[bytes] = []
        self._gone = False
        self._changed = threading.Condition()

    def say(self, frame: str, payload: bytes = b"", **fields: Any) -> None:
        header = dict(fields, frame=frame, bytes=len(payload))
        try:
            write_all(1, json.dumps(header).encode() + b"\n" + payload)
        except OSError:
            self._on_broken()
            os._exit(1)
        self._last = time.monotonic()

    def beat(self) -> None:
        """Say that this side is alive, if nothing else was said for a while."""
        if time.monotonic() - self._last > self._heartbeat_s:
            self.say("alive")

    def listen(self) -> None:
        """From here on notice words and the end of the stream. Starts a thread, so never before a fork."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with os.fdopen(0, "rb", closefd=False) as stream:
            for line in stream:
                with self._changed:
                    self._words.append(line.strip())
                    self._changed.notify_all()
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    @property
    def gone(self) -> bool:
        return self._gone

    def pause(self, seconds: float) -> None:
        """Sleep, but not past the moment the listener goes away."""
        with self._changed:
            if not self._gone:
                self._changed.wait(seconds)

    def word(self, limit_s: float) -> bytes | None:
        """The next word; None when there is none in time, or nobody to say one."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not self._words and not self._gone:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            return self._words.pop(0) if self._words else None


def take(size: int) -> bytes:
    """Exactly `size` bytes of standard input."""
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            os._exit(1)  # cut off in the middle of the request: nothing was begun
        data += chunk
    return data


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
