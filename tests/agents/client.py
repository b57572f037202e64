"""A real client of the protocol, over stdio, to a server in a folder of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, TextContent

from tests.e2e.kernels import REFERENCE, SLOW
from tests.house.structure import ROOT

SMALL = REFERENCE.replace("2048, 4", "512, 2")
SERVER = (str(ROOT / "orchestrator.py"), "mcp")
Came = TypeVar("Came")


def folder_of_a_kernel(path: Path) -> Path:
    """A folder `work` below `path`, with a slow kernel and its reference."""
    work = path / "work"
    work.mkdir()
    (work / "mine.py").write_text(SLOW)
    (work / "mine_reference.py").write_text(SMALL)
    return work


def environment(path: Path, **more: str) -> dict[str, str]:
    """What the server sees of variables: nothing of whoever runs these tests but where programs are."""
    home = path / "home"
    home.mkdir(exist_ok=True)
    return {"PATH": os.environ["PATH"], "HOME": str(home), **more}


def text_of(result: CallToolResult) -> str:
    """Of an answer, its one text."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


class Agent:
    """Knows the list of tools, and nothing else."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.said: list[str] = []
        """Lines of progress."""

    async def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """The document; an error fails."""

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            self.said.append(message or "")

        result = await self.client.call_tool(name, arguments, progress_callback=heard)
        assert not result.is_error, text_of(result)
        document: dict[str, Any] = json.loads(result.content[0].text)  # type: ignore[union-attr]
        return document

    async def refused(self, name: str, arguments: dict[str, Any]) -> str:
        """The one line of an error; an answer fails."""
        result = await self.client.call_tool(name, arguments)
        said = text_of(result)
        assert result.is_error, said
        assert "\n" not in said and "Traceback" not in said
        return str(said)


def with_agent(
    work: Path, script: Callable[[Agent], Awaitable[Came]], flags: tuple[str, ...] = (), **variables: str
) -> Came:
    """What a script comes to, with an agent of a server in `work`."""

    async def session() -> Came:
        server = StdioServerParameters(
            command=sys.executable, args=[*SERVER, *flags], cwd=work, env=environment(work.parent, **variables)
        )
        async with Client(server) as client:
            return await script(Agent(client))

    return anyio.run(session)


def listing(path: Path) -> dict[str, tuple[int, int, str]]:
    """Every file and folder below, with what would show a change; the server's own home left out."""
    found = {}
    for each in sorted(path.rglob("*")):
        if "home" not in each.relative_to(path).parts:
            known = each.lstat()
            text = os.readlink(each) if each.is_symlink() else str(known.st_ino)
            found[str(each.relative_to(path))] = (known.st_size if each.is_file() else 0, known.st_mode, text)
    return found
