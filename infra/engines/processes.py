"""Errands and questions on this machine: processes of a tree of ours, which are ended with all that they started.

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
from pathlib import Path
from typing import IO, Any

from accelopt_core.judging.orphans import end_with_parent
from infra.engines.engine import PARENT, SESSION, WORK, Came, Errand
from infra.isolation.sandbox import ONE_THREAD, kill_group, scrubbed_environment

_LAST_WORDS = 300
"""Characters of a process's last line."""


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
        sessions lie, if not in `folder`. end_with_this_one: also errands that do not see to it themselves."""
        self._tree = tree
        self._folder = folder
        self._sessions = sessions or folder
        self._environment = dict(environment or {})
        self._dies_with = os.getpid() if end_with_this_one else None
        self._groups: set[int] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def carry_out(self, errand: Errand, told: Callable[[str], None]) -> Came:
        """The thread that calls this must outlive the errand: a judge ends with the thread that started it."""
        began = time.monotonic()
        work = Path(tempfile.mkdtemp(prefix="job-", dir=self._folder))
        try:
            for name, text in errand.files.items():
                (work / name).write_text(text, encoding="utf-8")
            places = {WORK: str(work), SESSION: str(self._sessions / f"session-{errand.session}"),
                      PARENT: str(os.getpid())}  # fmt: skip
            argv = [sys.executable, *(_placed(word, places) for word in errand.argv)]
            printed: list[str] = []
            hear = told if errand.collect else printed.append
            status, late, last_words = self._run(argv, work, errand, hear)
            result = _collected(work / errand.collect) if errand.collect else "".join(printed)
            return Came(status, result, last_words, late and (result is None or not errand.collect),
                        time.monotonic() - began)  # fmt: skip
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _run(self, argv: list[str], work: Path, errand: Errand, hear: Callable[[str], object]) -> tuple[int, bool, str]:
        parent = self._dies_with
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                argv,
                cwd=self._tree,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
                preexec_fn=None if parent is None else lambda: end_with_parent(parent),
                env=scrubbed_environment(
                    {**ONE_THREAD, "TMPDIR": str(work), **self._environment, **errand.environment}
                ),
            )
            self._groups.add(process.pid)
            if self._closed:  # while it was starting
                kill_group(process.pid)
            overdue = threading.Timer(errand.limit_s, kill_group, (process.pid,))
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
            return status, late, _last_words(errors) or "no message"

    def close(self) -> None:
        self._closed = True
        for group in list(self._groups):
            kill_group(group)


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
    said = errors.read().decode("utf-8", "replace").strip().splitlines()
    return said[-1][:_LAST_WORDS] if said else ""
