"""An agent that knows nothing but the list of tools makes a kernel faster, step by step, and is refused nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.client import Agent, folder_of_a_kernel, with_agent


def test_menu_and_try_end_with_a_faster_verified_kernel_and_judge_no_text_twice(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)

    async def script(agent: Agent) -> tuple[float, float]:
        before = await agent.call("evaluate", kernel="mine.py", problem="mine_reference.py")
        assert before["verdict"] == "measured" and before["simulated"] and before["measured"]["verified_full"]
        assert any("compile and verify" in line for line in agent.said)
        agent.said.clear()
        offered = await agent.call("menu", kernel="mine.py")
        assert not agent.said, "it was judged before"
        best = offered["changes"][0]
        assert best["gain_us"] > 0 and offered["latency_us"] == before["measured"]["latency_us"]
        tried = await agent.call("try", kernel="mine.py", tool=best["tool"], site=best["site"])
        assert tried["written"] == "mine_2.py" and (work / "mine_2.py").is_file()
        after, then = tried["evaluation"], tried["menu"]
        assert after["right"] and "proved equal to the input kernel" in after["rests_on"] and after["speedup"] > 1
        assert then["kernel"] == "mine_2.py" and then["latency_us"] == after["measured"]["latency_us"]
        agent.said.clear()
        assert (await agent.call("menu", kernel="mine_2.py"))["latency_us"] == then["latency_us"] and not agent.said
        gained_us = before["measured"]["latency_us"] - after["measured"]["latency_us"]
        assert gained_us == pytest.approx(best["gain_us"], rel=0.25)
        return before["measured"]["latency_us"], after["measured"]["latency_us"]

    slow_us, fast_us = with_agent(work, script)
    assert fast_us < 0.9 * slow_us
    assert sorted(path.name for path in work.iterdir()) == ["mine.py", "mine_2.py", "mine_reference.py"]


@pytest.mark.slow
def test_init_gives_the_beginning_of_a_reference_and_facts_are_read_as_resources_too(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)
    (work / "mine_reference.py").unlink()

    async def script(agent: Agent) -> None:
        assert "`init mine.py`" in await agent.refused("evaluate", {"kernel": "mine.py"})
        begun = await agent.call("init", kernel="mine.py", shapes=["512x1024", "128x1024"])
        assert begun["text"] == (work / begun["written"]).read_text() and "TODO" in begun["text"]
        told = await agent.call("facts", about="api", name="nc_matmul")
        assert "stationary" in told["text"]
        (read,) = (await agent.client.read_resource("nki://api/nc_matmul")).contents
        assert read.text == told["text"]  # type: ignore[union-attr]
        for resource in (await agent.client.list_resources()).resources:
            assert (await agent.client.read_resource(resource.uri)).contents

    with_agent(work, script)
