"""Running orchestrator.py as a user does: a process, its output, its exit code, its folder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import orchestrator

ROOT = Path(__file__).resolve().parents[2]
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL")
QUICK = {"NKI_OPT_MENU_SECONDS": "0", "NKI_OPT_SEEDS": "0", "NKI_OPT_EXTRA_SEEDS": "1"}
"""Pricing a menu takes seconds for each kernel of a run, and seven seeds of every distribution most of its processor
time; test_menu_run.py has a menu, and a run of a shipped task all seeds (`environment=AS_SHIPPED`)."""
AS_SHIPPED = {"NKI_OPT_MENU_SECONDS": "0", "NKI_OPT_SEEDS": "", "NKI_OPT_EXTRA_SEEDS": "2"}


@dataclass(frozen=True)
class Ran:
    status: int
    output: str
    errors: str
    checkpoints: Path

    @property
    def folder(self) -> Path:
        """Of the newest run."""
        return max(self.checkpoints.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime).parent

    def document(self, name: str) -> dict:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def attempts(self) -> list[dict]:
        lines = (self.folder / "experiments.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def outcomes(self) -> list[str]:
        return [attempt["outcome"] for attempt in self.attempts()]

    def events(self) -> list[dict]:
        lines = (self.folder / "run.log").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def steps(self, round: int) -> list[str]:
        return [e["step"] for e in self.events() if e["event"] == "StepBegan" and e["round"] == round]

    @property
    def speedup(self) -> float:
        return self.latency_us("baseline.json") / self.latency_us("best.json")

    def latency_us(self, name: str) -> float:
        """Of `baseline.json` or `best.json`."""
        (stored,) = (self.folder / "evaluations").glob(f"{self.document(name)['evaluation']}*.json")
        return json.loads(stored.read_text(encoding="utf-8"))["evaluation"]["latency_us"]


def orchestrate(
    *arguments: str, folder: Path, environment: Mapping[str, str] | None = None, timeout_s: float = 280
) -> Ran:
    """Everything it writes goes below `folder`; no key of this machine reaches it."""
    clean = {name: value for name, value in os.environ.items() if name not in KEYS and not name.startswith("NKI_OPT")}
    checkpoints = folder / "checkpoints"
    done = subprocess.run(
        [sys.executable, str(ROOT / "orchestrator.py"), *arguments, "--checkpoints", str(checkpoints),
         "--memory", str(folder / "memory" / "rewrites.json")],
        cwd=folder, env={**clean, **QUICK, **(environment or {}), "COLUMNS": "120"}, capture_output=True, text=True,
        timeout=timeout_s, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr, checkpoints)


def orchestrate_here(*arguments: str, folder: Path, environment: Mapping[str, str] | None = None) -> Ran:
    """As `orchestrate`, in this process, whose imports are done: for what is shown, or refused before a run."""
    checkpoints, output, errors = folder / "checkpoints", io.StringIO(), io.StringIO()
    words = [*arguments, "--checkpoints", str(checkpoints), "--memory", str(folder / "memory" / "rewrites.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in [name for name in os.environ if name in KEYS or name.startswith("NKI_OPT")]:
            patch.delenv(name)
        for name, value in {**QUICK, **(environment or {}), "COLUMNS": "120"}.items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = orchestrator.main(words)
    return Ran(status, output.getvalue(), errors.getvalue(), checkpoints)
