"""`clean` on a host: what our own jobs left goes; what runs, and what a run will ask for again, stays."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchestrator
from infra.runs.run_folder import RunFolder
from infra.ssh.remote_agent.leftovers import DAY_S, HOUR_S
from infra.ssh.runner import JobSpec, SshRunner
from tests.infra.samples import manifest
from tests.processes import eventually
from tests.ssh.server import Sshd, make_sshd, processes_mentioning


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    """With a temporary folder of its own."""
    (tmp_path / "host tmp").mkdir()
    server = make_sshd(tmp_path / "ssh", (f'SetEnv "TMPDIR={tmp_path / "host tmp"}"',))
    server.trust()
    server.start()
    yield server
    server.stop()


def a_job(runner: SshRunner, code: str = "") -> str:
    """Ended, and not collected; running, if it prints."""
    job = runner.new_job(JobSpec((sys.executable, "-c", code), 60.0))
    runner.start_job(job)
    following = runner.follow(job)
    if code:
        assert next(iter(following)) == "on"
    else:
        assert list(following) == []
    return job.id


def aged(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_what_runs_is_kept_with_all_that_was_sent(runner: SshRunner, work: Path, tmp_path: Path) -> None:
    tree = Path(runner.put_tree({"a.py": b"1"}).path)
    ended, owed, young = a_job(runner), a_job(runner), a_job(runner)
    marker = f"60.{os.getpid()}"
    running = a_job(runner, f"import time; print('on', flush=True); time.sleep({marker})")
    left = tmp_path / "host tmp" / "nki-judge-0killed0"
    left.mkdir()
    (left / ".owner").touch()
    for path in (work / "jobs" / ended, work / "jobs" / owed, work / "jobs" / running, left):
        aged(path, 2 * DAY_S)
    for path in (tree, *(work / "blobs").iterdir()):
        aged(path, 2 * HOUR_S)

    def fates(*, remove: bool) -> dict[str, str]:
        found = runner.clean([owed], remove=remove)
        return {Path(each["path"]).name: each["kept"] for each in found if each["kind"] != "blobs"}

    expected = {
        ended: "", owed: "a run that was interrupted will collect it",
        young: "ended today: its run may still collect it", running: "it is running", tree.name: "jobs are running",
        left.name: "",
    }  # fmt: skip
    assert fates(remove=False) == expected and left.exists() and (work / "jobs" / ended).exists()
    assert fates(remove=True) == expected
    assert not left.exists() and {path.name for path in (work / "jobs").iterdir()} == {owed, young, running}
    assert (tree / "a.py").exists()
    job = work / "jobs" / running
    os.kill(json.loads((job / "supervisor.json").read_text())["pid"], 9)  # as by an out-of-memory killer
    aged(job, 2 * DAY_S)
    again = fates(remove=True)
    assert again[tree.name] == again[running] == "", "nothing runs, and both are old"
    assert not tree.exists() and not any((work / "blobs").iterdir()) and not job.exists()
    assert eventually(lambda: not processes_mentioning(marker)), "what the dead supervisor had started is ended too"


def test_the_command_asks_what_interrupted_runs_are_owed(runner, sshd, work, tmp_path, capsys) -> None:
    ended, owed = a_job(runner), a_job(runner)
    for name in (ended, owed):
        aged(work / "jobs" / name, 2 * DAY_S)
    run = RunFolder.create(tmp_path / "runs", manifest("r1"), {})
    (run.path / "remote").mkdir()
    (run.path / "remote" / "x.json").write_text(json.dumps({"job": owed}))
    run.end("interrupted", "")
    run.close()
    flags = (
        "--checkpoints", tmp_path / "runs", "--ssh-config", sshd.home / "config", "--remote-dir", work,
    )  # fmt: skip
    asked = ["clean", sshd.destination, *map(str, flags)]
    assert orchestrator.main([*asked, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert ended in said and f"{sshd.destination}: 1 would be removed" in said
    assert orchestrator.main(asked) == 0
    assert f"{sshd.destination}: 1 removed" in capsys.readouterr().out
    assert {path.name for path in (work / "jobs").iterdir()} == {owed}


def test_a_host_that_is_gone_is_said_and_the_others_are_cleaned(sshd, work, tmp_path, capsys) -> None:
    flags = (
        "--ssh-config", sshd.home / "config", "--remote-dir", work, "--reconnect", "0",
        "--checkpoints", tmp_path / "runs",
    )  # fmt: skip
    status = orchestrator.main(["clean", "nobody@127.0.0.1:9", sshd.destination, *map(str, flags)])
    said = capsys.readouterr()
    assert status == 4 and "127.0.0.1" in said.err and f"{sshd.destination}: 0 removed" in said.out
    assert not work.exists(), "a host on which there was nothing is left so"
