"""What the end of a run says comes next: commands that fit how it ended, and that the program reads."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import config
from infra import command_line
from infra.terminal.next_steps import PROGRAM, Ended, NextStep, after_suite, next_steps
from tests.infra.samples import TARGET, manifest

RUN = "20261120-125418-matmul-3f2a"
HERE = config.FOLDERS.checkpoints
MINE = {"run": {"kernel": "/home/me/my kernels/mine.py", "problem": "/home/me/ref.py", "patience": 5}}
DEVICE = replace(TARGET, simulated=False)


def said(status: str = "finished", reason: str = "", *, done: int = 4, measured: bool = True, **changes: object) -> str:
    told = manifest(RUN, status=status, reason=reason, **changes)
    steps = next_steps(Ended(told, MINE, HERE, done, measured))
    for step in steps:
        check(step)
    return "\n".join(f"{step.what_for}: {step.command}" for step in steps)


def check(step: NextStep) -> None:
    """The program reads it, once a person has put in what is theirs."""
    words = shlex.split(step.command.replace(" N", " 5").replace("USER@HOST", "me@host.example"))
    flags = words[words.index("orchestrator.py") + 1 :]
    command_line.read(flags, {}, Path("/"))


@pytest.mark.parametrize(
    ("status", "reason", "done", "flags"),
    [
        ("finished", "all 10 rounds are done", 10, " --rounds 20"),
        ("finished", "5 rounds without improvement", 7, " --patience 10"),
        ("interrupted", "interrupted", 3, ""),
        ("failed", "openai:m: http://x refuses the key (HTTP 401)", 3, ""),
        ("budget", "m: $4.90 spent, of $5: raise the cost budget to go on", 3, " --max-cost N"),
        ("budget", "m: 10 tokens used: raise the token budget to go on", 3, " --max-tokens N"),
        ("budget", "the 2 hours are used up", 3, " --max-hours N"),
        ("budget", "3 s of its hours are left, and no round took less than 34 s", 3, " --max-hours N"),
        ("budget", "the 9 device minutes are used up", 3, " --max-device-minutes N"),
    ],
)
def test_a_run_goes_on_with_what_ended_it(status: str, reason: str, done: int, flags: str) -> None:
    assert said(status, reason, done=done).splitlines()[0].endswith(f": {PROGRAM} --resume {RUN}{flags}")


def test_every_other_ending_has_commands_that_the_program_reads() -> None:
    assert said("failed", "host unreachable", measured=False).endswith(f"--resume {RUN}")
    assert said("running", measured=False) == ""
    idle = said("finished", "the catalogue has no idea left that gains 4.6 %").splitlines()
    assert len(idle) == 2 and "--provider anthropic" in idle[0] and f"explain {RUN}" in idle[1]
    assert "USER@HOST" in said("finished", "the best kernel is at 99.2 % of the bound")
    own = said("finished", "5 rounds of nothing", proposer="anthropic", target=DEVICE)
    assert "API_KEY" not in own and "USER@HOST" not in own and "--beam" in own


def test_a_shipped_task_and_a_suite_are_named() -> None:
    told = manifest(RUN, status="finished", reason="the best kernel is at 99.2 % of the bound")
    (own, _) = next_steps(Ended(told, {"run": {"preset": "medium"}}, HERE, 1, True))
    assert own.command == f"{PROGRAM} init mine.py", "a shipped kernel is a demonstration"
    check(own)
    steps = after_suite("nkibench", "s1", ["s1.mamba", "s1.silu"], False, HERE)
    assert [step.command.removeprefix(f"{PROGRAM} ") for step in steps] == [
        "--suite nkibench --resume s1", "show s1.mamba", "explain s1.mamba",
    ]  # fmt: skip
    for step in [*steps, *after_suite("nkibench", "s1", [], True, HERE)]:
        check(step)
