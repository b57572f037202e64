"""Processes of calls, started and followed from one event loop, and ended with whoever waits for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process

from infra.isolation.sandbox import ONE_THREAD, kill_group, scrubbed_environment
from infra.judging.shipment import TREE

MOST_BYTES = 8 << 20
"""Of one line that a call answers."""
KEPT_LINES = 20
LONGEST_LINE = 300
"""Of what it prints besides, the last of which are kept."""
ENDS_S = 5.0
"""That one which was asked to end is given for it."""

_KEPT_VARIABLES = ("HOME", "USER", "LOGNAME", "TMPDIR", "XDG_DATA_HOME", "XDG_CACHE_HOME")


class CallFailed(Exception):
    """It gave no answer. One line."""


class CallProcess:
    """One process: its answers as they come, and the last lines of what it prints besides."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)

    async def answers(self) -> AsyncIterator[dict[str, Any]]:
        """Raises CallFailed where it ends without the last one, a document or an error."""
        assert self._process.stdout is not None
        async for line in _lines(self._process.stdout, MOST_BYTES):
            try:
                said: dict[str, Any] = json.loads(line)
            except ValueError:
                raise CallFailed(f"its answer has more than {MOST_BYTES >> 20} MiB") from None
            yield said
            if "document" in said or "error" in said:
                return
        status = await self._process.wait()
        last = self.lines[-1] if self.lines else f"exit status {status}"
        raise CallFailed(f"its process ended without an answer: {last}")

    async def keep_lines(self) -> None:
        """Until there are no more; somebody must read them, or it waits for that."""
        assert self._process.stderr is not None
        async for line in _lines(self._process.stderr, LONGEST_LINE):
            if line.strip():
                self.lines.append(line.decode("utf-8", "replace").strip())

    async def ask_to_end(self) -> None:
        """Its standard input is all that keeps it at work."""
        assert self._process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._process.stdin.aclose()

    async def end(self, patience_s: float = ENDS_S) -> None:
        """Asked to end, and after so many seconds killed; it has ended when this returns."""
        await self.ask_to_end()
        with anyio.move_on_after(patience_s):
            await self._process.wait()
        kill_group(self._process.pid)
        await self._process.wait()


@asynccontextmanager
async def process_of(
    job: Mapping[str, Any], environment: Mapping[str, str] | None = None, patience_s: float = ENDS_S
) -> AsyncIterator[CallProcess]:
    """A process that carries out the job, and is gone when the block is left, however that is.

    `environment`: all of it; None: the few variables that a judge sees, and where the user's home is.
    """
    if environment is None:
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        environment = scrubbed_environment({**kept, **ONE_THREAD})
    process = await anyio.open_process(
        [sys.executable, "-m", "infra.agents.call"],
        cwd=TREE, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the server, which ends it
    )  # fmt: skip
    made = CallProcess(process)
    try:
        async with anyio.create_task_group() as reading:
            reading.start_soon(made.keep_lines)
            try:
                assert process.stdin is not None
                with suppress(anyio.BrokenResourceError):  # it is gone already, and its last words are read
                    await process.stdin.send(json.dumps(job).encode() + b"\n")
                yield made
            finally:
                with anyio.CancelScope(shield=True):
                    await made.end(patience_s)
                reading.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def carried_out(job: Mapping[str, Any], limit_s: float, told: Callable[[str], Awaitable[None]]) -> dict[str, Any]:
    """The document that a job comes to. `told`: each line of progress.

    Raises CallFailed, also after `limit_s`.
    """
    problem = ""
    try:
        with anyio.fail_after(limit_s):
            async with process_of(job) as made:
                try:
                    async for said in made.answers():
                        if "progress" in said:
                            await told(str(said["progress"]))
                        if "document" in said:
                            document: dict[str, Any] = said["document"]
                            return document
                        problem = str(said.get("error", problem))
                except CallFailed as error:  # out of the task group one by one
                    problem = str(error)
    except TimeoutError:
        problem = f"it took longer than {limit_s:.3g} s and was ended: give it more `seconds`, or a smaller preset"
    raise CallFailed(problem)


async def _lines(stream: ByteReceiveStream, longest: int) -> AsyncIterator[bytes]:
    """Each line; of a longer one the beginning."""
    kept = b""
    too_long = False
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for part in stream:
            first, *rest = part.split(b"\n")
            for text in (first, *rest[:-1]) if rest else ():
                if not too_long:
                    yield (kept + text)[:longest]
                kept, too_long = b"", False
            left = rest[-1] if rest else first
            if not too_long:
                kept += left
            if len(kept) > longest and not too_long:
                yield kept[:longest]
                kept, too_long = b"", True
    if kept:
        yield kept
