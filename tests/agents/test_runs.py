"""Runs that an agent starts: followed, stopped, resumed, ended with the server; and what their folders cannot do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.agents.client import Agent, folder_of_a_kernel, listing, with_agent
from tests.agents.wire import descendants, served
from tests.processes import alive, eventually

pytestmark = pytest.mark.slow


async def at_its_end(agent: Agent, run_id: str) -> dict[str, Any]:
    for _ in range(60):
        document = await agent.call("follow_run", run_id=run_id, wait_seconds=60)
        if document["status"] != "running":
            return document
    raise AssertionError("it does not end")


def test_a_run_is_started_followed_and_its_best_kernel_evaluated(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)

    async def script(agent: Agent) -> dict[str, Any]:
        begun = await agent.call("start_run", kernel="mine.py", rounds=1)
        assert begun["under_way"] and begun["status"] == "running" and begun["proposer"] == "catalogue"
        ended = await at_its_end(agent, begun["run_id"])
        assert ended["status"] == "finished" and ended["improved"] and not ended["under_way"]
        assert (await agent.call("follow_run"))["run_id"] == begun["run_id"]
        best = await agent.call(
            "evaluate", kernel=ended["best_kernel"], reference="mine_reference.py", original="mine.py"
        )
        assert best["right"] and best["measured"]["latency_us"] == ended["best"]["latency_us"]
        more = await agent.call("resume_run", run_id=begun["run_id"], rounds=2)
        assert more["run_id"] == begun["run_id"]
        ended = await at_its_end(agent, begun["run_id"])
        assert ended["rounds_wanted"] == 2 and ended["status"] == "finished"
        return ended

    ended = with_agent(work, script, ANTHROPIC_API_KEY="sk-ant-none-of-a-server-without-provider")
    assert Path(ended["folder"]).parent == Path("checkpoints") and ended["model_calls"]["calls"] == 0
    beside = {name for name in listing(tmp_path) if not name.startswith("work/checkpoints")}
    assert beside == {"work", "work/mine.py", "work/mine_reference.py"}


def test_a_run_is_stopped_saved_and_two_are_enough(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)

    async def script(agent: Agent) -> None:
        first = await agent.call("start_run", kernel="mine.py", rounds=50, patience=50)
        second = await agent.call("start_run", kernel="mine.py", rounds=50, patience=50)
        assert "2 runs are under way" in await agent.refused("start_run", {"kernel": "mine.py"})
        for begun in (first, second):
            stopped = await agent.call("stop_run", run_id=begun["run_id"])
            assert stopped["status"] in ("interrupted", "finished") and not stopped["under_way"]
        assert "no run of this server" in await agent.refused("stop_run", {"run_id": first["run_id"]})

    with_agent(work, script)


def test_a_run_ends_with_the_server_that_started_it(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)
    with served(work) as wire:
        arguments = {"kernel": "mine.py", "rounds": 50, "patience": 50}
        wire.ask(1, "tools/call", name="start_run", arguments=arguments)
        run_id = json.loads(wire.answer(1)["result"]["content"][0]["text"])["run_id"]
        processes = descendants(wire.process.pid)
        assert processes
        wire.process.kill()
        assert eventually(lambda: not any(map(alive, processes)))
    manifest = json.loads((work / "checkpoints" / run_id / "manifest.json").read_text())
    assert manifest["status"] in ("interrupted", "failed", "finished")


def test_a_run_s_folder_that_was_rewritten_starts_no_program_and_leads_nowhere(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)
    outside = tmp_path / "outside.py"
    shutil.copy(work / "mine.py", outside)

    async def script(agent: Agent) -> None:
        begun = await agent.call("start_run", kernel="mine.py", rounds=1)
        await at_its_end(agent, begun["run_id"])
        folder = work / "checkpoints" / begun["run_id"]
        stored = json.loads((folder / "config.json").read_text())
        own = json.loads(json.dumps(stored))
        stored["model"].update(provider="command", **{"model-command": f"touch {tmp_path / 'pwned'}"})
        stored["run"].update({"in-place": True, "memory": str(tmp_path / "memory.json")})
        (folder / "config.json").write_text(json.dumps(stored))
        await agent.call("resume_run", run_id=begun["run_id"], rounds=2)
        ended = await at_its_end(agent, begun["run_id"])
        assert ended["proposer"] == "catalogue" and ended["model_calls"]["calls"] == 0
        own["run"].update(kernel=str(outside), problem=str(tmp_path / "outside_reference.py"))
        (folder / "config.json").write_text(json.dumps(own))
        assert "outside of" in await agent.refused("resume_run", {"run_id": begun["run_id"], "rounds": 3})
        (folder / "linked").symlink_to(outside)
        assert "holds a link" in await agent.refused("follow_run", {"run_id": begun["run_id"]})

    before = (work / "mine.py").read_text()
    with_agent(work, script)
    assert (work / "mine.py").read_text() == before
    assert not (tmp_path / "pwned").exists() and not (tmp_path / "memory.json").exists()
