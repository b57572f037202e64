"""A server of the protocol and bare lines to and from it, for clients without manners."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.agents.client import SERVER, environment
from tests.processes import PATIENCE_S


class Wire:
    """A server, and lines to and from it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._read = b""

    def send(self, line: bytes) -> None:
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def ask(self, number: int, method: str, **params: Any) -> None:
        self.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())

    def greet(self) -> None:
        self.ask(
            0, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "x", "version": "1"}
        )
        assert self.answer(0)["result"]["serverInfo"]["name"] == "nki-optimizer"
        self.send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')

    def line(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next message; every line on standard output must be one."""
        assert self.process.stdout is not None
        give_up = time.monotonic() + patience_s
        while b"\n" not in self._read:
            left_s = give_up - time.monotonic()
            assert left_s > 0 and select.select([self.process.stdout], [], [], left_s)[0], "no answer"
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            assert part, "the server is gone"
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        assert said["jsonrpc"] == "2.0"
        return said

    def answer(self, number: int | str | None) -> dict[str, Any]:
        while (said := self.line()).get("id", "none") != number or "method" in said:
            pass
        return said


@contextmanager
def served(work: Path, *flags: str, **variables: str) -> Iterator[Wire]:
    process = subprocess.Popen(
        [sys.executable, *SERVER, *flags], cwd=work, env=environment(work.parent, **variables), start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wire = Wire(process)
        wire.greet()
        yield wire
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def descendants(pid: int) -> set[int]:
    """Of every depth, in whatever session."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}
