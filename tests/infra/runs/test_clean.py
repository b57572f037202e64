"""`clean` here: what killed processes left goes, what anything living holds stays, results are never touched."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import orchestrator
from infra import scratch_folder
from infra.commands.machines import clean_here
from infra.engines import at_node
from infra.runs.run_folder import RunFolder
from infra.ssh.remote_agent import leftovers
from tests.house.structure import ROOT, modules
from tests.infra.reports.test_report import finished_run
from tests.infra.samples import manifest
from tests.processes import eventually, running

OLD = time.time() - 3 * leftovers.DAY_S


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, of this process and of those that it starts."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def aged(path: Path) -> Path:
    os.utime(path, (OLD, OLD))
    return path


def fates(tmp_path: Path, *, remove: bool = True) -> dict[str, str]:
    """Name -> why it was kept, or nothing."""
    return {Path(each.path).name: each.kept for each in clean_here(tmp_path / "runs", remove=remove)}


def holder(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a scratch folder of its own."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from infra.scratch_folder import ScratchFolder; "
        "s = ScratchFolder('nki-judge-'); (s.path / 'big').write_bytes(bytes(5000)); print(s.path, flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    return process, Path(process.stdout.readline().strip())


def test_a_killed_process_s_scratch_goes_and_a_living_one_s_stays(tmp_path: Path, temporary: Path) -> None:
    killed, left = holder(temporary)
    living, held = holder(temporary)
    try:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        aged(left), aged(held)
        assert fates(tmp_path, remove=False) == {left.name: "", held.name: "its process is running"}
        assert left.exists(), "only listed"
        (gone,) = [each for each in clean_here(tmp_path / "runs", remove=True) if not each.kept]
        assert gone.path == str(left) and gone.bytes == 5000 and gone.age_s > leftovers.DAY_S
        assert not left.exists() and (held / "big").exists()
    finally:
        for each in (killed, living):
            each.communicate("\n")


def test_a_folder_that_nobody_locks_goes_when_it_is_old_and_in_no_hands(tmp_path: Path, temporary: Path) -> None:
    old = ("nki-probe-00000old", "nki-probe-0000used", "nki-probe-000named", "somebodys", "nki-judge-notes")
    for name in (*old, "nki-probe-000young"):
        (temporary / name / "deep").mkdir(parents=True)
    for name in old:
        aged(temporary / name)
    sleep = [sys.executable, "-c", "input()"]
    working = subprocess.Popen(sleep, cwd=temporary / "nki-probe-0000used" / "deep", stdin=subprocess.PIPE)
    naming = [*sleep, str(temporary / "nki-probe-000named" / "job.json")]
    told = subprocess.Popen(naming, stdin=subprocess.PIPE)
    try:
        assert eventually(lambda: len(running(" ".join(naming))) == 1), "its arguments come after its start"
        assert fates(tmp_path) == {
            "nki-probe-00000old": "",
            "nki-probe-0000used": "a process uses it",
            "nki-probe-000named": "a process uses it",
            "nki-probe-000young": "used within a day",
        }
    finally:
        for each in (working, told):
            each.communicate(b"\n")
    assert not (temporary / "nki-probe-00000old").exists() and (temporary / "somebodys").exists()
    assert (temporary / "nki-judge-notes").exists()


def test_what_runs_left_on_a_node_of_a_cluster_goes_and_what_is_used_stays(tmp_path: Path, temporary: Path) -> None:
    node = temporary / f"nki-optimizer-nodes-{os.getuid()}"
    for name in ("work/session-left", "work/session-used", "trees/left", "trees/used"):
        (node / name).mkdir(parents=True)
        os.close(at_node.hold(str(node / name), ".whole" if name.startswith("trees") else ".owner"))
        aged(node / name)
    held = [at_node.hold(str(node / "work/session-used")), at_node.hold(str(node / "trees/used"), ".whole")]
    try:
        busy = "its process is running"
        assert fates(tmp_path) == {"session-left": "", "session-used": busy, "left": "", "used": busy}
    finally:
        for each in held:
            os.close(each)
    assert sorted(path.name for path in node.glob("*/*")) == ["session-used", "used"]


def test_a_link_by_our_name_is_not_followed(tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "precious").mkdir()
    (temporary / "nki-judge-0000link").symlink_to(tmp_path / "precious")
    assert fates(tmp_path) == {} and (tmp_path / "precious").exists()


OF_PLUGINS = "nki-plugin-"


def test_every_folder_that_the_program_makes_there_is_known() -> None:
    """Prefixes in the text of the program, wherever one is made."""
    found = set()
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not name.startswith("infra"):
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("mkdtemp", "TemporaryDirectory", "ScratchFolder") and not any(
                keyword.arg == "dir" for keyword in node.keywords
            ):
                prefix = [*(k.value for k in node.keywords if k.arg == "prefix"), *node.args][0]
                if isinstance(prefix, ast.Constant):
                    found.add(prefix.value)
    assert found | {OF_PLUGINS} == set(leftovers.PREFIXES) and scratch_folder._OWNER == leftovers.OWNER


def test_of_runs_only_what_was_half_written_goes(tmp_path: Path, temporary: Path) -> None:
    runs = tmp_path / "runs"
    done = finished_run(runs, "done").path
    (done / "candidates" / ".r001t1.py.x.tmp").write_text("half")
    (done / "remote").mkdir()
    (done / "remote" / "a.json").write_text("{}")
    before = {path: path.read_bytes() for path in done.rglob("*") if path.is_file()}
    stopped = RunFolder.create(runs, manifest("stopped"), {})
    (stopped.path / "remote").mkdir()
    (stopped.path / ".best.json.x.tmp").write_text("half")
    assert fates(tmp_path) == {
        ".r001t1.py.x.tmp": "", "remote": "its run is under way", ".best.json.x.tmp": "its run is under way",
    }  # fmt: skip
    stopped.end("interrupted", "")
    stopped.close()
    assert fates(tmp_path) == {".best.json.x.tmp": "", "remote": "its run can be gone on with"}
    gone = {done / "candidates" / ".r001t1.py.x.tmp", done / "remote" / "a.json"}
    assert {path: path.read_bytes() for path in done.rglob("*") if path.is_file()} == {
        path: data for path, data in before.items() if path not in gone
    }


def test_a_run_that_was_killed_before_it_began_goes_and_a_folder_of_the_user_s_stays(tmp_path, temporary) -> None:
    for name, extra in (("killed", ""), ("young", ""), ("kept", "notes.txt"), ("full", "candidates/a.py")):
        path = tmp_path / "runs" / name
        for folder in ("candidates", "evaluations", "exchanges"):
            (path / folder).mkdir(parents=True)
        for file in filter(None, ("run.lock", "config.json", extra)):
            (path / file).write_text("{}")
        if name != "young":
            aged(path)
    assert fates(tmp_path) == {"killed": "", "young": "it is being made"}
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["full", "kept", "young"]


def test_the_command_lists_first_and_then_removes(tmp_path, temporary, capsys) -> None:
    left = temporary / "nki-judge-00000abc"
    left.mkdir()
    (left / ".owner").touch()
    (left / "data").write_bytes(bytes(3 << 20))
    aged(left)
    kept = temporary / "nki-probe-00000abc"
    kept.mkdir()
    asked = ("clean", "--checkpoints", str(tmp_path / "runs"))
    assert orchestrator.main([*asked, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "would be removed" in said and "3.0 MiB" in said and "kept: used within a day" in said and left.exists()
    assert orchestrator.main([*asked]) == 0
    said = capsys.readouterr().out
    assert "this machine: 1 removed (3.0 MiB), 1 kept" in said and not left.exists() and kept.exists()
