"""A whole run of the real program with a scripted model and a free target, in a process that can be killed.

The process is forked, so that hundreds of deaths are affordable; everything of the program runs in it as for a user,
but for the target, which knows its kernels' latencies and notes each evaluation it was asked for.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from accelopt_core.evaluation import (
    Bounds,
    CheckFailure,
    CompileFailed,
    Evaluation,
    Incorrect,
    IncumbentTiming,
    Measured,
    Profile,
    Step,
)
from accelopt_core.ports import EvaluationRequest, Progress, Target, TargetInfo
from infra.assembly import run as assembled_run
from infra.runs.run_folder import RunFolder
from tests.e2e.kernels import REFERENCE, SLOW, WRONG

LATENCIES_US = {128: 900.0, 256: 400.0, 512: 398.5, 1024: 150.0, 2048: 100.0}
"""By the kernel's STEP."""


def with_step(step: int) -> str:
    return SLOW.replace("STEP = 256", f"STEP = {step}")


def measured(latency_us: float, simulated: bool = True) -> Measured:
    bounds = Bounds(0.0, 0.0, 50.0, "trace")
    return Measured(
        latency_us, latency_us * 0.999, latency_us * 1.001, 10, simulated, "cheap machine (v1)",
        Profile({"dma_active_time": latency_us / 1e6}, bounds),
    )  # fmt: skip


class CheapTarget:
    """Judges by looking at the text, and keeps a tally in a file that outlives the process. As a device it times the
    kernel to beat beside each candidate."""

    def __init__(self, tally: Path, device: bool = False) -> None:
        self._tally = tally
        self._device = device

    @property
    def width(self) -> int:
        return 1

    def describe(self) -> TargetInfo:
        return TargetInfo("cheap machine", "cheap-1", not self._device, "trn2")

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        for step in (Step.UPLOAD, Step.VERIFY, Step.BENCHMARK):
            progress(step, "")
        with open(self._tally, "a", encoding="utf-8") as tally:
            tally.write(f"{request.candidate.id}{' final' if request.final else ''}\n")
        source = request.candidate.source
        if "tensor_plus" in source:
            return CompileFailed("nki.isa has no attribute 'tensor_plus'", 22)
        if "nl.subtract" in source:
            return Incorrect(CheckFailure(0, "full", 0, "outputs differ", 1.0, 2e-5, (0, 0), 1.0, 2.0))
        found = measured(latency_us(source), not self._device)
        if not self._device or request.incumbent is None:
            return found
        beside = IncumbentTiming(request.incumbent.content_hash, latency_us(request.incumbent.source), 0.01)
        return replace(found, incumbent=beside)

    def close(self) -> None: ...


def latency_us(source: str) -> float:
    found = re.search(r"STEP = (\d+)", source)
    return LATENCIES_US[int(found.group(1))]


def fenced(source: str) -> str:
    return f"Here it is.\n\n```python\n{source}```\n"


KERNELS = {
    1: [fenced(WRONG), fenced(with_step(1024))],
    2: ["I would rather talk about the weather.", fenced(with_step(128))],
    3: [fenced(with_step(2048))],
}
"""What the executor writes, by round and try: a wrong and a good kernel; prose and a slow one; the best."""

BESIDE = {
    1: ["I would rather talk about the weather.", fenced(with_step(512))],
    2: [fenced(WRONG + "\nAGAIN = 1\n"), fenced(with_step(256) + "\nSAME = 1\n")],
    3: [fenced(with_step(128) + "\nSLOW = 1\n")],
}
"""What it writes for the second plan of a round, where a round has two."""
SAME_IN_OTHER_WORDS = 3
"""The round in which the second sample of a plan is at first the first one's program; else it is another one."""


def reply_to(body: dict[str, Any]) -> str:
    """The same for the same request, whenever it is asked."""
    text = _text(body["messages"][0]["content"])
    found = re.search(
        r"[Rr]ound (\d+)", text[text.find("## The plan of round") :] if "## The plan of" in text else text
    )
    assert found is not None, text[:200]
    number = int(found.group(1))
    if "you are the planner" in text:
        beside = " beside" if "in this round already" in text else ""
        return json.dumps({
            "title": f"idea {number}{beside}", "technique": f"technique-{number}{beside}", "bottleneck": "memory-bound",
            "expected_gain_us": 3.0, "rationale": "short rows", "details": "",
        })  # fmt: skip
    if "# You are the programmer" in text:
        latest = re.search(r"Try (\d+), the latest", text)
        kernels = BESIDE if f"idea {number} beside" in text[text.find("## The plan of round") :] else KERNELS
        tries = int(latest.group(1)) if latest else 0
        plain = kernels[number][min(tries, len(kernels[number]) - 1)]
        if "(Sample 2 of" not in text:
            return plain
        if number == SAME_IN_OTHER_WORDS and not tries:
            return plain.replace("```\n", "SECOND = 1\n```\n")
        return plain.replace("data1=a, data2=b", "data1=b, data2=a")
    review = {"diagnosis": "right", "lesson": f"lesson {number}", "avoid": [], "build_on": ["rows"]}
    return json.dumps(review | {"title": f"Wider rows {number}", "summary": "Longer rows cost less."})


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


@dataclass(frozen=True)
class World:
    """One run's files. `url`: of the server that plays the model."""

    folder: Path
    url: str
    width: int = 1
    reference: str = REFERENCE
    flags: tuple[str, ...] = ("--rounds", "3")
    device: bool = False
    models: tuple[str, ...] = ("--model", "test-model")

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "add.py").write_text(SLOW, encoding="utf-8")
        (self.folder / "add_reference.py").write_text(self.reference, encoding="utf-8")

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "checkpoints" / "r")

    @property
    def evaluations(self) -> Counter[str]:
        tally = self.folder / "tally"
        return Counter(tally.read_text(encoding="utf-8").splitlines() if tally.exists() else [])

    def warm_up(self) -> None:
        """Runs once in this very process: templates, schemas and imports are ready in every process forked later."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (("ANTHROPIC_API_KEY", "test-key"), ("ANTHROPIC_BASE_URL", self.url)):
                patch.setenv(name, value)
            patch.setattr(assembled_run, "target_of", lambda settings: CheapTarget(self.folder / "tally"))
            assert orchestrator.main(self._arguments()) == 0

    def _arguments(self) -> list[str]:
        places = ["--checkpoints", str(self.folder / "checkpoints"), "--memory", str(self.folder / "memory.json")]
        if (self.run.path / "manifest.json").exists():
            return [*places, "--resume", "r"]
        return [*places, "--kernel", str(self.folder / "add.py"), *self.flags, "--run-id", "r",
                "--provider", "anthropic", *self.models, "--menu-seconds", "0",
                "--width", str(self.width)]  # fmt: skip

    def start(self, kill: Kill | None = None, target: Callable[[], Target] | None = None) -> int | None:
        """Runs, or resumes, in a process of its own; its exit status, or None when it was killed."""
        arguments = self._arguments()
        child = os.fork()
        if child == 0:
            status = 70
            try:
                status = self._in_child(arguments, kill, target)
            except BaseException:  # the end of a forked process: nothing may return into the test runner
                traceback.print_exc()
            finally:
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        return (
            None if os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL else os.waitstatus_to_exitcode(ended)
        )

    def _in_child(self, arguments: list[str], kill: Kill | None, target: Callable[[], Target] | None) -> int:
        os.environ.update(ANTHROPIC_API_KEY="test-key", ANTHROPIC_BASE_URL=self.url)
        output = open(self.folder / "output", "a", encoding="utf-8")  # noqa: SIM115 (ends with the process)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.stdout = sys.stderr = output
        make = target or (lambda: CheapTarget(self.folder / "tally", self.device))
        assembled_run.target_of = lambda settings: make()
        (kill or Kill(step=0, after=True)).arm()
        status = orchestrator.main(arguments)
        output.flush()
        return status


@dataclass(frozen=True)
class Kill:
    """SIGKILL just before or just after the n-th durable step: a file replaced, or a line appended. Never at step 0."""

    step: int
    after: bool

    def arm(self) -> None:
        # A kill loses nothing that was written; only a power cut would, so nobody waits for the disk here.
        replace, steps = os.replace, itertools.count(1)  # next() is one step for all threads

        def counted(act: Callable[[], None]) -> None:
            number = next(steps)
            if number == self.step and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            act()
            if number == self.step:
                os.kill(os.getpid(), signal.SIGKILL)

        def killing_fsync(descriptor: int) -> None:
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND:
                counted(lambda: None)

        os.replace = lambda old, new: counted(lambda: replace(old, new))  # type: ignore[assignment]  # in this process only
        os.fsync = killing_fsync  # type: ignore[assignment]  # in this process only
