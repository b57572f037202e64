"""Commands and questions on this machine: processes of a tree of ours, which are ended with all that they started.

What the local engine does, and what a node of a cluster does: there this file runs from the tree that was sent.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from accelopt_core.judging.orphans import end_with_parent
from infra.engines.engine import PARENT, SESSION, WORK, Command, Completed
from infra.engines.fork_server import ForkServer, ForkServerGone
from infra.isolation.sandbox import ONE_THREAD, kill_group, scrubbed_environment

log = logging.getLogger(__name__)

LAST_WORDS = 300
"""Characters of a process's last line."""


class _Process(Protocol):
    """As `subprocess.Popen` has it, with text."""

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float | None = None) -> int: ...


@dataclass(frozen=True)
class _Started:
    """A process in a folder of its own."""

    process: _Process
    stdin: IO[str]
    stdout: IO[str]
    work: Path
    errors: IO[bytes]

    def give(self, line: str) -> None:
        """One that is gone already says by how it ended what became of it."""
        assert "\n" not in line
        with suppress(OSError):
            self.stdin.write(f"{line}\n" if line else "")
            self.stdin.close()

    def end(self) -> None:
        kill_group(self.process.pid)
        self.process.wait()
        for each in (self.stdin, self.stdout, self.errors):
            with suppress(OSError):  # what was not written to one that is gone
                each.close()
        shutil.rmtree(self.work, ignore_errors=True)


class Processes:
    """Starts processes of `tree`, in folders below `folder`. Several threads may use it; `close` ends what they do."""

    def __init__(
        self,
        tree: Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        sessions: Path | None = None,
        end_with_this_one: bool = False,
    ) -> None:
        """environment: of every process, beside the few variables that a judge keeps. sessions: where folders of
        sessions lie, if not in `folder`. end_with_this_one: also commands that do not see to it themselves."""
        self._tree = tree
        self._folder = folder
        self._sessions = sessions or folder
        self._environment = dict(environment or {})
        self._dies_with = os.getpid() if end_with_this_one else None
        self._groups: set[int] = set()
        self._starter = ThreadPoolExecutor(1, "starter")
        """Judges end with the thread that started them, and commands come from threads that do not last."""
        self._server: tuple[str, ForkServer] | None = None
        """What forks processes, and for which commands; the starter's."""
        self._may_fork = sys.platform == "linux"
        """Until it shows that it cannot be done."""
        self._closing = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def carry_out(self, command: Command, on_line: Callable[[str], None]) -> Completed:
        """Raises OSError where it cannot be started, and ProcessesClosed after `close`."""
        began = time.monotonic()
        try:
            starting = self._starter.submit(self._start, command)
        except RuntimeError:
            raise ProcessesClosed("the run has ended, and its processes with it") from None
        started = starting.result()
        try:
            printed: list[str] = []

            def hear(line: str) -> None:
                printed.append(line)
                if command.collect:
                    on_line(line)

            started.give(command.input)
            status, late = self._followed(started, command.limit_s, hear)
            result = _collected(started.work / command.collect) if command.collect else "".join(printed)
            late = late and (result is None or not command.collect)
            last_words = _last_words(started.errors) or "no message"
            return Completed(status, result, last_words, late, time.monotonic() - began)
        finally:
            started.end()

    def _start(self, command: Command) -> _Started:
        """In the starter's thread."""
        work = Path(tempfile.mkdtemp(prefix="job-", dir=self._folder))
        for name, text in command.files.items():
            (work / name).write_text(text, encoding="utf-8")
        environment = scrubbed_environment(
            {**ONE_THREAD, "TMPDIR": str(work), **self._environment, **command.environment}
        )
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        while (server := self._server_for(command)) is not None:
            places = self._places(command, work, server.pid)
            try:
                forked = server.start([_placed(word, places) for word in command.argv[2:]], environment, errors)
            except ForkServerGone as gone:
                self._lose_server(str(gone))
            else:
                return _Started(forked, forked.stdin, forked.stdout, work, errors)
        places, parent = self._places(command, work, os.getpid()), self._dies_with
        process = subprocess.Popen(
            [sys.executable, *(_placed(word, places) for word in command.argv)],
            cwd=self._tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            text=True,
            preexec_fn=None if parent is None else lambda: end_with_parent(parent),
            env=environment,
        )
        assert process.stdin is not None and process.stdout is not None
        return _Started(process, process.stdin, process.stdout, work, errors)

    def _places(self, command: Command, work: Path, parent: int) -> dict[str, str]:
        session = self._sessions / f"session-{command.session}"
        return {WORK: str(work), SESSION: str(session), PARENT: str(parent)}

    def _server_for(self, command: Command) -> ForkServer | None:
        """What forks its process; None for one that is to be started."""
        if not (self._may_fork and command.loads):
            return None
        kind = json.dumps([command.loads, sorted(command.environment.items())])
        if self._server is not None and self._server[0] != kind:
            self._end_server()
        if self._server is None:
            environment = {**ONE_THREAD, "TMPDIR": str(self._folder), **self._environment, **command.environment}
            self._server = kind, ForkServer(self._tree, command.loads, scrubbed_environment(environment))
        return self._server[1]

    def _lose_server(self, why: str) -> None:
        """One that had forked before was ended by somebody, and the next is as good; else what a process needs does
        not load, or cannot be forked: it is started by itself, which takes longer, and says what is wrong."""
        log.info("the process that forks others is gone: %s", why)
        assert self._server is not None
        self._may_fork = self._server[1].has_forked
        self._end_server()

    def _end_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server[1].close()

    def _followed(self, started: _Started, limit_s: float, hear: Callable[[str], object]) -> tuple[int, bool]:
        """Its exit status, and whether it was ended at its limit."""
        process = started.process
        self._groups.add(process.pid)
        if self._closed:  # while it was starting
            kill_group(process.pid)
        overdue = threading.Timer(limit_s, kill_group, (process.pid,))
        overdue.start()
        try:
            for line in started.stdout:
                hear(line)
            status = process.wait()
        finally:
            late = not overdue.is_alive()
            overdue.cancel()
            self._groups.discard(process.pid)
            kill_group(process.pid)
            process.wait()
        return status, late

    def close(self) -> None:
        with self._closing:
            first, self._closed = not self._closed, True
        for group in list(self._groups):
            kill_group(group)
        if first:
            self._starter.submit(self._end_server).result()
            self._starter.shutdown()


class ProcessesClosed(Exception):
    """Nothing is started any more."""


class KeptProcess:
    """A process that answers lines. Ends when its input does, so also when this process is killed."""

    def __init__(
        self,
        what: str,
        tree: Path,
        argv: tuple[str, ...],
        first: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """what: for messages; first: goes with the first question."""
        self._what = what
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process does: see close
        self._process = subprocess.Popen(
            [sys.executable, *argv], cwd=tree, env=scrubbed_environment(environment or {}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            start_new_session=True,  # Ctrl-C is for the run, which ends its workers itself
        )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input: IO[str] = self._process.stdin
        self._output: IO[str] = self._process.stdout
        self._first = dict(first)

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Raises KeptProcessEnded."""
        try:
            self._input.write(json.dumps({**self._first, **job}) + "\n")
            self._input.flush()
            self._first = {}
            line = self._output.readline()
        except (OSError, ValueError):  # it is gone, or was closed
            line = ""
        if not line:
            raise KeptProcessEnded(f"{self._what} ended: {self._last_words()}")
        said: dict[str, Any] = json.loads(line)
        return said

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _last_words(self) -> str:
        return _last_words(self._errors) or f"exit status {self._process.poll()}"


class KeptProcessEnded(Exception):
    """It answers no more. One line."""


def _collected(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _placed(word: str, places: Mapping[str, str]) -> str:
    for name, path in places.items():
        word = word.replace(name, path)
    return word


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    return last_line(errors.read())[:LAST_WORDS]


def last_line(said: bytes) -> str:
    """Of what a process wrote to stderr; empty where that was nothing."""
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
