"""A virtual environment may be a link to another place; what isolates a candidate must show both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.kernels import SLOW
from tests.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import sys
from infra.simulator.toolchain import SimulatorToolchain
from accelopt_core.toolchain import TensorArgument
toolchain = SimulatorToolchain("trn2")
arguments = (TensorArgument((128, 256), "float32"), TensorArgument((128, 256), "float32"))
artifact = toolchain.compile(sys.stdin.read(), arguments, 60.0)
print(len(artifact.program), sys.prefix)
toolchain.close()
"""


def test_a_linked_virtual_environment_compiles_candidates(tmp_path: Path) -> None:
    if sys.prefix == sys.base_prefix:
        pytest.skip("this Python is no virtual environment")
    link = tmp_path / "venv"
    link.symlink_to(sys.prefix)
    done = subprocess.run(
        [str(link / "bin" / "python"), "-c", PROGRAM], cwd=ROOT, input=SLOW, capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, prefix = done.stdout.split()
    assert int(count) > 0 and prefix == str(link)
