"""A folder as the model: each request is written as a file, and somebody, or something, writes the reply.

A request file is complete in itself. It says where the reply belongs; a reply is taken once it is there
and has stopped growing. The same request is never asked twice: a run that is resumed finds its replies.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from accelopt_core.ports import LanguageModel, ModelReply, ModelRequest, ModelUnreachable, Usage
from infra.llm.provider import Provider, ProviderSettings, flat_prompt
from infra.llm.recording import request_key
from infra.llm.retry import Stopping

LONGEST_REPLY_BYTES = 8 << 20
_REQUEST = re.compile(r"(\d{4})-[a-z]+-([0-9a-f]{12})\.request\.md")


class MailboxModel:
    def __init__(
        self,
        folder: Path,
        *,
        timeout_s: float = 86_400.0,
        poll_s: float = 0.5,
        settle_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        on_wait: Callable[[str], None] = lambda line: None,
        stopping: Stopping | None = None,
    ) -> None:
        """`settle_s`: how long a reply must stay as it is before it is taken, for writers that do not rename.

        `on_wait` is told one line for each request that awaits its reply. Raises ModelUnreachable when the
        folder cannot be made.
        """
        self._folder = folder
        self._timeout_s = timeout_s
        self._poll_s = poll_s
        self._settle_s = settle_s
        self._sleep = sleep
        self._clock = clock
        self._on_wait = on_wait
        self._stopping = stopping or Stopping()
        self._numbering = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModelUnreachable(f"mailbox {folder}: {error.strerror}: choose another folder") from error

    @property
    def name(self) -> str:
        return "mailbox"

    def complete(self, request: ModelRequest) -> ModelReply:
        """Raises ModelUnreachable when no reply came in time, and Stop."""
        with self._numbering:  # several may be asked at once
            stem = self._stem(request)
            reply_path = self._folder / f"{stem}.reply.md"
            request_path = self._folder / f"{stem}.request.md"
            if not request_path.exists():
                _write(request_path, _request_text(request, reply_path.name))
        text = self._await(reply_path, request_path)
        return ModelReply(text, "mailbox", Usage())

    def _stem(self, request: ModelRequest) -> str:
        """The number of the request in order of asking, its role, and what identifies it."""
        key = request_key(request)[:12]
        number = 0
        for path in self._folder.iterdir():
            match = _REQUEST.fullmatch(path.name)
            if match and match.group(2) == key:
                return path.name.removesuffix(".request.md")
            number = max(number, int(match.group(1))) if match else number
        return f"{number + 1:04d}-{request.role.value}-{key}"

    def _await(self, path: Path, request_path: Path) -> str:
        deadline = self._clock() + self._timeout_s
        told = False
        state: tuple[int, int] | None = None
        since = self._clock()
        while True:
            now = self._clock()
            seen = _state(path)
            if seen != state:
                state, since = seen, now
            elif seen is not None and seen[0] > 0 and now - since >= self._settle_s:
                text = _read(path)
                if text.strip():
                    return text
            if now >= deadline:
                raise ModelUnreachable(
                    f"mailbox: no reply to {request_path} within {self._timeout_s:g} s: write it to {path.name}"
                )
            if not told:
                self._on_wait(f"mailbox: {request_path} awaits its reply in {path.name}")
                told = True
            self._stopping.check()
            self._sleep(self._poll_s)


def _request_text(request: ModelRequest, reply_name: str) -> str:
    return (
        f"<!-- You are the {request.role.value} of this run. Write your whole reply, and only the reply, to the file "
        f"{reply_name} in this folder; write it elsewhere and rename it, or write it in one go: it is taken as soon as "
        "it has stopped growing. Everything you need is in this file; several requests may await their replies at "
        f"once, in any order. -->\n\n{flat_prompt(request)}"
    )


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LONGEST_REPLY_BYTES).decode("utf-8", "replace")


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half a request."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _build(settings: ProviderSettings) -> LanguageModel:
    if settings.mailbox is None:
        raise ModelUnreachable("mailbox: no folder: give one for requests and replies")
    patience = settings.patience
    return MailboxModel(settings.mailbox, on_wait=patience.on_wait, stopping=patience.stopping)


PROVIDER = Provider("mailbox", _build, needs=("mailbox",), named_by="mailbox")
