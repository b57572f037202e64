"""The same loop over SSH, against a real OpenSSH server on the loopback interface."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.runs.run_folder import RunFolder
from tests.e2e.kernels import IN_A_PACKAGE, REFERENCE, SLOW, WRONG
from tests.e2e.run import ROOT, Ran, orchestrate
from tests.e2e.test_model_run import LESSON, PLAN, SECRET, SUMMARY, code
from tests.llm.wire_server import WireServer
from tests.ssh.server import Sshd, make_sshd, processes_mentioning


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    server = make_sshd(tmp_path / "ssh")
    server.start()
    yield server
    server.stop()


def over_ssh(sshd: Sshd, folder: Path, *flags: str, environment: dict[str, str] | None = None) -> Ran:
    words = command_line(sshd, folder, [sshd.destination], *flags)
    return orchestrate(*words, folder=folder, environment=environment)


def command_line(sshd: Sshd, folder: Path, hosts: list[str], *flags: str) -> list[str]:
    (folder / "add.py").write_text(SLOW, encoding="utf-8")
    (folder / "add_reference.py").write_text(REFERENCE, encoding="utf-8")
    return [
        *hosts,
        "--ssh-config", str(sshd.home / "config"),
        "--remote-dir", str(folder / "host"),
        "--remote-python", sys.executable,
        "--kernel", "add.py",
        *flags,
    ]  # fmt: skip


def test_the_loop_runs_on_the_host_and_leaves_nothing_running_there(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    with WireServer([PLAN, code(WRONG), code(SLOW.replace("256", "2048")), SUMMARY, LESSON]) as server:
        environment = {"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": server.url}
        ran = over_ssh(sshd, tmp_path, "--remote-simulator", "--rounds", "1", environment=environment)
    assert ran.status == 0, ran.errors + ran.output
    assert ran.outcomes() == ["incorrect", "improved"] and ran.speedup > 1.3
    assert ran.steps(1)[3:8] == ["upload", "compile and verify", "execute", "upload", "compile and verify"]
    assert processes_mentioning(str(tmp_path / "host")) == []
    far = [path for path in (tmp_path / "host").rglob("*") if path.is_file()]
    assert far and all(SECRET.encode() not in path.read_bytes() for path in far), "no key ever travels"


@pytest.mark.slow
def test_a_chatty_host_and_a_link_that_was_mended_are_said(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    sshd.stop()
    sshd.sftp = "/bin/cat"  # by its log-in shell, as a server that is no part of sshd is: what that prints comes first
    sshd.options = ('ForceCommand echo Welcome to the lab; eval "$SSH_ORIGINAL_COMMAND"',)
    sshd.start()
    replies = [PLAN, code(SLOW.replace("256", "2048")), SUMMARY, LESSON]

    def cut_and_answer(body: dict[str, object]) -> str:
        sshd.cut()
        return replies.pop(0)

    with WireServer(cut_and_answer) as server:
        environment = {"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": server.url}
        ran = over_ssh(sshd, tmp_path, "--remote-simulator", "--rounds", "1", environment=environment)
    assert ran.status == 0 and ran.outcomes() == ["improved"], ran.errors + ran.output
    host = f"{getpass.getuser()}@127.0.0.1:{sshd.port}"
    assert f"note: {host} prints 'Welcome to the lab' at log-in, from ~/.bashrc" in ran.output
    table = ran.output[ran.output.index("speed-up") :]
    assert f"link     {host} dropped" in table and "and was mended" in table
    assert "Traceback" not in ran.output + ran.errors


@pytest.mark.slow
def test_a_kernel_in_its_package_travels_with_its_neighbours(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    for name, text in IN_A_PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    flags = ("--remote-simulator", "--rounds", "1", "--provider", "catalogue")
    ran = over_ssh(sshd, tmp_path, *flags, "--kernel", "pack/add.py", "--problem", "add_reference.py")
    assert ran.status == 0, ran.errors + ran.output
    assert ran.outcomes() == ["improved"] and ran.speedup > 1.05


@pytest.mark.slow
def test_a_simulated_latency_is_the_same_here_and_there(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    there = over_ssh(sshd, tmp_path, "--remote-simulator", "--rounds", "1", "--provider", "catalogue")
    here = orchestrate("--kernel", "add.py", "--rounds", "1", "--provider", "catalogue", folder=tmp_path)
    assert there.status == here.status == 0, there.errors + here.errors
    first, second = (RunFolder(path.parent).baseline() for path in sorted(tmp_path.glob("checkpoints/*/manifest.json")))
    assert first is not None and second is not None and first.result.latency_us == second.result.latency_us


def test_a_host_without_the_neuron_sdk_is_told_so_with_the_way_out(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    ran = over_ssh(sshd, tmp_path, "--provider", "catalogue")
    assert ran.status == 4
    assert "--remote-simulator" in ran.errors and ran.errors.count("\n") == 1, ran.errors


def test_a_host_that_refuses_connections_is_one_line(sshd: Sshd, tmp_path: Path) -> None:
    sshd.stop()
    ran = over_ssh(sshd, tmp_path, "--remote-simulator", "--provider", "catalogue")
    assert ran.status == 4 and ran.errors.count("\n") == 1 and str(sshd.port) in ran.errors


@pytest.mark.slow
def test_two_hosts_of_two_cores_try_four_candidates_of_a_round_at_once(sshd: Sshd, tmp_path: Path) -> None:
    """The one server under two names is two hosts."""
    names = ("127.0.0.1", "localhost")
    lines = [sshd.host_key_line(f"[{name}]:{sshd.port}") for name in names]
    (sshd.home / "known_hosts").write_text("".join(lines))
    hosts = [f"{getpass.getuser()}@{name}" for name in names]
    words = command_line(
        sshd, tmp_path, hosts, "--remote-simulator", "--cores", "0,1", "--rounds", "1", "--provider", "catalogue"
    )
    ran = orchestrate(*words, folder=tmp_path)
    assert ran.status == 0, ran.errors + ran.output
    assert ran.document("config.json")["run"]["width"] == 4
    assert len([entry for entry in ran.attempts() if entry["round"] == 1]) > 1 and ran.speedup > 1.3
    log = json.dumps(ran.events())
    assert all(f"to {host}" in log for host in hosts), "both were given something to do"
    assert processes_mentioning(str(tmp_path / "host")) == []
    assert not list((ran.folder / "remote").iterdir())


@pytest.mark.slow  # tests/ssh/test_restarted_client.py tests the same of a target
def test_a_run_killed_while_the_host_judges_collects_when_it_is_resumed(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    checkpoints, far = tmp_path / "checkpoints", tmp_path / "host"
    words = command_line(
        sshd, tmp_path, [sshd.destination],
        "--remote-simulator", "--rounds", "1", "--provider", "catalogue", "--run-id", "night",
    )  # fmt: skip
    started = subprocess.Popen(
        [sys.executable, str(ROOT / "orchestrator.py"), *words, "--checkpoints", str(checkpoints)]
        + ["--memory", str(tmp_path / "memory.json")],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    judging = False
    while not judging:
        assert started.poll() is None, "it ended before it was killed"
        judging = bool(list(far.glob("jobs/*/stdout.log")))
        time.sleep(0.01)
    started.kill()
    started.wait()
    (job,) = (path.name for path in (far / "jobs").iterdir())
    (record,) = (path for path in (checkpoints / "night" / "remote").iterdir() if path.suffix != ".session")
    assert json.loads(record.read_text())["job"] == job and os.stat(record).st_mode & 0o077 == 0
    resumed = orchestrate("--resume", "night", folder=tmp_path)
    assert resumed.status == 0, resumed.errors + resumed.output
    details = [event.get("detail", "") for event in resumed.events()]
    assert [detail for detail in details if "before a restart: collecting it" in detail]
    assert resumed.speedup > 1.3 and not list((checkpoints / "night" / "remote").iterdir())
    assert not list((far / "jobs").iterdir()) and processes_mentioning(str(far)) == []


def test_the_doctor_prints_its_checklist_of_a_bare_host(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    words = command_line(sshd, tmp_path, ["doctor", sshd.destination])
    words[words.index("--remote-python") + 1] = str(tmp_path / "bare/bin/python")
    ran = orchestrate(*words, folder=tmp_path)
    assert ran.status == 4 and ran.errors.count("\n") == 1, ran.errors
    assert "Neuron SDK" in ran.output and "disk" in ran.output, ran.output


@pytest.mark.slow
def test_the_doctor_looks_at_every_host_and_goes_on_after_one_that_does_not_answer(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()  # under its first name only
    hosts = [f"{getpass.getuser()}@{name}" for name in ("localhost", "127.0.0.1")]
    ran = orchestrate(*command_line(sshd, tmp_path, ["doctor", *hosts], "--remote-simulator"), folder=tmp_path)
    assert ran.status == 4 and "localhost" in ran.errors and ran.errors.count("\n") == 1, ran.errors
    assert "kernels are evaluated on simulated trn2" in ran.output
