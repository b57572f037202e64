"""A run whose cluster goes away says so once, and once that it is back. No cluster: a driver in its place."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from infra.engines import ray_engine
from infra.engines.engine import Command
from infra.engines.ray_engine import RayEngine

pytestmark = pytest.mark.extra("ray")
DONE = {"end": {"status": 0, "result": "", "last_words": "", "late": False, "seconds": 0.0}}


class Script:
    """In place of drivers: each is one of `lives`, None where there is no cluster."""

    def __init__(self, lives: list[dict[str, Any] | None]) -> None:
        self.lives = lives

    def __call__(self, *args: object, **kwargs: object) -> Script:
        self.life = self.lives.pop(0)
        return self

    is_there, places, neuron_cores = True, 1, 0

    def wait_until_ready(self) -> str | None:
        return None if self.life is not None else "nobody answers"

    def ask(self, *args: object) -> Iterator[dict[str, Any]]:
        assert self.life is not None
        self.is_there = "gone" not in self.life
        yield self.life

    def end(self) -> None: ...


def test_a_head_that_is_gone_is_said_once_and_so_is_that_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(ray_engine, "_Driver", Script([{"gone": "the head died"}, None, None, DONE]))
    engine, told = RayEngine("10.0.0.1:6379"), []
    engine.tell = told.append
    try:
        assert engine.carry_out(Command(("-c", ""), 1.0), lambda line: None).status == 0
    finally:
        engine.close()
    assert told == [
        "Ray at 10.0.0.1:6379 is out of reach: the head died; it is waited for, 600 s at most",
        "Ray at 10.0.0.1:6379 is back",
    ]


def test_a_head_that_only_keeps_silent_is_said_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray_driver = pytest.importorskip("infra.engines.ray_driver")
    monkeypatch.setattr(ray_driver, "_SILENT_S", 0.0)
    silent, said = threading.Event(), queue.SimpleQueue()
    monkeypatch.setattr(ray_driver, "say", said.put)
    monkeypatch.setattr(ray_driver, "_LOOK_S", 0.0)
    monkeypatch.setattr(ray_driver.ray, "cluster_resources", lambda: silent.wait() and {"CPU": 2.0})

    async def look() -> None:
        looking = asyncio.create_task(ray_driver.Driver({}, b"")._look())
        assert await asyncio.to_thread(said.get) == {"silent": "its head does not answer"}
        silent.set()
        assert await asyncio.to_thread(said.get) == {"places": 2, "neuron_cores": 0}
        looking.cancel()

    asyncio.run(look())
