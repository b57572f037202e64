"""The process that carries out launch programs, from the judge's end: started, asked, and ended when it is late."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.isolation.sandbox import kill_group, scrubbed_environment
from infra.judging.shipment import TREE
from nki_optimizer_triton.execution.messages import MessageLost, receive, send

_LAST_WORDS_S = 2.0
"""For a process that closes its pipe to say why."""


class WorkerLate(Exception):
    """It did not answer in time, and was ended."""


class WorkerDied(Exception):
    """It ended by itself: the message is the last that it printed."""


class WorkerProcess:
    """One process, with what was loaded into it; started anew by whoever needs it after its end."""

    def __init__(
        self, worker: Path, arguments: Sequence[str], environment: Mapping[str, str], python: str = sys.executable
    ) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            [python, "-I", str(worker), str(TREE), str(os.getpid()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env={**scrubbed_environment(environment)},
            start_new_session=True,
        )
        self._owner = os.getpid()

    def ask(
        self, request: Mapping[str, Any], blobs: Sequence[bytes | memoryview], timeout_s: float
    ) -> tuple[dict[str, Any], list[bytearray]]:
        """Its answer. Raises WorkerLate and WorkerDied, after either of which it is gone."""
        late = threading.Event()

        def end() -> None:
            late.set()
            kill_group(self._process.pid)

        timer = threading.Timer(max(0.0, timeout_s), end)
        timer.daemon = True
        timer.start()
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            send(self._process.stdin, dict(request), blobs)
            return receive(self._process.stdout)
        except (MessageLost, OSError, ValueError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORDS_S)
            self.close()
            if late.is_set():
                raise WorkerLate(f"no answer within {timeout_s:g} s") from None
            raise WorkerDied(self._last_words()) from None
        finally:
            timer.cancel()

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a fork of the judge: the process is not its own
        kill_group(self._process.pid)
        with contextlib.suppress(OSError):
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()

    def _last_words(self) -> str:
        status = self._process.returncode
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - 4096))
        lines = self._output.read().decode("utf-8", "replace").strip().splitlines()
        how = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
        return f"{how}: {lines[-1].strip()[:300] if lines else 'it said nothing'}"
