"""The other tools, over the protocol: what each gives, and what a kernel that means harm comes to there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.client import Agent, folder_of_a_kernel, with_agent
from tests.e2e.kernels import SLOW

OLDER = SLOW.replace("range(rows // 128)", "nl.affine_range(rows // 128)")
SHAPES = ["256x512:float32", "128x512"]
DEEP = f"x = {'-' * 300_000}1\n"


@pytest.mark.slow
def test_profile_check_and_try(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)
    (work / "deep.py").write_text(DEEP)
    (work / "bad.py").write_text(SLOW.replace("buffer=nl.shared_hbm", "buffer=nl.hbm").replace("nl.add", "np.add"))

    async def script(agent: Agent) -> None:
        profile = await agent.call("profile", kernel="mine.py")
        assert profile["latency_us"] > 0 and profile["lines"] and profile["kernel"] == "mine.py"
        assert "too large" in await agent.refused("check", {"kernel": "deep.py"})
        assert (await agent.call("check", kernel="bad.py"))["errors"] >= 1
        change = {"kernel": "mine.py", "tool": "merge-iterations", "site": "no such site", "output": "never.py"}
        assert "ask for its menu again" in await agent.refused("try", change)

    with_agent(work, script)
    assert not (work / "never.py").exists() and not list(work.glob(".*"))


@pytest.mark.slow
def test_an_older_kernel_is_migrated_and_checked(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)
    (work / "old.py").write_text(OLDER)

    async def script(agent: Agent) -> None:
        made = await agent.call("migrate", kernel="old.py", output="new.py", shapes=SHAPES)
        assert made["done"] and made["dialect"] == "0.2 to 0.6" and "the same stream" in made["proof"], made
        assert (work / "new.py").read_text() == OLDER.replace("nl.affine_range", "range")
        assert (await agent.call("check", kernel="new.py"))["errors"] == 0
        change = {"kernel": "new.py", "reference": "mine_reference.py", "site": "j#1x2", "output": "never.py"}
        assert "no rule is called" in await agent.refused("apply", {**change, "tool": "os.system"})

    with_agent(work, script)


@pytest.mark.slow
def test_a_wrong_kernel_has_a_verdict_and_no_menu_and_the_doctor_is_content(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)
    (work / "wrong.py").write_text(SLOW.replace("op=nl.add", "op=nl.subtract"))

    async def script(agent: Agent) -> None:
        verdict = await agent.call("evaluate", kernel="wrong.py", reference="mine_reference.py")
        assert verdict["verdict"] == "incorrect" and not verdict["right"] and "measured" not in verdict
        assert verdict["failure"]["reason"] and verdict["said"].startswith("wrong: ")
        assert "shorter" in await agent.refused("evaluate", {"kernel": "mine.py", "preset": "shorter"})
        late = await agent.refused("evaluate", {"task": "bmm", "seconds": 5})
        assert "longer than 5 s" in late
        found = await agent.call("doctor")
        assert found["usable"] and found["machines"][0]["report"]["routes"]

    with_agent(work, script)


OLDEST = """
import os
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x):
    # here
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    i, j = nl.arange(128)[:, None], nl.arange(512)[None, :]
    tile = nl.load(x[i, j])
    nl.store(out[i, j], value=nl.add(tile, tile))
    return out
"""
"""A kernel of NKI 0.1 has to be run to be migrated."""

FORGES = """for fd in range(256):
        try:
            os.write(fd, b'{"document": {"forged": true}}\\n')
        except OSError:
            pass
    print("forged", flush=True)"""


@pytest.mark.slow
def test_a_kernel_that_is_run_to_be_migrated_can_forge_no_answer_and_reads_no_file(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)
    (tmp_path / "private.txt").write_text("what only its owner may read")
    reads = f"raise RuntimeError(open({str(tmp_path / 'private.txt')!r}).read())"
    for name, line in (("honest", "pass"), ("forges", FORGES), ("reads", reads), ("ends", "os._exit(0)")):
        (work / f"{name}.py").write_text(OLDEST.replace("# here", line))

    async def script(agent: Agent) -> None:
        made = await agent.call("migrate", kernel="honest.py", output="new.py", shapes=["128x512"])
        assert made["dialect"] == "0.1 (Beta 1)" and made["written"] == "new.py", made
        for name in ("forges", "ends"):
            asked = {"kernel": f"{name}.py", "output": f"{name}_new.py", "shapes": ["128x512"]}
            assert "no usable answer" in await agent.refused("migrate", asked)
        made = await agent.call("migrate", kernel="reads.py", output="third.py", shapes=["128x512"])
        assert not made["done"] and "FileNotFoundError" in made["left"][0] and "owner" not in str(made)

    with_agent(work, script)
    assert not list(work.glob("*_new.py"))
