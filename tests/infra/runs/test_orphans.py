"""After `kill -9` nothing goes on in a dead run's name, and nothing of it stays on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from infra import scratch_folder
from infra.scratch_folder import ScratchFolder, clear_left_over
from tests.processes import eventually

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")

ENDLESS_KERNEL = """
from accelopt_core.candidate import Candidate
from accelopt_core.ports import EvaluationRequest
from infra.tasks.seed_index import load_seed
from infra.targets.local import LocalTarget

source = "import nki\\n@nki.jit\\ndef kernel(x):\\n    while True:\\n        pass\\n"
request = EvaluationRequest(load_seed("silu").task(), Candidate("input", source))
LocalTarget("simulator", "trn2").evaluate(request, lambda step, detail: None)
"""

ENDLESS_CHECKS = """
import time
from accelopt_core.judging.side_by_side import WORTH_A_PROCESS_BYTES, side_by_side
list(side_by_side(lambda seed: time.sleep(600), (0, 21), WORTH_A_PROCESS_BYTES, 2))
"""


def with_mark(mark: str) -> list[int]:
    """Processes whose environment or command line holds `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                if mark.encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize(
    ("program", "processes"),
    [pytest.param(ENDLESS_KERNEL, 3, id="judge-and-candidate"), pytest.param(ENDLESS_CHECKS, 3, id="checks")],
)
def test_when_a_run_is_killed_then_all_that_worked_for_it_ends(tmp_path, program, processes):
    scratch = tmp_path / "scratch-of-this-test"
    scratch.mkdir()
    run = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, env={**os.environ, "TMPDIR": str(scratch)}
    )
    assert eventually(lambda: len(with_mark(str(scratch))) >= processes), "it did not come to work"
    run.kill()
    run.wait()
    assert eventually(lambda: not with_mark(str(scratch))), f"still there: {with_mark(str(scratch))}"


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(scratch_folder, "_JUST_MADE_S", -1.0)
    return tmp_path


def test_a_folder_of_a_killed_process_goes_and_those_of_the_living_and_of_others_stay(temporary) -> None:
    code = "import os; from infra.scratch_folder import ScratchFolder; ScratchFolder('nki-x-'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)})
    (left_over,) = temporary.iterdir()
    ScratchFolder("nki-x-").close()
    assert not left_over.exists()
    (temporary / "nki-x-unlocked").mkdir()
    ScratchFolder("nki-x-").close()
    assert (temporary / "nki-x-unlocked").is_dir()


def test_the_folder_of_a_living_process_and_those_of_others_stay(temporary):
    (temporary / "nki-other-1").mkdir()
    (temporary / "nki-x-link").symlink_to(temporary / "nki-other-1")
    mine = ScratchFolder("nki-x-")
    ScratchFolder("nki-x-").close()
    assert mine.path.is_dir() and (temporary / "nki-other-1").is_dir() and (temporary / "nki-x-link").is_symlink()
    mine.close()
    assert not mine.path.exists()


def test_a_folder_whose_owner_is_about_to_lock_it_stays(temporary, monkeypatch):
    monkeypatch.setattr(scratch_folder, "_JUST_MADE_S", 60.0)
    (temporary / ".nki-x-new").mkdir()
    (temporary / ".nki-x-new" / ".owner").touch()
    ScratchFolder("nki-x-").close()
    assert (temporary / ".nki-x-new").is_dir()
    os.utime(temporary / ".nki-x-new", (0, 0))
    ScratchFolder("nki-x-").close()
    assert not (temporary / ".nki-x-new").exists(), "its owner was killed before it came to that"


def test_the_next_run_clears_up_after_killed_ones_at_once_and_says_how_much(temporary, monkeypatch):
    monkeypatch.setattr(scratch_folder, "_JUST_MADE_S", 60.0)
    alive = ScratchFolder("nki-alive-")
    code = (
        "import os; from infra.scratch_folder import ScratchFolder\n"
        "(ScratchFolder('nki-{}-').path / 'big').write_bytes(bytes(3 << 20)); os.kill(os.getpid(), 9)"
    )
    for name in ("judge", "model"):
        subprocess.run(
            [sys.executable, "-c", code.format(name)], cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)}
        )
    said = clear_left_over()
    assert said == f"removed 2 folders (6.0 MiB) that a killed process of ours had left in {temporary}"
    assert [*temporary.iterdir()] == [alive.path] and clear_left_over() == ""
    alive.close()
