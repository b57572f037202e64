"""What goes wrong between two machines at night, one fault at a time: each ends in the right result or in one line."""

from __future__ import annotations

import getpass
import os
import queue
import socket
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from accelopt_core.ports import TargetUnreachable
from infra.ssh.runner import JobSpec, RemoteJob, SshRunner
from infra.ssh.stream import JobRefused, Stream
from tests.interpreters import interpreters
from tests.processes import PATIENCE_S, eventually, limits_s
from tests.slow import quick
from tests.ssh.server import Sshd, free_port, processes_mentioning


@dataclass
class SlowWire:
    """A TCP relay that delays both directions and remembers who spoke when."""

    to_port: int
    delay_s: float
    port: int = field(default_factory=free_port)
    spoke: list[str] = field(default_factory=list)

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.to_port))
            for name, source, sink in (("near", near, far), ("far", far, near)):
                line: queue.Queue[tuple[float, bytes]] = queue.Queue()
                threading.Thread(target=self._read, args=(name, source, line), daemon=True).start()
                threading.Thread(target=self._write, args=(line, sink), daemon=True).start()

    def _read(self, name: str, source: socket.socket, line: queue.Queue[tuple[float, bytes]]) -> None:
        data = b"."
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            if data:
                self.spoke.append(name)
            line.put((time.monotonic() + self.delay_s, data))

    def _write(self, line: queue.Queue[tuple[float, bytes]], sink: socket.socket) -> None:
        while True:
            due, data = line.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return

    def stop(self) -> None:
        self._listener.close()

    def turns(self) -> int:
        """How often the client spoke after the host had: each is a wait for the way there and back."""
        return sum(pair == ("far", "near") for pair in zip(["far", *self.spoke], self.spoke))


def test_starting_following_fetching_and_removing_a_job_is_three_round_trips(sshd: Sshd, work: Path) -> None:
    wire = SlowWire(sshd.port, 0.05)
    wire.start()
    (sshd.home / "known_hosts").write_text(sshd.host_key_line(f"[127.0.0.1]:{wire.port}"))
    try:
        host = f"{getpass.getuser()}@127.0.0.1:{wire.port}"
        with SshRunner(host, sshd.settings, root=str(work)) as runner:
            tree = runner.put_tree({"a.py": b"import sys\nopen(sys.argv[1], 'w').write('x' * 100000)\nprint('line')\n"})
            time.sleep(0.5)  # let what is still under way arrive, so that it is not counted below
            wire.spoke.clear()
            argv, sent = (sys.executable, f"{tree.path}/a.py", "result"), {"job.json": os.urandom(20_000)}
            job = runner.new_job(JobSpec(argv, 60, files=sent, collect=("result",)))
            runner.start_job(job, tree)
            lines = list(runner.follow(job))
            turns = wire.turns()
            runner.remove(job)
        assert lines == ["line"] and len(job.files["result"]) == 100_000
        assert turns <= 3
        assert eventually(lambda: not list((work / "jobs").iterdir()))
    finally:
        wire.stop()


def test_a_quiet_job_is_not_taken_for_a_dead_link(sshd: Sshd, work: Path) -> None:
    def is_kept(silence_s: float) -> bool:
        """Whether a job that says nothing for longer than that keeps its connection."""
        settings = replace(sshd.settings, silence_limit_s=silence_s, reconnect_for_s=5 * silence_s)
        quiet, seen = ("sleep", str(1.5 * silence_s)), []
        try:
            with SshRunner(sshd.destination, settings, root=str(work)) as runner:
                job = runner.new_job(JobSpec(quiet, PATIENCE_S))
                runner.start_job(job)
                seen += sshd.connections()
                assert list(runner.follow(job)) == [] and job.outcome is not None and job.outcome.status == 0
                seen += sshd.connections()
                assert runner.run(quiet, PATIENCE_S).status == 0
                seen += sshd.connections()
        except TargetUnreachable:  # so short a silence is too long for this machine
            return False
        return len(seen) == 3 and len(set(seen)) == 1

    assert any(is_kept(silence_s) for silence_s in limits_s(1.0))


def test_a_host_that_takes_connections_and_says_nothing_is_given_up(sshd: Sshd, work: Path, tmp_path: Path) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o755)

    def given_up(silence_s: float) -> str:
        settings = replace(sshd.settings, silence_limit_s=silence_s, reconnect_for_s=2 * silence_s)
        with (
            SshRunner(sshd.destination, settings, root=str(work), python=str(silent)) as runner,
            pytest.raises(TargetUnreachable) as raised,
        ):
            job = runner.new_job(JobSpec(("true",), PATIENCE_S))
            runner.start_job(job)
            list(runner.follow(job))
        return str(raised.value)

    assert any("says nothing" in given_up(silence_s) for silence_s in limits_s(0.2))


def test_a_link_cut_while_the_job_is_sent_starts_it_once(sshd, runner, monkeypatch, tmp_path) -> None:
    runner.connect()
    send, cuts = Stream.send, []

    def cutting(self: Stream, data: bytes) -> None:
        if not cuts:
            cuts.append(True)
            send(self, data[: len(data) // 2])
            sshd.cut()
            send(self, data[len(data) // 2 :])
        else:
            send(self, data)

    monkeypatch.setattr(Stream, "send", cutting)
    argv = ("sh", "-c", f"echo once >> '{tmp_path}/ran'; cat input | wc -c")
    job = runner.new_job(JobSpec(argv, 60, files={"input": b"x" * 5_000_000}))
    runner.start_job(job)
    assert [line.strip() for line in runner.follow(job)] == ["5000000"]
    assert (tmp_path / "ran").read_text() == "once\n"


def test_a_client_killed_without_warning_leaves_a_job_that_another_can_collect(sshd, work, tmp_path) -> None:
    marker = f"61{os.getpid()}.25"
    client = tmp_path / "client.py"
    client.write_text(
        textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from infra.ssh.config import SshSettings
        from infra.ssh.runner import JobSpec, SshRunner
        runner = SshRunner({sshd.destination!r}, SshSettings(config_file=Path({str(sshd.home / "config")!r})),
                           root={str(work)!r})
        job = runner.new_job(JobSpec(("sh", "-c", "echo on; sleep 2; echo over > result; : {marker}"), 60))
        runner.start_job(job)
        for line in runner.follow(job):
            print(job.id, job.secret, flush=True)
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, str(client)], stdout=subprocess.PIPE, text=True, env=environment)
    name, secret = process.stdout.readline().split()
    job = work / "jobs" / name
    process.kill()
    process.wait()
    assert eventually(lambda: not sshd.connections())
    assert processes_mentioning(marker)  # the job goes on ...
    assert eventually((job / "exit.json").exists)  # ... to its end
    assert not processes_mentioning(marker)
    with SshRunner(sshd.destination, sshd.settings, root=str(work)) as runner:
        again = RemoteJob(name, JobSpec((), 60, collect=("result",)), secret)
        assert list(runner.follow(again)) == ["on"]
        assert again.files == {"result": b"over\n"}


def test_a_full_disk_is_one_line_and_room_made_is_used(sshd: Sshd, small_disk: Path) -> None:
    with SshRunner(sshd.destination, sshd.settings, root=str(small_disk / "work")) as runner:
        with pytest.raises(JobRefused, match="MB free.*make room") as caught:
            runner.put_tree({"big": os.urandom(3_000_000)})
        assert "\n" not in str(caught.value)
        filler = small_disk / "filler"
        filler.write_bytes(b"x" * (2 * 1024 * 1024 - 100_000))
        job = runner.new_job(JobSpec(("true",), 60, files={"input": os.urandom(300_000)}))
        runner.start_job(job)
        with pytest.raises(JobRefused, match="No space left"):
            list(runner.follow(job))
        assert not list((small_disk / "work" / "jobs").iterdir())
        filler.unlink()
        runner.start_job(job)
        assert list(runner.follow(job)) == [] and job.outcome is not None and job.outcome.status == 0


def test_a_job_that_fills_the_disk_is_over_and_nothing_runs_on(sshd: Sshd, small_disk: Path) -> None:
    with SshRunner(sshd.destination, sshd.settings, root=str(small_disk / "work")) as runner:
        job = runner.new_job(
            JobSpec(("sh", "-c", "cat /dev/zero > filler; echo full; sleep 62.25"), 3, stdout_limit_bytes=100)
        )
        runner.start_job(job)
        with pytest.raises(JobRefused) as caught:
            list(runner.follow(job))
        assert caught.value.code == "lost" and "disk" in str(caught.value)
        assert not processes_mentioning("sleep 62.25")
        runner.remove(job)
        assert not list((small_disk / "work" / "jobs").iterdir())


@pytest.mark.parametrize("version", quick("3.8", "3.14", of=("3.8", "3.9", "3.10", "3.12", "3.13", "3.14")))
def test_the_remote_agent_works_with_pythons_older_and_newer_than_ours(sshd: Sshd, work: Path, version: str) -> None:
    installed = interpreters(version)
    if not installed:
        pytest.skip(f"Python {version} is not installed here, or does not run")
    with SshRunner(sshd.destination, sshd.settings, root=str(work), python=str(installed[-1])) as runner:
        assert runner.run(["echo", "x"], 20).stdout == b"x\n"
        tree = runner.put_tree({"a.py": b"print('from the tree')"}, compile_with=str(installed[-1]))
        job = runner.new_job(JobSpec((str(installed[-1]), "-m", "a"), 60, cwd=tree.path))
        runner.start_job(job, tree)
        assert list(runner.follow(job)) == ["from the tree"]
        runner.remove(job)
        assert eventually(lambda: not list((work / "jobs").iterdir()))
        assert runner.sweep(-1) == 2
