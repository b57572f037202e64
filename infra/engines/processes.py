"""Commands and questions on this machine: processes of a tree of ours, which are ended with all that they started.

What the local engine does, and what a node of a cluster does: there this file runs from the tree that was sent.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from accelopt_core.judging.orphans import end_with_parent
from infra.engines.engine import PARENT, SESSION, WORK, Command, Completed
from infra.isolation.sandbox import ONE_THREAD, kill_group, scrubbed_environment

LAST_WORDS = 300
"""Characters of a process's last line."""


@dataclass(frozen=True)
class _Started:
    """A process in a folder of its own, which may wait for its line of input."""

    process: subprocess.Popen[str]
    work: Path
    errors: IO[bytes]
    waited: bool = False
    """It was started before there was a command for it."""

    def given(self, line: str) -> bool:
        """False: it is gone, before it had it."""
        assert self.process.stdin is not None and "\n" not in line
        try:
            self.process.stdin.write(f"{line}\n" if line else "")
            self.process.stdin.close()
        except OSError:
            return False
        return self.process.poll() is None

    def end(self) -> None:
        kill_group(self.process.pid)
        self.process.wait()
        for each in (self.process.stdin, self.process.stdout, self.errors):
            if each is not None:
                with suppress(OSError):  # what was not written to one that is gone
                    each.close()
        shutil.rmtree(self.work, ignore_errors=True)


class Processes:
    """Starts processes of `tree`, in folders below `folder`. Several threads may use it; `close` ends what they do.

    Of a command with a line of input the next process is started while this one is at work: loading takes a third of
    what a short evaluation does.
    """

    def __init__(
        self,
        tree: Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        sessions: Path | None = None,
        end_with_this_one: bool = False,
        ahead: bool = True,
    ) -> None:
        """environment: of every process, beside the few variables that a judge keeps. sessions: where folders of
        sessions lie, if not in `folder`. end_with_this_one: also commands that do not see to it themselves.
        ahead: another command of a kind is likely to come, and its process may load before it does."""
        self._tree = tree
        self._folder = folder
        self._sessions = sessions or folder
        self._environment = dict(environment or {})
        self._dies_with = os.getpid() if end_with_this_one else None
        self._ahead = ahead
        self._groups: set[int] = set()
        self._starter = ThreadPoolExecutor(1, "starter")
        """Judges end with the thread that started them, and commands come from threads that do not last."""
        self._next: tuple[str, Future[_Started]] | None = None
        """One that loads or waits, and for which commands."""
        self._choosing = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def carry_out(self, command: Command, on_line: Callable[[str], None]) -> Completed:
        """Raises OSError where it cannot be started, and ProcessesClosed after `close`."""
        began = time.monotonic()
        started = self._waiting_for(command) if command.input else None
        done = self._completed_of(started, command, on_line) if started is not None else None
        if done is None:
            started = self._starting(command).result()
            started.given(command.input)
            self._load_another(command)
            done = self._completed_of(started, command, on_line)
        assert done is not None
        return replace(done, seconds=time.monotonic() - began)

    def _completed_of(self, started: _Started, command: Command, on_line: Callable[[str], None]) -> Completed | None:
        """None for one that had waited, and was killed before it began."""
        try:
            printed: list[str] = []

            def hear(line: str) -> None:
                printed.append(line)
                if command.collect:
                    on_line(line)

            status, late = self._followed(started, command.limit_s, hear)
            if started.waited and status < 0 and not (printed or late or self._closed):
                return None
            result = _collected(started.work / command.collect) if command.collect else "".join(printed)
            late = late and (result is None or not command.collect)
            return Completed(status, result, _last_words(started.errors) or "no message", late, 0.0)
        finally:
            started.end()

    def _waiting_for(self, command: Command) -> _Started | None:
        """The process that has loaded for such a command, and now has it, if it is still there."""
        with self._choosing:
            waiting, self._next = self._next, None
        if waiting is None:
            return None
        started = waiting[1].result()
        if waiting[0] != _kind_of(command) or not started.given(command.input):
            started.end()
            return None
        self._load_another(command)
        return replace(started, waited=True)

    def _load_another(self, command: Command) -> None:
        with self._choosing:
            if self._ahead and command.input and self._next is None and not self._closed:
                self._next = (_kind_of(command), self._starting(command))

    def _starting(self, command: Command) -> Future[_Started]:
        try:
            return self._starter.submit(self._start, command)
        except RuntimeError:
            raise ProcessesClosed("the run has ended, and its processes with it") from None

    def _start(self, command: Command) -> _Started:
        work = Path(tempfile.mkdtemp(prefix="job-", dir=self._folder))
        for name, text in command.files.items():
            (work / name).write_text(text, encoding="utf-8")
        places = {WORK: str(work), SESSION: str(self._sessions / f"session-{command.session}"),
                  PARENT: str(os.getpid())}  # fmt: skip
        parent = self._dies_with
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        process = subprocess.Popen(
            [sys.executable, *(_placed(word, places) for word in command.argv)],
            cwd=self._tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            text=True,
            preexec_fn=None if parent is None else lambda: end_with_parent(parent),
            env=scrubbed_environment({**ONE_THREAD, "TMPDIR": str(work), **self._environment, **command.environment}),
        )
        return _Started(process, work, errors)

    def _followed(self, started: _Started, limit_s: float, hear: Callable[[str], object]) -> tuple[int, bool]:
        """Its exit status, and whether it was ended at its limit."""
        process = started.process
        self._groups.add(process.pid)
        if self._closed:  # while it was starting
            kill_group(process.pid)
        overdue = threading.Timer(limit_s, kill_group, (process.pid,))
        overdue.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
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
        with self._choosing:
            self._closed = True
            waiting, self._next = self._next, None
        for group in list(self._groups):
            kill_group(group)
        if waiting is not None:
            with suppress(OSError):  # where the disk is full it never began
                waiting[1].result().end()
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


def _kind_of(command: Command) -> str:
    return json.dumps([command.argv, command.session, sorted(command.environment.items())])


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
