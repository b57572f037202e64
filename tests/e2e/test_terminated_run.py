"""SIGTERM while a run waits for a model: it ends then, saves, and says how far it came, as after Ctrl-C."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.e2e.kernels import REFERENCE, SLOW
from tests.e2e.run import KEYS, QUICK, ROOT
from tests.e2e.test_model_run import PLAN
from tests.llm.wire_server import Hang, HttpFault, WireServer
from tests.processes import PATIENCE_S, eventually


def start(folder: Path, environment: Mapping[str, str], *flags: str) -> subprocess.Popen[str]:
    (folder / "add.py").write_text(SLOW, encoding="utf-8")
    (folder / "add_reference.py").write_text(REFERENCE, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if name not in KEYS and not name.startswith("NKI_OPT")}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "orchestrator.py"), "--kernel", "add.py", "--view", "plain",
         "--checkpoints", "c", "--memory", "m.json", *flags],
        cwd=folder, env={**clean, **QUICK, **environment}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def terminated_when(waits: Callable[[], bool], process: subprocess.Popen[str]) -> str:
    """What it printed."""
    try:
        assert eventually(lambda: process.poll() is not None or waits()) and process.poll() is None
        time.sleep(0.5)  # into the wait
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 5, errors + output
    assert "Traceback" not in errors + output
    assert "interrupted" in output and "best_kernel.py" in output and "next " in output, "saved, and the table"
    return output


@pytest.mark.parametrize("provider", ["anthropic", pytest.param("openai", marks=pytest.mark.slow)])
def test_a_server_that_never_answers(tmp_path: Path, provider: str) -> None:
    with WireServer(lambda body: Hang()) as server:
        url = server.url if provider == "anthropic" else server.openai_url
        told = {f"{provider.upper()}_API_KEY": "k", f"{provider.upper()}_BASE_URL": url}
        terminated_when(lambda: bool(server.requests), start(tmp_path, told))
        assert len(server.requests) == 1


@pytest.mark.slow
def test_a_server_that_asks_to_wait(tmp_path: Path) -> None:
    with WireServer(lambda body: HttpFault(429, "rate_limit_error", headers={"retry-after": "300"})) as server:
        told = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url}
        terminated_when(lambda: bool(server.requests), start(tmp_path, told))
        assert len(server.requests) == 1, "it is not asked once more"


@pytest.mark.slow
def test_kernels_that_are_written_side_by_side(tmp_path: Path) -> None:
    """Two plans are made, and then two lanes wait in threads of their own."""
    plans = [PLAN, PLAN.replace("wider", "longer").replace("2048", "1024")]
    with WireServer(lambda body: plans.pop(0) if plans else Hang()) as server:
        told = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url}
        terminated_when(lambda: len(server.requests) == 4, start(tmp_path, told, "--width", "2"))


@pytest.mark.slow
def test_a_mailbox_that_nobody_empties(tmp_path: Path) -> None:
    process = start(tmp_path, {}, "--provider", "mailbox", "--mailbox", "box")
    log = tmp_path / "c"
    output = terminated_when(lambda: any("still at it" in path.read_text() for path in log.glob("*/run.log")), process)
    assert list(tmp_path.glob("box/*-planner-*.request.md"))
    assert re.search(r"round 1/10 plan: still at it, for \d+ s\n", output), "planning that lasts is no silent screen"


@pytest.mark.slow
def test_a_program_that_thinks_for_ever_is_ended_with_it(tmp_path: Path) -> None:
    program = tmp_path / "thinker.py"
    says_its_number = "import os, pathlib, time\npathlib.Path(__file__).with_name('pid').write_text(str(os.getpid()))\n"
    program.write_text(f"{says_its_number}time.sleep(3600)\n")
    command = shlex.join([sys.executable, str(program)])
    process = start(tmp_path, {}, "--provider", "command", "--model-command", command)
    pid = tmp_path / "pid"
    terminated_when(lambda: pid.exists() and bool(pid.read_text()), process)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
