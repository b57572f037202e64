"""The loop on this machine: the catalogue proposes, the simulated Trainium2 judges."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.kernels import BROKEN, REFERENCE, SLOW, WRONG
from tests.e2e.run import AS_SHIPPED, QUICK, ROOT, orchestrate, orchestrate_here
from tests.processes import PATIENCE_S, eventually


def test_a_shipped_seed_gets_faster_and_memory_serves_the_next_run(tmp_path: Path) -> None:
    of_matmul = ("--task", "matmul", "--preset", "small", "--rounds")
    first = orchestrate(*of_matmul, "1", folder=tmp_path, environment=AS_SHIPPED)
    assert first.status == 0, first.errors + first.output
    assert first.speedup > 1.05 and "improved" in first.outcomes()
    assert "simulated" in first.output and "best_kernel.py" in first.output
    assert "ANTHROPIC_API_KEY" in first.output, "it says how to use a model instead"
    second = orchestrate(*of_matmul, "1", folder=tmp_path)
    started = next(e for e in second.events() if e["event"] == "RunStarted")
    assert started["experiences"] >= 1
    assert second.status == 0


@pytest.mark.slow
def test_the_demo_wins_without_a_contested_fact(tmp_path: Path) -> None:
    """What `./run.sh` runs with no word more."""
    ran = orchestrate("demo", "--json", folder=tmp_path, environment=AS_SHIPPED)
    assert ran.status == 0, ran.errors
    run = json.loads(ran.output)
    assert run["improved"] and run["speedup"] >= 2
    assert run["best"]["contested"] == []


def files(folder: Path, kernel: str, reference: str = REFERENCE) -> None:
    (folder / "add.py").write_text(kernel, encoding="utf-8")
    (folder / "add_reference.py").write_text(reference, encoding="utf-8")


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (WRONG, "add.py is wrong: outputs differ"),
        (BROKEN, "add.py:20: does not compile: module nki.isa has no attribute 'tensor_plus'"),
        ("x = 1\n", "add.py: does not compile: NameError: the file defines no kernel"),
        ("import nki\ndef kernel(:", "add.py:2: does not compile: SyntaxError: "),
    ],
    ids=["wrong", "unknown instruction", "no kernel", "no python"],
)
def test_a_baseline_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, kernel: str, said: str) -> None:
    files(tmp_path, kernel)
    ran = orchestrate_here("--kernel", "add.py", folder=tmp_path)
    assert ran.status == 3
    assert said in ran.errors and ran.errors.count("\n") == 1, ran.errors
    assert "candidate.py" not in ran.errors and "<unknown>" not in ran.errors + ran.output, "the user's file, no other"


def test_which_reference_was_adopted_is_said_and_that_it_may_be_the_wrong_one(tmp_path: Path) -> None:
    files(tmp_path, SLOW, REFERENCE.replace("return x + np", "return x - np"))
    ran = orchestrate_here("--kernel", "add.py", folder=tmp_path)
    assert ran.status == 3
    assert "reference: add_reference.py (found beside the kernel)" in ran.output
    assert "or the kernel is right and its reference, add_reference.py, is wrong" in ran.errors
    found = re.search(r"`python3 (-m nki_sim run [^`]+)`", ran.errors)
    assert found is not None, "what to run is said"
    shown = subprocess.run(
        [sys.executable, *found[1].split()], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    place = re.search(r"furthest at \[(\d+), (\d+)\]: kernel (\S+), reference (\S+)", shown.stdout)
    assert place is not None and float(place[3]) != float(place[4]), shown.stdout


def test_a_reference_that_fails_or_is_not_there_is_named(tmp_path: Path) -> None:
    files(tmp_path, SLOW, REFERENCE.replace("return x + np.tile(y, (T, 1))", "return x + z"))
    ran = orchestrate_here("--kernel", "add.py", folder=tmp_path)
    assert ran.status == 2 and "forward()" in ran.errors and "NameError" in ran.errors
    (tmp_path / "add_reference.py").unlink()
    ran = orchestrate_here("--kernel", "add.py", folder=tmp_path)
    assert ran.status == 2 and "--problem" in ran.errors and "Traceback" not in ran.errors


def test_ctrl_c_finishes_the_step_saves_and_prints_the_table(tmp_path: Path) -> None:
    files(tmp_path, SLOW)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "orchestrator.py"), "--task", "matmul", "--preset", "small", "--rounds", "50",
         "--checkpoints", str(tmp_path / "c"), "--memory", str(tmp_path / "m.json"), "--provider", "catalogue"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, **QUICK},
    )  # fmt: skip
    begun = "c/*/baseline.json"
    assert eventually(lambda: process.poll() is not None or any(tmp_path.glob(begun))) and process.poll() is None
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 5, errors
    assert "best_kernel.py" in output and "Traceback" not in errors
    assert next(tmp_path.glob("c/*/best_kernel.py")).stat().st_size > 0
