"""What `--engine` may say, also where Ray is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infra.engines.engine_names import address_of
from tests.e2e.run import ROOT, orchestrate_here


def test_names_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert address_of("local") is None
    assert address_of("ray") == "auto"
    assert address_of("ray://head.example:6379") == "head.example:6379"
    assert address_of("ray://[fd00::1]:6379") == "[fd00::1]:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert address_of("ray") == "10.0.0.1:6379"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--engine", "dask"], "neither local, nor ray"),
        (["--engine", "ray://head"], "ray://HOST:PORT"),
        (["--engine", "ray://head:10001"], "port of Ray Client"),
        (["--engine", "ray", "--host", "ubuntu@10.0.0.1"], "over SSH"),
        (["--neuron-cores", "2"], "of which cluster?"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, flags: list[str], said: str) -> None:
    ran = orchestrate_here(*flags, folder=tmp_path)
    assert ran.status == 2
    assert said in ran.errors and ran.errors.count("\n") == 1, ran.errors


def test_without_the_extra_a_line_says_how_to_install_it(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['ray'] = None; sys.path.insert(0, sys.argv[1]); import orchestrator;"
        "sys.exit(orchestrator.main(sys.argv[2:]))"
    )
    flags = ["--engine", "ray", "--task", "silu", "--preset", "small", "--checkpoints", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT), *flags], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 4
    assert "pip install 'nki-optimizer[ray]'" in done.stderr and done.stderr.count("\n") == 1, done.stderr
