"""Runs that a server started: each a process of its own, followed line by line, and ended with the server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup

from infra.agents.children import CallFailed, CallProcess, process_of
from infra.agents.requests import GRACE_S

MOST_RUNS = 2
"""Under way at once, of one server: each keeps a core or two busy."""
STOPS_S = 2 * GRACE_S
"""That a run which was asked to end has for its step, and to save."""


class TooMany(Exception):
    """Enough is under way already. One line."""


class _Run:
    def __init__(self) -> None:
        self.run_id = ""
        self.process: CallProcess | None = None
        self.problem = ""
        """Why it has ended, where that is an error."""
        self.begun = anyio.Event()
        """It has a folder, or it has ended."""
        self.ended = anyio.Event()
        self.changed = anyio.Event()
        self.scope = anyio.CancelScope()

    def told(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


class Runs:
    """By run id. All of it belongs to one event loop."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._runs: dict[str, _Run] = {}
        self._starting = 0

    @property
    def under_way(self) -> int:
        return self._starting + sum(not run.ended.is_set() for run in self._runs.values())

    async def start(self, job: Mapping[str, Any], *, with_keys: bool, limit_s: float) -> str:
        """The run id, once it has a folder. `with_keys`: it sees the server's whole environment, for it asks a model.

        Raises TooMany, and CallFailed where it ends before it has begun or takes too long.
        """
        if self.under_way >= MOST_RUNS:
            raise TooMany(f"{MOST_RUNS} runs are under way: stop one, or wait for its end")
        run = _Run()
        self._starting += 1
        try:
            self._tasks.start_soon(self._carry_out, run, dict(job), dict(os.environ) if with_keys else None)
            with anyio.move_on_after(limit_s):
                await run.begun.wait()
        except BaseException:
            run.scope.cancel()  # who asked for it is gone
            raise
        finally:
            self._starting -= 1
        if not run.run_id:
            run.scope.cancel()
            raise CallFailed(run.problem or f"it did not begin within {limit_s:g} s")
        self._runs.pop(run.run_id, None)  # one that was resumed is the newest
        self._runs[run.run_id] = run
        return run.run_id

    async def wait(self, run_id: str, seconds: float) -> None:
        """For the next round of a run, or its end; one that is not known here is not waited for."""
        run = self._runs.get(run_id)
        if run is not None and not run.ended.is_set():
            with anyio.move_on_after(seconds):
                await run.changed.wait()

    async def stop(self, run_id: str) -> bool:
        """Whether there was one to stop; it has ended when this returns."""
        run = self._runs.get(run_id)
        if run is None or run.ended.is_set() or run.process is None:
            return False
        await run.process.ask_to_end()
        with anyio.move_on_after(STOPS_S):
            await run.ended.wait()
        run.scope.cancel()
        await run.ended.wait()
        return True

    def said(self, run_id: str) -> tuple[str, ...]:
        """The last lines of its log, and why it ended where that is an error; none of one that is not known here."""
        run = self._runs.get(run_id)
        if run is None or run.process is None:
            return ()
        return (*run.process.lines, *([run.problem] if run.problem else []))

    @property
    def newest(self) -> str:
        return next(reversed(self._runs), "")

    async def _carry_out(self, run: _Run, job: dict[str, Any], environment: dict[str, str] | None) -> None:
        try:
            with run.scope:
                async with process_of(job, environment, GRACE_S) as run.process:
                    try:
                        async for said in run.process.answers():
                            if "started" in said:
                                run.run_id = str(said["started"])
                                run.begun.set()
                            run.problem = str(said.get("error", ""))
                            run.told()
                    except CallFailed as error:
                        run.problem = str(error)
        finally:
            run.begun.set()
            run.ended.set()
            run.told()
