"""What is loaded before anything is asked for: `--help`, `--version` and usage errors start nothing large."""

from __future__ import annotations

import subprocess
import sys

import pytest

from config import PROJECT

LARGE = {"numpy", "ml_dtypes", "numba", "rich", "jinja2", "paramiko", "pydantic", "anthropic", "openai", "ray", "mcp"}
PRINT_LOADED = "import atexit, sys; atexit.register(lambda: print('LOADED', *sys.modules)); "


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["--no-such-flag"], ["evaluate", "--help"]], ids=" ".join)
def test_the_optimizer_loads_nothing_large_for(words: list[str]) -> None:
    loaded = _loaded(f"import orchestrator; sys.exit(orchestrator.main({words}))")
    assert "config" in loaded and not loaded & {*LARGE, "nki_sim"}


@pytest.mark.parametrize("words", [["--help"], ["profile", "--help"], ["no-such-command"]], ids=" ".join)
def test_the_simulator_loads_nothing_large_for(words: list[str]) -> None:
    loaded = _loaded(f"from nki_sim.__main__ import main; sys.exit(main({words}))")
    assert "nki_sim.machine" in loaded and not loaded & LARGE


def test_whoever_reads_programs_knows_every_instruction() -> None:
    known = "from nki_sim.encoding import program_file; from nki_sim.contract.opcodes import OPCODES"
    _loaded(f"{known}; names = set(OPCODES); import nki_sim; nki_sim.install(); sys.exit(names != set(OPCODES))", 0)


def _loaded(code: str, status: int | None = None) -> set[str]:
    done = subprocess.run([sys.executable, "-c", PRINT_LOADED + code], cwd=PROJECT, capture_output=True, text=True)
    assert status in (None, done.returncode), done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())
