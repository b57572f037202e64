"""Two models take turns, and the run is killed: whoever was chosen stays chosen, and nobody is paid twice."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.runs.proposer_memory import ProposerMemory
from ka_extensions.bandit import Spent
from tests.llm.wire_server import HttpFault, WireServer
from tests.resume.scripted_run import Kill, World, fenced, reply_to, with_step
from tests.resume.test_kill_and_resume import MOST_STEPS, asked, state

PRICES = "".join(
    f'[models."{name}"]\ninput = {usd}\noutput = {usd}\ncached = 0.0\ncache_write = 0.0\n'
    for name, usd in (("model-a", 60.0), ("model-b", 50.0))
)


def answer(body: dict[str, Any]) -> str:
    """Model b, the cheaper, begins with a kernel that is no faster. All plans follow what memory held before."""
    reply = reply_to(body)
    if '"technique"' in reply:
        return json.dumps({**json.loads(reply), "follows": ["E1"]})
    if body["model"] == "model-b" and "```python" in reply and "## The plan of round 1" in json.dumps(body):
        return fenced(with_step(512) + f"\nASKED = {zlib.crc32(json.dumps(body).encode())}\n")
    return reply


def world_at(folder: Path, url: str) -> World:
    world = World(folder, url, models=("--proposers", "model-a,model-b", "--prices", str(folder / "prices.toml")))
    (folder / "prices.toml").write_text(f'as_of = "2026-11-01"\nsources = ["a test"]\n{PRICES}')
    known = {"title": "Longer rows", "summary": "s", "technique": "rows", "speedup": 3.0, "kernel": "softmax"}
    (folder / "memory.json").write_text(json.dumps([known]))
    return world


def comparable(world: World) -> dict[str, Any]:
    """As `state`, with who was chosen, and without seconds, which no two runs have in common."""
    found = state(world)
    found["tries"] = [
        replace(each, spent=Spent(round(each.spent.usd, 9)) if each.spent is not None else None)
        for each in found["tries"]
    ]
    found["chosen"] = {(each.round, each.place): each.proposer for each in world.run.turns()}
    tracks = ProposerMemory(world.folder / "memory.json", "another run", print).tracks("underutilized")
    found["tracks"] = {name: (track.pulls, track.wins, round(track.usd, 9)) for name, track in tracks.items()}
    return found


def test_killed_anywhere_it_asks_whom_it_had_chosen_and_pays_once(tmp_path: Path) -> None:
    with WireServer(answer) as server:
        world_at(tmp_path / "warm", server.url).warm_up()
        world = world_at(tmp_path / "undisturbed", server.url)
        since = len(server.requests)
        assert world.start() == 0, (world.folder / "output").read_text()
        final, requests = comparable(world), asked(server, since)
        assert set(final["chosen"]) == {(1, 0), (2, 0), (3, 0)} and len(set(final["chosen"].values())) == 2
        paid = sum(each.spent.usd for each in final["tries"] if each.spent is not None)
        assert paid == pytest.approx(sum(entry.cost_usd for entry in final["ledger"])) and paid > 0
        old = next(each for each in final["memory"] if each.title == "Longer rows")
        assert (old.used, old.helped) == (3, 1), "only the last round came to a new best"
        assert final["tracks"] and sum(pulls for pulls, _, _ in final["tracks"].values()) == 3
        for step in range(1, MOST_STEPS, 17):
            world = world_at(tmp_path / str(step), server.url)
            since = len(server.requests)
            if world.start(Kill(step, True)) is not None:
                break
            assert world.start() == 0, (world.folder / "output").read_text()
            for name, value in comparable(world).items():
                assert value == final[name], f"killed after step {step}: {name}"
            assert not asked(server, since) - requests, f"killed after step {step}"
        else:
            pytest.fail("the run never ends by itself")
        assert step > 50, "the enumeration missed the journal"


def test_one_whose_key_is_refused_is_out_after_one_call_that_is_on_file(tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> Any:
        if body["model"] == "model-b":
            return HttpFault(401, "authentication_error", "invalid x-api-key")
        return answer(body)

    with WireServer(reply) as server:
        world = world_at(tmp_path / "w", server.url)
        assert world.start() == 0, (world.folder / "output").read_text()
        asked_of_b = [request for request in server.requests if request.body["model"] == "model-b"]
        said = (world.folder / "output").read_text()
    assert len(asked_of_b) == 1 and said.count("anthropic:model-b is out for this run, anthropic:model-a goes on") == 1
    assert [attempt.proposer for attempt in world.run.attempts() if attempt.decision] == ["anthropic:model-a"] * 3
    choices = [(each.round, each.proposer) for each in world.run.turns()]
    assert choices[:2] == [(1, "anthropic:model-b"), (1, "anthropic:model-a")]
    assert world.run.manifest().status == "finished"
    entries = [json.loads(line) for line in (world.run.path / "usage.jsonl").read_text().splitlines()]
    assert [entry["failed"] for entry in entries if entry["proposer"] == "anthropic:model-b"] == [True]
