"""`kill -9` of the client in the middle of an evaluation: the next start collects, and the host judged once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Evaluation, TimedOut
from accelopt_core.ports import EvaluationRequest
from infra.journal import FileLock, utc_now
from infra.ssh.job_records import JobRecord, JobRecords, request_key
from infra.targets import over_ssh as ssh_target
from tests.processes import alive, eventually
from tests.ssh.server import Sshd, processes_mentioning, simulated_target
from tests.ssh.test_target import DESCRIBE, JUDGE, REQUEST

JUDGED = """
with open(TALLY, "a") as stream: stream.write("x")
say("compile and verify", "on")
while not os.path.exists(GO): time.sleep(0.02)
say("benchmark", "over"); finish(VERDICT)
"""

CLIENT = """
import sys
from pathlib import Path
from infra.targets import over_ssh
from infra.ssh.config import SshSettings
from infra.targets.over_ssh import SshTarget
from tests.ssh.test_target import REQUEST
over_ssh.files_to_ship = lambda _: {{"infra/judging/judge.py": Path({judge!r}), "infra/__init__.py": Path({empty!r})}}
target = SshTarget({destination!r}, machine="trn2", remote_simulator=True, remote_python=sys.executable,
                   settings=SshSettings(config_file=Path({config!r})), root={root!r})
target.remember_in(Path({records!r}))
target.evaluate(REQUEST, lambda step, detail: print(detail, flush=True))
"""


class Scene:
    """A host with a judge that counts how often it runs, and a client that dies while it does."""

    def __init__(self, sshd: Sshd, work: Path, folder: Path) -> None:
        self.work, self.tally, self.go, self.records = work, folder / "tally", folder / "go", folder / "run" / "remote"
        judge, empty = folder / "judge.py", folder / "empty"
        body = JUDGED.replace("TALLY", repr(str(self.tally))).replace("GO", repr(str(self.go)))
        judge.write_text(JUDGE.replace("DESCRIBE", DESCRIBE) + body)
        empty.write_text("")
        self.files = {"infra/judging/judge.py": judge, "infra/__init__.py": empty}
        self.client = textwrap.dedent(CLIENT).format(
            judge=str(judge), empty=str(empty), destination=sshd.destination, config=str(sshd.home / "config"),
            root=str(work), records=str(self.records),
        )  # fmt: skip
        self._client = folder / "client.py"
        self._client.write_text(self.client)
        self.target = simulated_target(sshd, work)
        self.said: list[str] = []

    def die_while_judging(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen([sys.executable, self._client], stdout=subprocess.PIPE, text=True, env=environment)
        while process.stdout.readline() != "on\n":
            assert process.poll() is None
        process.kill()
        process.wait()

    def start_again(self, request: EvaluationRequest = REQUEST) -> Evaluation:
        self.target.remember_in(self.records)
        return self.target.evaluate(request, lambda step, detail: self.said.append(detail))

    def job(self) -> Path:
        (job,) = (self.work / "jobs").iterdir()
        return job

    def clean(self) -> bool:
        """Nothing on either side tells of a job."""
        nothing_there = eventually(lambda: not list((self.work / "jobs").iterdir()))
        no_record = not list(self.records.glob("*.json"))
        return nothing_there and no_record and not processes_mentioning(str(self.work))


@pytest.fixture
def scene(sshd: Sshd, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(sshd, work, tmp_path)
    monkeypatch.setattr(ssh_target, "files_to_ship", lambda language: made.files)
    yield made
    made.target.close()


@pytest.mark.parametrize("moment", ["still judging", pytest.param("judged meanwhile", marks=pytest.mark.slow)])
def test_the_next_start_collects_and_the_host_judged_once(scene: Scene, moment: str) -> None:
    scene.die_while_judging()
    (record,) = scene.records.glob("*.json")
    assert record.stat().st_mode & 0o777 == 0o600, "it holds the job's secret"
    scene.go.touch()
    assert moment == "still judging" or eventually((scene.job() / "exit.json").exists)
    assert scene.start_again() == CompileFailed("", 3)
    assert scene.tally.read_text() == "x"
    assert "before a restart: collecting it" in scene.said[0] and scene.said[1:] == ["on", "over"]
    assert scene.clean()


def test_another_request_collects_nothing_and_close_ends_what_nobody_asked_for(scene: Scene) -> None:
    scene.die_while_judging()
    job = scene.job()
    scene.go.touch()
    other = replace(REQUEST, candidate=Candidate("c1", "another source"))
    assert scene.start_again(other) == CompileFailed("another source", 3)
    assert scene.tally.read_text() == "xx" and job.exists()
    scene.target.close()
    assert scene.clean()


@pytest.mark.parametrize(
    "loss",
    [
        "its supervisor was killed",
        pytest.param("its files are gone", marks=pytest.mark.slow),
        pytest.param("the record is damaged", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_collected_begins_again_and_that_is_said(scene: Scene, loss: str) -> None:
    scene.die_while_judging()
    job = scene.job()
    supervisor = int(json.loads((job / "supervisor.json").read_text())["pid"])
    if loss == "the record is damaged":
        (record,) = scene.records.glob("*.json")
        record.write_text(record.read_text()[:100])
    else:
        os.kill(supervisor, signal.SIGKILL)
        if loss == "its files are gone":
            assert eventually(lambda: not alive(supervisor))
            job.rename(job.with_name("elsewhere"))
    scene.go.touch()
    assert scene.start_again() == CompileFailed("", 3)
    assert scene.tally.read_text() == "xx"
    assert [line for line in scene.said if line.startswith("note: ") and "\n" not in line]
    assert not list(scene.records.glob("*.json"))


def test_a_job_that_ran_out_of_time_meanwhile_is_not_tried_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.die_while_judging()
    supervisor = int(json.loads((scene.job() / "supervisor.json").read_text())["pid"])
    os.kill(supervisor, signal.SIGTERM)
    assert eventually((scene.job() / "exit.json").exists)
    ending = json.loads((scene.job() / "exit.json").read_text())
    (scene.job() / "exit.json").write_text(json.dumps({**ending, "ended": "timeout"}))
    assert isinstance(scene.start_again(), TimedOut)
    assert scene.tally.read_text() == "x" and scene.clean()


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"extra_seeds": (8, 9)}, True),
        ({"candidate": Candidate("other-name", "")}, True),
        ({"extra_seeds": (8,)}, False),
        ({"candidate": Candidate("c1", "other")}, False),
        ({"candidate": Candidate("c1", "", "parent")}, False),
        ({"final": True}, False),
        ({"verify_full_below_us": 5.0}, False),
        ({"incumbent": Candidate("best", "best")}, False),
        ({"limits": replace(REQUEST.limits, iterations=3)}, False),
        ({"task": replace(REQUEST.task, tolerance=0.5)}, False),
    ],
)
def test_requests_that_may_answer_each_other(changes: dict[str, object], same: bool) -> None:
    asked = replace(REQUEST, extra_seeds=(1, 2))
    other = replace(asked, **changes)  # type: ignore[arg-type]  # the table above has the fields' types
    assert (request_key(asked, "auto", "trn2") == request_key(other, "auto", "trn2")) is same
    assert request_key(asked, "simulator", "trn2") != request_key(asked, "auto", "trn2")
    assert request_key(asked, "simulator", "trn2") != request_key(asked, "simulator", "trn1")


def record_of(job: str, began: str | None = None) -> JobRecord:
    return JobRecord("key", "h", "r", job, "secret", "nonce", 1.0, began or utc_now().isoformat(timespec="seconds"))


@pytest.mark.parametrize("began", ["2020-01-01T00:00:00+00:00", "2020-01-01T00:00:00", "some day"])
def test_a_record_of_what_the_host_has_swept_long_ago_is_dropped_and_that_is_said(tmp_path: Path, began: str) -> None:
    JobRecords(tmp_path, "h", "r", keep_days=7).begin(record_of("1", began))
    records = JobRecords(tmp_path, "h", "r", keep_days=7)
    assert not records.owes("key") and not list(tmp_path.iterdir())
    assert len(records.notes) == 1 and "job 1 on h" in records.notes[0]


def test_two_equal_requests_at_once_are_two_jobs_and_one_record(tmp_path: Path) -> None:
    records = JobRecords(tmp_path / "remote", "h", "r", keep_days=7)
    first, second = (record_of(job) for job in ("1", "2"))
    records.begin(first)
    records.begin(second)
    records.over(second)
    assert JobRecords(tmp_path / "remote", "h", "r", keep_days=7).take_over("key") == first
    assert not JobRecords(tmp_path / "remote", "another host", "r", keep_days=7).owes("key")
    records.over(first)
    assert not list((tmp_path / "remote").iterdir())


@pytest.fixture
def killed(scene: Scene) -> Path:
    """The scratch folder on the host of a run whose process was killed between two evaluations."""
    scene.go.write_text("")
    process = subprocess.Popen(
        [sys.executable, "-c", f"{scene.client}\nprint('idle', flush=True)\nsys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    while process.stdout.readline() != "idle\n":
        assert process.poll() is None
    process.kill()
    process.communicate()
    (scene.records.parent / "run.lock").write_text("4711")
    (session,) = scene.records.glob("*.session")
    folder = Path(json.loads(session.read_text())["folder"])
    folder.mkdir()
    (folder / "reference.npy").write_bytes(b"x" * 1000)
    return folder


def another_run(scene: Scene) -> list[str]:
    """What an evaluation of it says."""
    scene.target.remember_in(scene.records.parent.with_name("another run") / "remote")
    said: list[str] = []
    scene.target.evaluate(REQUEST, lambda step, detail: said.append(detail))
    return [line for line in said if "removed" in line]


def test_the_next_run_on_a_host_removes_what_a_killed_one_left_and_says_so(scene: Scene, killed: Path) -> None:
    (line,) = another_run(scene)
    assert line == f"note: removed {killed} on {scene.target.name}, which run run had left there when it was killed"
    assert not killed.exists() and not list(scene.records.iterdir()) and another_run(scene) == []
    scene.target.close()
    assert not list(scene.records.parent.parent.glob("*/remote/*.session")), "who ends in peace leaves nothing"


@pytest.mark.parametrize(
    "why", ["its run is alive", pytest.param("a job of it is under way there", marks=pytest.mark.slow)]
)
def test_what_is_alive_on_a_host_is_not_touched(scene: Scene, killed: Path, why: str) -> None:
    under_way = scene.records / f"{'0' * 24}-00000000.json"
    with FileLock(scene.records.parent / "run.lock") if why == "its run is alive" else nullcontext():
        if why != "its run is alive":
            under_way.write_text("{}")
        assert another_run(scene) == [] and killed.is_dir()
    under_way.unlink(missing_ok=True)
    assert len(another_run(scene)) == 1 and not killed.exists()


def test_a_half_sent_file_is_removed_by_the_next_run_and_one_that_is_being_sent_is_not(scene: Scene) -> None:
    incoming = scene.work / "incoming"
    incoming.mkdir(parents=True)
    for name, age_s in (("dead.pack.part", 7200), ("alive.pack.part", 60)):
        (incoming / name).write_text("half")
        os.utime(incoming / name, (time.time() - age_s,) * 2)
    scene.go.write_text("")
    (line,) = another_run(scene)
    assert "removed one thing" in line and "nobody asked for again" in line
    assert [path.name for path in incoming.iterdir()] == ["alive.pack.part"]
