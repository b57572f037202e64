"""An agent that knows nothing but the list of tools makes a kernel faster, step by step and by a run of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.client import Agent, folder_of_a_kernel, with_agent


def test_evaluate_menu_apply_evaluate_ends_with_a_faster_verified_kernel(tmp_path: Path) -> None:
    async def script(agent: Agent) -> tuple[float, float]:
        before = await agent.call("evaluate", kernel="mine.py")
        assert before["verdict"] == "measured" and before["simulated"] and before["measured"]["verified_full"]
        assert any("compile and verify" in line for line in agent.said)
        offered = await agent.call("menu", kernel="mine.py")
        best = offered["changes"][0]
        assert best["gain_us"] > 0 and offered["latency_us"] == before["measured"]["latency_us"]
        made = await agent.call("apply", kernel="mine.py", tool=best["tool"], site=best["site"], output="second.py")
        assert made["written"] == "second.py" and not made["overwrote"] and made["diff"].startswith("--- mine.py")
        after = await agent.call("evaluate", kernel="second.py", reference="mine_reference.py", original="mine.py")
        assert after["right"] and "proved equal to the input kernel" in after["rests_on"]
        gained_us = before["measured"]["latency_us"] - after["measured"]["latency_us"]
        assert gained_us == pytest.approx(best["gain_us"], rel=0.25)
        return before["measured"]["latency_us"], after["measured"]["latency_us"]

    work = folder_of_a_kernel(tmp_path)
    slow_us, fast_us = with_agent(work, script)
    assert fast_us < 0.9 * slow_us
    assert sorted(path.name for path in work.iterdir()) == ["mine.py", "mine_reference.py", "second.py"]
