"""test_agent.py closes with what a person wants to know, and pytest's verdict stays pytest's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S

ROOT = Path(__file__).parents[2]

TESTS = {
    "tests/good/test_a.py": "def test_one(): pass\ndef test_two(): pass\n",
    "tests/mixed/test_b.py": """
import os, pytest
def test_fails(): assert 1 == 2
@pytest.mark.skip("sshd is not installed")
def test_skipped(): pass
@pytest.mark.skip("sshd is not installed")
def test_skipped_too(): pass
def test_no_key_is_seen(): assert "ANTHROPIC_API_KEY" not in os.environ
@pytest.fixture
def broken(): raise RuntimeError("no")
def test_error(broken): pass
""",
    "tests/absent/test_c.py": "import a_module_nobody_has\n",
}


def run_suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from pathlib import Path; from test_agent import run_suite\n"
    code += "sys.exit(run_suite(Path(sys.argv[1]), sys.argv[2:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ANTHROPIC_API_KEY": "sk-x", "COLUMNS": "100"}
    environment.pop("PYTEST_ADDOPTS", None)
    argv = [sys.executable, "-c", code, str(folder), "--import-mode=importlib", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name, text in TESTS.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    return tmp_path


def test_areas_reasons_failures_and_at_the_very_end_pytest_s_own_line(suite: Path) -> None:
    done = run_suite(suite, "--continue-on-collection-errors")
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {line.split()[0]: line.split()[1:4] for line in done.stdout.splitlines() if len(line.split()) == 5}
    assert rows["good"] == ["2", "0", "0"]
    assert rows["mixed"] == ["1", "2", "2"]
    assert rows["absent"] == ["0", "1", "0"]
    assert "skipped 2 in mixed: sshd is not installed" in done.stdout
    assert "FAILED tests/mixed/test_b.py::test_fails" in done.stdout
    assert "FAILED tests/absent/test_c.py (cannot be imported)" in done.stdout
    assert "1 failed, 3 passed, 2 skipped, 2 errors" in done.stdout.splitlines()[-1]


def test_no_test_at_all_is_no_success(suite: Path) -> None:
    assert run_suite(suite, "-k", "nothing_of_that_name", "tests/good").returncode == 5
