"""What libraries say, and a reader that has seen enough, leave nothing on the screen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.house.structure import ROOT
from tests.processes import PATIENCE_S

NOISY = """
import logging, warnings
import orchestrator
from infra.commands import by_name

def runs(invocation, answer):
    logging.getLogger("urllib3.connectionpool").warning("noise of a connection")
    warnings.warn("noise of a compiler")
    logging.getLogger("nki_sim.machine_code").warning("Numba cannot be used")
    return 0

by_name.COMMANDS["runs"] = runs
raise SystemExit(orchestrator.main(["runs"]))
"""


def test_libraries_say_nothing_on_the_screen(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", NOISY], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Numba cannot be used\n")


def test_head_gets_its_lines_and_no_traceback(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, str(ROOT / "orchestrator.py"), "config"], stdout=write, stderr=subprocess.PIPE, text=True,
            cwd=tmp_path, timeout=PATIENCE_S,
        )  # fmt: skip
    finally:
        os.close(write)
    assert done.stderr == ""
