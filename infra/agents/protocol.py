"""The tools over the Model Context Protocol, by its official SDK: the only file that knows it.

This process reads messages, checks them and starts processes; no kernel is read or run in it. The protocol has copies
of standard input and output that nothing else here, and no process that is started, ever sees.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import anyio
import anyio.to_thread
import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import config
from infra.agents import requests
from infra.agents.background import Runs, TooMany
from infra.agents.children import CallFailed, carried_out
from infra.agents.requests import COMMANDS, INSTRUCTIONS, LIMIT_S, TOOLS, WRITE
from infra.agents.terms import Terms
from infra.isolation.processes import hide_this_process
from infra.scratch_folder import ScratchFolder
from infra.tasks.user_files import Outside

AT_ONCE = 2
"""Calls at work; each keeps a core or two busy ..."""
WAITING = 14
"""... and calls that wait for that; more are refused."""
MOST_LINE = 256 << 10
"""Bytes of one message to us: the largest that a tool takes has a tenth."""
MOST_ANSWER = 4 << 20
LISTENS_S = 5.0
"""That a client which has closed its end is given to take the answer it was promised."""
_AT_A_TIME = 4096
"""Bytes that a pipe takes without making us wait, once it takes any: a page."""
HELD_AGAINST = ("reference", "task", "function")
_MOST_LOG = 12
"""Lines of a run's log that are shown."""


def serve(terms: Terms) -> None:
    hide_this_process()  # a reference runs with its user's rights, and must not find keys in our environment
    with ScratchFolder("nki-verdicts-") as scratch:  # no agent writes there
        run = replace(terms.settings.run, verdicts=terms.settings.run.verdicts or scratch)
        anyio.run(_serve, replace(terms, settings=replace(terms.settings, run=run)))


async def _serve(terms: Terms) -> None:
    wire = _Wire()
    async with anyio.create_task_group() as background:
        calls = _Calls(terms, Runs(background))
        server: Server[Any] = Server(
            "nki-optimizer", version=config.VERSION, instructions=INSTRUCTIONS,
            on_list_tools=calls.listed, on_call_tool=calls.called,
            on_list_resources=calls.resources, on_read_resource=calls.read,
        )  # fmt: skip
        async with stdio_server(wire, wire) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
        background.cancel_scope.cancel()


class _Wire:
    """Messages as lines, of bounded length; what is no message is answered with an error, and dropped."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._input, self._output = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)
        self._writing = anyio.Lock()
        self._is_heard = True

    async def write(self, text: str) -> None:
        async with self._writing:
            await anyio.to_thread.run_sync(self._write, text.encode("utf-8", "backslashreplace"))

    async def flush(self) -> None:
        """Nothing is kept back."""

    def _write(self, data: bytes) -> None:
        """Waits as long as it takes for a client that reads slowly, and not for one that has gone without reading."""
        with suppress(BrokenPipeError):  # nobody reads any more; our input ends next
            while data and self._is_heard:
                if self._takes_more():
                    data = data[os.write(self._output, data[:_AT_A_TIME]) :]

    def _takes_more(self) -> bool:
        """Whether some can be written; where that has to be waited for, after a while anyhow."""
        ready = select.poll()
        ready.register(self._output, select.POLLOUT)
        if ready.poll(0 if _has_closed(self._input) else 1000 * LISTENS_S):
            return True
        if _has_closed(self._input):
            self._is_heard = bool(ready.poll(1000 * LISTENS_S))
        return False

    def __aiter__(self) -> AsyncIterator[str]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[str]:
        async for line in self._lines():
            problem = ""
            if len(line) > MOST_LINE:
                problem = f"a message has at most {MOST_LINE:,} bytes"
            else:
                try:  # as the SDK will, which says nothing of what it drops
                    types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    problem = "a line is no message: one JSON object of JSON-RPC 2.0 in UTF-8"
            if not problem:
                yield line.decode("utf-8")  # it is valid, or the reader above had said so
            elif line.strip():
                error = {"code": types.PARSE_ERROR, "message": problem}
                await self.write(json.dumps({"jsonrpc": "2.0", "id": None, "error": error}) + "\n")

    async def _lines(self) -> AsyncIterator[bytes]:
        """Of one that is too long a beginning that is too long as well."""
        kept = b""
        while True:
            part = await anyio.to_thread.run_sync(os.read, self._input, 1 << 16, abandon_on_cancel=True)
            *ended, left = part.split(b"\n")
            for text in ended:
                yield kept + text
                kept = b""
            kept = (kept + left)[: MOST_LINE + 1]
            if not part:
                return


def _has_closed(pipe: int) -> bool:
    """Whether nobody can write to it any more; what is in it may be unread."""
    asked = select.poll()
    asked.register(pipe, getattr(select, "POLLRDHUP", 0))  # of a socket; that a pipe hangs up is told in any case
    return any(event & ~select.POLLIN for _, event in asked.poll(0))


class _Calls:
    """What a client asks for."""

    def __init__(self, terms: Terms, runs: Runs) -> None:
        self._terms = terms
        self._runs = runs
        self._held: dict[str, dict[str, Any]] = {}
        """Of each kernel's file, HELD_AGAINST as it was last named; of one that came of another here, `made_from`."""
        self._places = anyio.CapacityLimiter(AT_ONCE)
        self._asked = 0

    async def listed(
        self, context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(*each) for each in TOOLS.items()])

    async def called(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = COMMANDS.get(params.name, params.name)
        if tool not in TOOLS:
            return self._failed(f"no tool is called {params.name[:60]!r}; there are: {', '.join(TOOLS)}")
        try:
            document, said = await self._answered(tool, params.arguments, context)
        except (ValueError, Outside, CallFailed, TooMany) as problem:
            return self._failed(f"{tool}: {str(problem).removeprefix(f'{tool}: ')}")
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        if len(text) > MOST_ANSWER:
            return self._failed(f"{tool}: its answer has more than {MOST_ANSWER >> 20} MiB")
        blocks = [self._shown(block) for block in (text, "\n".join(said)) if block]
        return types.CallToolResult(content=[types.TextContent(text=block) for block in blocks])

    def _shown(self, text: str) -> str:
        """Without secrets, and with files by their names below the folder."""
        return self._terms.hidden(text).replace(f"{self._terms.folder.path}{os.sep}", "")

    async def resources(
        self, context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        names = [*get_args(requests.Facts.model_fields["about"].annotation), "api/nc_matmul"]
        return types.ListResourcesResult(resources=[types.Resource(uri=f"nki://{name}", name=name) for name in names])

    async def read(
        self, context: ServerRequestContext[Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        about, _, name = str(params.uri).removeprefix("nki://").strip("/").partition("/")
        try:
            document, _ = await self._answered("facts", {"about": about, "name": name or None}, context)
        except (ValueError, CallFailed) as problem:
            raise MCPError(types.INVALID_PARAMS, self._shown(str(problem))) from None
        text = types.TextResourceContents(uri=params.uri, text=self._shown(document["text"]))
        return types.ReadResourceResult(contents=[text])

    def _failed(self, problem: str) -> types.CallToolResult:
        said = types.TextContent(text=" ".join(self._shown(problem).split()))
        return types.CallToolResult(content=[said], is_error=True)

    def _check_files(self, request: requests.Request) -> None:
        """What can be told from names; the process that opens them looks again, at what it opened. Raises Outside."""
        given = {name: value for name, value in request if value is not None}
        for name in {"kernel", "reference", "original"} & given.keys():
            self._terms.folder.file(given[name])
        if "output" in given:
            self._terms.folder.new_file(given["output"], overwrite=given.get("overwrite", False))

    def _completed(self, request: requests.Request) -> requests.Request:
        """With the reference that was named for the kernel before, or for the one it came of; a new one has a name."""
        if not isinstance(request, requests.Referenced):
            return request
        kernel = str(getattr(request, "kernel", None) or "")
        own = {name: given for name in HELD_AGAINST if (given := getattr(request, name)) is not None}
        if not {"reference", "task"} & own.keys():
            own = {**{name: held for name, held in self._held.get(kernel, {}).items() if name in HELD_AGAINST}, **own}
        origin = getattr(request, "original", None) or kernel
        made = str(getattr(request, "output", kernel) or self._free_name(Path(kernel or str(request.task))))
        if origin:
            came_of = {"made_from": origin} if made != origin else {}
            self._held[made] = {**came_of, **self._held.get(origin, {}), **own}
        return request.model_copy(update={**own, "output": made} if isinstance(request, requests.TryChange) else own)

    def _free_name(self, kernel: Path) -> str:
        """For what comes of that kernel, beside it."""
        stem = re.sub(r"_\d+$", "", kernel.stem)
        names = (str(kernel.with_name(f"{stem}_{number}.py")) for number in itertools.count(2))
        return next(name for name in names if name not in self._held and not self._terms.folder.place(name).exists())

    def _job(self, tool: str, request: requests.Request, limit_s: float) -> dict[str, Any]:
        return {
            "tool": tool,
            "made_from": self._held.get(getattr(request, "kernel", ""), {}).get("made_from"),
            "arguments": request.model_dump(mode="json"),
            "settings": config.to_document(self._terms.settings),
            "folder": str(self._terms.folder.path),
            "limit_s": limit_s,
        }

    async def _answered(
        self, tool: str, arguments: Any, context: ServerRequestContext[Any]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The document, and lines beside it. Raises ValueError, Outside, CallFailed and TooMany."""
        request = requests.read(TOOLS[tool], arguments)
        self._check_files(request)
        if self._asked >= AT_ONCE + WAITING:
            raise ValueError(f"{self._asked} calls are under way already: wait for their answers")
        self._asked += 1
        try:
            return await self._carried_out(tool, self._completed(request), context)
        finally:
            self._asked -= 1

    async def _carried_out(
        self, tool: str, request: requests.Request, context: ServerRequestContext[Any]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        limit_s = float(getattr(request, "seconds", LIMIT_S))
        if isinstance(request, (requests.StartRun, requests.ResumeRun)):
            job = self._job(tool, request, limit_s)
            run_id = await self._runs.start(job, with_keys=self._terms.asks_models, limit_s=limit_s)
            return await self._followed(run_id, limit_s)
        if isinstance(request, requests.StopRun):
            if not await self._runs.stop(request.run_id):
                raise ValueError(f"run_id: no run of this server by the name {request.run_id} is under way")
            return await self._followed(request.run_id, limit_s)
        if isinstance(request, requests.FollowRun):
            run_id = request.run_id or self._runs.newest
            await self._runs.wait(run_id, request.wait_seconds)
            return await self._followed(run_id, limit_s)
        count = 0

        async def told(line: str) -> None:
            nonlocal count
            count += 1
            await context.session.report_progress(count, None, self._shown(line))

        async with self._place(limit_s) as left_s:
            return await carried_out(self._job(tool, request, left_s), left_s, told), ()

    @asynccontextmanager
    async def _place(self, limit_s: float) -> AsyncIterator[float]:
        """One of the calls at work; gives the seconds that are left. Raises ValueError where none is free in time."""
        asked = anyio.current_time()
        with anyio.move_on_after(limit_s) as waiting:
            await self._places.acquire()
        if waiting.cancelled_caught:
            raise ValueError(
                f"it waited {limit_s:g} s for {AT_ONCE} other calls that are at work: wait for their answers, or give "
                "it more `seconds`"
            )
        try:
            yield max(1.0, limit_s - (anyio.current_time() - asked))
        finally:
            self._places.release()

    async def _followed(self, run_id: str, limit_s: float) -> tuple[dict[str, Any], tuple[str, ...]]:
        """`run_id`: empty for the newest of the folder."""

        async def told(line: str) -> None:
            """Reading a folder has no progress."""

        job = self._job("follow_run", requests.FollowRun(run_id=run_id or None, wait_seconds=0), limit_s)
        async with self._place(limit_s) as left_s:
            document = await carried_out(job, left_s, told)
        return document, self._runs.said(run_id)[-_MOST_LOG:]


def _described(name: str, takes: type[requests.Request]) -> types.Tool:
    return types.Tool(
        name=name,
        description=" ".join((takes.__doc__ or "").split()),
        input_schema=takes.schema_for_agents(),
        annotations=types.ToolAnnotations(read_only_hint=name not in WRITE, destructive_hint=False),
    )
