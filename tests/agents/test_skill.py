"""What agents read: the skill keeps to the open standard; every command, flag, tool and field that it names exists."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest

from infra.agents.call import CARRIED_OUT
from infra.agents.requests import COMMANDS, INSTRUCTIONS, TOOLS, WRITE, StopRun
from infra.command_line import read
from infra.documents.kernel_document import EvaluationDocument, MenuDocument
from infra.documents.run_document import KernelDocument, RunDocument
from nki_sim import __main__ as nki_sim_command
from tests.e2e.kernels import SLOW
from tests.house.structure import ROOT

SKILL = ROOT / "skills" / "nki-optimizer" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
FRONT, BODY = re.fullmatch(r"---\n(.*?)\n---\n(.*)", TEXT, re.S).groups()  # type: ignore[union-attr]
ALLOWED = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
LINES = [
    line.partition(" #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", BODY, re.S)
    for line in block.splitlines()
]


def test_the_front_matter_keeps_to_the_standard() -> None:
    """https://agentskills.io/specification: one `key: value` a line here, and so no YAML to read."""
    front = dict(line.split(": ", 1) for line in FRONT.splitlines())
    assert set(front) <= ALLOWED and {"name", "description"} <= set(front)
    assert front["name"] == SKILL.parent.name and re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", front["name"])
    assert len(front["name"]) <= 64 and 1 <= len(front["description"]) <= 1024
    assert len(front["compatibility"]) <= 500 and "Use when" in front["description"]
    assert not any(": " in value or value.startswith(tuple("[{&*!|>'\"%@`#")) for value in front.values()), "plain YAML"
    assert len(TEXT.splitlines()) < 500


@pytest.mark.parametrize("line", LINES)
def test_every_command_of_the_skill_is_understood(line: str, tmp_path: Path) -> None:
    for name in ("mine.py", "second.py", "old.py", "ref.py"):
        (tmp_path / name).write_text(SLOW)
    program, *words = shlex.split(line)
    if program == "nki-sim":
        nki_sim_command.parser(program).parse_args(words)
        return
    assert program == "nki-optimizer"
    invocation = read(words, {}, tmp_path)
    assert invocation.json
    command = words[0] if not words[0].startswith("-") else "run"
    assert invocation.command == command


def test_the_skill_names_every_tool_and_no_other() -> None:
    (listed,) = re.findall(r"server `nki-optimizer mcp`: (.*?)\.", BODY, re.S)
    assert set(re.split(r",\s+", listed)) == set(TOOLS)


def test_every_field_and_verdict_that_the_skill_names_is_there() -> None:
    kinds = (EvaluationDocument, MenuDocument, KernelDocument, RunDocument)
    fields = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    named = {"said", "line", "failure", "verdict", "rests_on", "verified", "proofs", "likely", "blocked", "simulated"}
    assert named | {"best_kernel", "under_way", "latency_us"} <= fields
    assert all(f"`{name}" in BODY or f".{name}`" in BODY for name in named)
    verdicts = set(re.findall(r"`([a-z_]+)`", "\n".join(re.findall(r"^\| (`[a-z_`, ]+) \|", BODY, re.M)))) - {"verdict"}
    assert verdicts == {"measured", "compile_failed", "incorrect", "implausible", "timed_out", "crashed"}


def test_every_tool_is_carried_out_and_says_what_to_call_next() -> None:
    for name, takes in TOOLS.items():
        assert takes in CARRIED_OUT or takes is StopRun
        assert ("Next:" in str(takes.__doc__) or name in ("doctor", "stop_run")) and len(str(takes.__doc__)) < 500
    assert set(TOOLS) > WRITE and not set(COMMANDS.values()) - set(TOOLS)
    assert set(re.findall(r"\b(?:start|follow|resume|stop)_run\b", INSTRUCTIONS + BODY)) <= set(TOOLS)
    described = json.dumps([[takes.__doc__, takes.schema_for_agents()] for takes in TOOLS.values()])
    assert len(described) < 12_000, "what every agent reads before its first call"


def test_the_page_lists_every_tool() -> None:
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    rows = " ".join(re.findall(r"^\| (`[\w`, ]+) \| .* \|$", page, re.M))
    assert set(re.findall(r"`(\w+)`", rows)) == set(TOOLS)
