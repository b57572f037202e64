"""Files, commands and detached jobs on the host, over links that break."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.ports import TargetUnreachable
from infra.ssh.runner import JOB_DIR, JobSpec, RemoteJob, RemoteTree, SshRunner
from infra.ssh.stream import JobRefused
from tests.processes import PATIENCE_S, eventually, limits_s
from tests.ssh.server import Sshd, processes_mentioning

ODD_NAMES = (
    "with space.py", "quote'\".txt", "$(touch pwned)`x`;&|.txt", "-rf", "ünï/ço dé.bin", "new\nline", "%s{}\\n",
)  # fmt: skip

SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")


def finish(runner: SshRunner, spec: JobSpec, tree: RemoteTree | None = None) -> tuple[RemoteJob, list[str]]:
    job = runner.new_job(spec)
    runner.start_job(job, tree)
    return job, list(runner.follow(job))


def python(code: str, *arguments: str, timeout_s: float = 60.0, **fields: object) -> JobSpec:
    spec = JobSpec((sys.executable, "-c", code, *arguments), timeout_s)
    return replace(spec, **fields)  # type: ignore[arg-type]  # keyword arguments of JobSpec, passed through


@pytest.mark.parametrize("word", [*ODD_NAMES, "", "~", "*", "a\tb", "'; exit 3; '"])
def test_arguments_arrive_as_they_were_given(runner: SshRunner, word: str) -> None:
    result = runner.run([sys.executable, "-c", "import sys; sys.stdout.buffer.write(sys.argv[1].encode())", word], 20)
    assert (result.status, result.stdout.decode()) == (0, word)


def test_a_commands_status_and_errors_come_back(runner: SshRunner) -> None:
    result = runner.run(["sh", "-c", "echo out; echo err >&2; exit 7"], 20)
    assert (result.status, result.stdout, result.stderr_tail) == (7, b"out\n", "err\n")
    assert runner.run(["sh", "-c", "kill -9 $$"], 20).status == -signal.SIGKILL
    with pytest.raises(JobRefused, match="no-such-program cannot be started"):
        runner.run(["no-such-program"], 20)


def test_output_without_end_is_cut_and_the_link_survives(runner: SshRunner) -> None:
    flood = "yes | head -c 30000000; yes e | head -c 3000000 >&2"
    result = runner.run(["sh", "-c", flood], 60, output_limit_bytes=1000)
    assert result.status == 0 and result.truncated and len(result.stdout) == 1000
    assert len(result.stderr_tail) <= 16384
    assert runner.run(["echo", "still"], 20).stdout == b"still\n"


def test_a_late_command_is_killed_with_its_children(runner: SshRunner) -> None:
    marker = f"41{os.getpid()}.25"
    result = runner.run(["sh", "-c", f"sleep {marker} & setsid sleep {marker} & sleep {marker}"], 0.5)
    assert result.status is None
    assert not processes_mentioning(f"sleep {marker}")


def test_a_command_whose_listener_goes_away_is_killed(sshd: Sshd, work: Path) -> None:
    marker = f"42{os.getpid()}.25"
    with SshRunner(sshd.destination, replace(sshd.settings, reconnect_for_s=0), root=str(work)) as runner:
        runner.connect()
        caught: list[BaseException] = []

        def ask() -> None:
            try:
                runner.run(["sleep", marker], 1000)
            except TargetUnreachable as error:
                caught.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        assert eventually(lambda: bool(processes_mentioning(f"sleep {marker}")))
        sshd.cut()
        thread.join(timeout=PATIENCE_S)
    assert caught and "\n" not in str(caught[0])
    assert eventually(lambda: not processes_mentioning(f"sleep {marker}"))


def test_a_noisy_login_shell_does_not_disturb(sshd: Sshd, work: Path) -> None:
    sshd.stop()
    greeting = "echo Welcome to $(hostname); echo; printf 'no newline'"
    sshd.options = (f'ForceCommand {greeting}; eval "$SSH_ORIGINAL_COMMAND"',)
    sshd.start()
    with SshRunner(sshd.destination, sshd.settings, root=str(work)) as runner:
        assert runner.run(["echo", "x"], 20).stdout == b"x\n"


SFTP_SERVER = next((p for p in map(Path, SFTP_SERVERS) if p.exists()), None)


@pytest.mark.parametrize(
    ("greeting", "sftp", "said"),
    [
        ("echo Welcome to the lab", str(SFTP_SERVER), "prints 'Welcome to the lab' at log-in, from ~/.bashrc"),
        pytest.param("printf x", str(SFTP_SERVER), "prints 'x' at log-in", marks=pytest.mark.slow),
        pytest.param("echo; seq 1 400", str(SFTP_SERVER), "prints '1 2 3 4 5 6 7 8 9", marks=pytest.mark.slow),
        ("", "", "has no working SFTP"),
    ],
)
def test_what_a_login_script_prints_breaks_sftp_and_files_arrive_all_the_same(sshd, work, greeting, sftp, said) -> None:
    if sftp == "None":
        pytest.skip("needs the program sftp-server: apt-get install openssh-sftp-server")
    sshd.stop()
    sshd.sftp = sftp
    # As bash does with ~/.bashrc when sshd starts it, for commands and for the sftp subsystem alike.
    sshd.options = (f'ForceCommand {greeting}; eval "$SSH_ORIGINAL_COMMAND"',) if greeting else ()
    sshd.start()
    files = {"a.py": b"print('from the tree')", "large.bin": os.urandom(3 << 20)}
    with SshRunner(sshd.destination, sshd.settings, root=str(work)) as runner:
        tree = runner.put_tree(files)
        assert all((Path(tree.path) / name).read_bytes() == data for name, data in files.items())
        assert finish(runner, python("import a", cwd=tree.path), tree)[1] == ["from the tree"]
        runner.put_tree({**files, "b.py": b"1"})
        (note,) = runner.notes
    assert said in note and "\n" not in note and sshd.destination in note
    assert not list((work / "incoming").iterdir())


@pytest.mark.slow  # the faults of a link have a table of their own
def test_a_link_that_was_mended_is_told_with_the_time_it_took(sshd: Sshd, runner: SshRunner) -> None:
    away: list[float] = []
    runner.on_mended = away.append
    assert runner.run(["echo", "x"], 20).stdout == b"x\n"
    assert (runner.notes, away) == ([], [])
    job = runner.new_job(JobSpec(("sh", "-c", "echo a; sleep 1; echo b"), 60))
    runner.start_job(job)
    lines = []
    for line in runner.follow(job):
        lines.append(line)
        if line == "a":
            sshd.cut()
    assert lines == ["a", "b"] and len(away) == 1
    (note,) = runner.notes
    assert f"the link to {sshd.destination} dropped, and was back after" in note


@pytest.mark.parametrize(
    ("forced", "said"),
    [
        ("yes", "at log-in"),
        ("exit 3", "exit status 3"),
        ("echo This account is closed >&2; exit 1", "account is closed"),
    ],
)
def test_a_login_that_runs_nothing_is_explained(sshd: Sshd, work: Path, forced: str, said: str) -> None:
    sshd.stop()
    sshd.options = (f"ForceCommand {forced}",)
    sshd.start()
    with (
        SshRunner(sshd.destination, sshd.settings, root=str(work)) as runner,
        pytest.raises(TargetUnreachable, match=said),
    ):
        runner.run(["echo", "x"], 20)


def test_a_host_without_python_is_explained(sshd: Sshd, work: Path) -> None:
    with (
        SshRunner(sshd.destination, sshd.settings, root=str(work), python="/no such/python3") as runner,
        pytest.raises(TargetUnreachable, match=r"/no such/python3.*exit status 127.*Python 3\.8"),
    ):
        runner.run(["echo", "x"], 20)


def test_an_interpreter_is_found_or_each_ones_lack_is_told(runner: SshRunner, tmp_path: Path) -> None:
    broken = tmp_path / "venv_a" / "python"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    good = tmp_path / "venv_b" / "python"
    good.parent.mkdir()
    good.symlink_to(sys.executable)
    found = runner.find_python([f"{tmp_path}/venv_*/python"], needs=[["json"], ["no_such_module", "csv"]])
    assert found == str(good)
    with pytest.raises(JobRefused) as caught:
        runner.find_python([str(broken), str(good), "nope"], needs=[["no_such_module", "nor_this"]])
    assert caught.value.code == "no_python"
    assert "does not run" in str(caught.value) and "lacks no_such_module or nor_this" in str(caught.value)
    assert "nope: not there" in str(caught.value)


def test_a_tree_arrives_exactly_whatever_the_names(runner: SshRunner, tmp_path: Path) -> None:
    local = tmp_path / "local file"
    local.write_bytes(bytes(range(256)))
    files = {name: name.encode() * 3 for name in ODD_NAMES} | {"empty": b"", "from/disk": local}
    tree = runner.put_tree(files)
    there = [path for path in Path(tree.path).rglob("*") if path.is_file()]
    arrived = {path.relative_to(tree.path).as_posix(): path.read_bytes() for path in there}
    assert arrived == {name: value.read_bytes() if isinstance(value, Path) else value for name, value in files.items()}
    assert not list(Path(tree.root).rglob("pwned*"))


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../b", "", ".", "a//b", "a/./b", "nul\0"])
def test_names_that_lead_elsewhere_are_refused_before_anything_is_sent(runner: SshRunner, name: str) -> None:
    with pytest.raises(ValueError, match="not a plain relative path"):
        runner.put_tree({name: b"x"})


def test_only_changed_contents_are_sent(runner: SshRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    upload = SshRunner._upload

    def counting(self: SshRunner, path: str, data: bytes) -> None:
        sent.append(data)
        upload(self, path, data)

    monkeypatch.setattr(SshRunner, "_upload", counting)
    first = runner.put_tree({"a.py": b"A = 1\n", "b.py": b"B = 1\n"})
    again = runner.put_tree({"a.py": b"A = 1\n", "b.py": b"B = 1\n"})
    changed = runner.put_tree({"a.py": b"A = 1\n", "b.py": b"B = 2\n", "copy of a.py": b"A = 1\n"})
    assert [sorted(data.split()) for data in sent] == [sorted(b"A = 1 B = 1".split()), b"2 = B".split()]
    assert again == first and changed.path != first.path
    assert (Path(changed.path) / "copy of a.py").read_bytes() == b"A = 1\n"


def test_damage_in_transit_is_noticed_and_leaves_nothing(runner, work, monkeypatch) -> None:
    upload = SshRunner._upload
    monkeypatch.setattr(SshRunner, "_upload", lambda self, path, data: upload(self, path, data[:-1] + b"?"))
    with pytest.raises(JobRefused, match="arrived damaged"):
        runner.put_tree({"a.py": b"print('hello')\n"})
    assert not list((work / "blobs").iterdir()) and not list((work / "incoming").iterdir())
    monkeypatch.undo()
    tree = runner.put_tree({"a.py": b"print('hello')\n"})
    assert (Path(tree.path) / "a.py").read_bytes() == b"print('hello')\n"


@pytest.mark.parametrize(
    "vandalism",
    [
        lambda tree: (tree / "a.py").chmod(0o600) or (tree / "a.py").write_text("evil"),
        lambda tree: next(tree.rglob("*.pyc")).write_bytes(b"evil"),
        pytest.param(lambda tree: (tree / "json.py").write_text("evil"), marks=pytest.mark.slow),
        pytest.param(lambda tree: (tree / "json").symlink_to("/tmp"), marks=pytest.mark.slow),
        pytest.param(lambda tree: (tree / "a.py").unlink(), marks=pytest.mark.slow),
    ],
)
def test_a_tampered_tree_runs_no_job_and_is_mended_by_sending_again(runner: SshRunner, vandalism: object) -> None:
    files: dict[str, bytes | Path] = {"a.py": b"print('honest')\n"}
    tree = runner.put_tree(files, compile_with=sys.executable)
    vandalism(Path(tree.path))
    spec = JobSpec((sys.executable, "-m", "a"), 20, cwd=tree.path)
    with pytest.raises(JobRefused) as caught:
        finish(runner, spec, tree)
    assert caught.value.code == "tree_changed"
    mended = runner.put_tree(files, compile_with=sys.executable)
    assert mended == tree
    assert finish(runner, spec, mended)[1] == ["honest"]


def test_a_damaged_blob_is_sent_again(runner: SshRunner, work: Path) -> None:
    tree = runner.put_tree({"a.txt": b"right"})
    blob = next((work / "blobs").iterdir())
    blob.write_bytes(b"wrong")
    (Path(tree.path) / "a.txt").unlink()
    with pytest.raises(JobRefused, match="damaged"):
        runner.put_tree({"a.txt": b"right"})
    assert (Path(runner.put_tree({"a.txt": b"right"}).path) / "a.txt").read_bytes() == b"right"


def test_a_link_cut_in_the_middle_of_an_upload_is_bridged(sshd, runner, monkeypatch) -> None:
    upload = SshRunner._upload
    cuts = iter([True])

    def cutting(self: SshRunner, path: str, data: bytes) -> None:
        if next(cuts, False):
            with sshd.cutting(after_s=0.02):
                while True:  # keep sending until the cut is felt
                    upload(self, path, data)
        upload(self, path, data)

    monkeypatch.setattr(SshRunner, "_upload", cutting)
    data = os.urandom(1 << 20)
    tree = runner.put_tree({"big.bin": data})
    assert (Path(tree.path) / "big.bin").read_bytes() == data


COUNT = (
    "import sys, time\nfor n in range(int(sys.argv[1])):\n    print('line', n, flush=True)\n"
    "    time.sleep(float(sys.argv[2]))\nopen('result', 'w').write('the end')\n"
)


def test_a_job_is_followed_to_its_end_and_leaves_nothing(runner: SshRunner, work: Path) -> None:
    job, lines = finish(runner, python(COUNT, "3", "0.01", files={"input": b"x"}, collect=("result", "absent")))
    assert lines == ["line 0", "line 1", "line 2"]
    assert job.outcome is not None and (job.outcome.ended, job.outcome.status) == ("exit", 0)
    assert job.files == {"result": b"the end"}
    assert runner.collect(job, "input") == b"x"
    with pytest.raises(JobRefused, match="no file absent"):
        runner.collect(job, "absent")
    runner.remove(job)
    assert eventually(lambda: not list((work / "jobs").iterdir()))


def test_a_job_survives_the_cut_of_its_connection_and_no_line_is_lost_or_doubled(sshd: Sshd, runner: SshRunner) -> None:
    job = runner.new_job(python(COUNT, "30", "0.05", collect=("result",)))
    runner.start_job(job)
    lines = []
    for line in runner.follow(job):
        lines.append(line)
        if len(lines) in (3, 12):
            sshd.cut()
    assert lines == [f"line {number}" for number in range(30)]
    assert job.files == {"result": b"the end"}


def test_a_job_that_ends_while_nobody_listens_is_collected_afterwards(sshd, runner, work) -> None:
    job = runner.new_job(python(COUNT, "5", "0.02", collect=("result",)))
    runner.start_job(job)
    first = next(iter(runner.follow(job)))
    sshd.cut()
    assert eventually((work / "jobs" / job.id / "exit.json").exists)
    rest = list(runner.follow(job))
    assert [first, *rest][-1] == "line 4" and job.files == {"result": b"the end"}


def test_a_start_whose_answer_is_lost_does_not_start_twice(sshd: Sshd, runner: SshRunner, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    job = runner.new_job(python(f"open({str(ran)!r}, 'a').write('once ')\nprint('done')"))
    runner.connect()
    runner.start_job(job)
    assert eventually(ran.exists)
    sshd.cut()  # before anything was read: the client cannot know whether it started
    assert list(runner.follow(job)) == ["done"]
    assert ran.read_text() == "once "


def test_a_late_job_is_killed_with_everything_it_started(runner: SshRunner) -> None:
    marker = f"43{os.getpid()}.25"
    code = (
        "import os, subprocess, sys, time\nm = sys.argv[1]\n"
        "subprocess.Popen(['sleep', m])\nsubprocess.Popen(['sleep', m], start_new_session=True)\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: os.execvp('sleep', ['sleep', m])\n"
        "    os._exit(0)\n"
        "print('all started', flush=True)\ntime.sleep(float(m))\n"
    )
    for limit_s in limits_s(1.5):
        job, lines = finish(runner, python(code, marker, timeout_s=limit_s))
        if lines:
            break
    assert lines == ["all started"]
    assert job.outcome is not None and (job.outcome.ended, job.outcome.status) == ("timeout", None)
    assert not processes_mentioning(f"sleep {marker}") and not processes_mentioning(f"{marker}")


def test_a_job_that_ends_in_time_leaves_no_daemon_either(runner: SshRunner) -> None:
    marker = f"44{os.getpid()}.25"
    job, _ = finish(
        runner,
        python("import subprocess, sys; subprocess.Popen(['sleep', sys.argv[1]], start_new_session=True)", marker),
    )
    assert job.outcome is not None and job.outcome.status == 0
    assert not processes_mentioning(f"sleep {marker}")


def test_a_killed_job_is_gone_when_kill_returns(runner: SshRunner, work: Path) -> None:
    marker = f"45{os.getpid()}.25"
    code = "import subprocess, sys; print('on', flush=True); subprocess.run(['sleep', sys.argv[1]])"
    job = runner.new_job(python(code, marker))
    runner.start_job(job)
    assert next(iter(runner.follow(job))) == "on"
    runner.kill(job)
    assert not processes_mentioning(marker)
    assert list(runner.follow(job)) in ([], ["on"])
    assert job.outcome is not None and job.outcome.ended == "killed"
    runner.kill(job, remove=True)  # twice does no harm
    assert not (work / "jobs" / job.id).exists()


def test_output_without_end_is_bounded_on_disk_and_on_the_wire(runner: SshRunner, work: Path) -> None:
    code = (
        "import sys\nfor _ in range(300):\n    sys.stdout.write('x' * 99999 + '\\n')\nopen('result', 'w').write('ok')"
    )
    endless, lines = finish(runner, python("import sys\nfor _ in range(30): sys.stdout.write('x' * 100000)"))
    assert endless.outcome.status == 0 and sum(map(len, lines)) <= 1 << 16, "a line without end fills no memory"
    job, lines = finish(runner, python(code, stdout_limit_bytes=200_000, collect=("result",)))
    assert sum(map(len, lines)) <= 200_000 and job.files == {"result": b"ok"}
    assert (work / "jobs" / job.id / "stdout.log").stat().st_size == 200_000


def test_files_that_should_not_be_brought_back_are_not(runner: SshRunner, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("a secret of the host")
    code = (
        f"import os\nos.symlink({str(private)!r}, 'link')\nos.mkfifo('pipe')\nos.mkdir('folder')\n"
        "open('huge', 'wb').truncate(1 << 30)\nopen('fine', 'w').write('ok')"
    )
    job, _ = finish(runner, python(code, collect=("link", "pipe", "folder", "huge", "fine"), collect_limit_bytes=1000))
    assert job.files == {"fine": b"ok"}
    assert set(job.unreadable) == {"link", "pipe", "folder", "huge"}


@pytest.mark.parametrize("forgery", ["{}", "[]", "not json", '{"status": 0, "ended": "exit", "secret": "guess"}'])
def test_a_job_cannot_forge_its_own_ending(runner: SshRunner, forgery: str) -> None:
    code = (
        "import sys, time\nopen('exit.json', 'w').write(sys.argv[1])\ntime.sleep(0.3)\nprint('truly over')\nsys.exit(5)"
    )
    job, lines = finish(runner, python(code, forgery))
    assert lines == ["truly over"]
    assert job.outcome is not None and job.outcome.status == 5


def test_a_job_whose_supervisor_is_killed_is_reported_lost_and_ended(runner: SshRunner) -> None:
    marker = f"47{os.getpid()}.25"
    code = (
        "import os, signal, subprocess, sys\nsubprocess.Popen(['sleep', sys.argv[1]], start_new_session=True)\n"
        "os.kill(os.getppid(), signal.SIGKILL)\nos.execvp('sleep', ['sleep', sys.argv[1]])\n"
    )
    with pytest.raises(JobRefused) as caught:
        finish(runner, python(code, marker))
    assert caught.value.code == "lost" and "\n" not in str(caught.value)
    assert not processes_mentioning(f"sleep {marker}")


def test_the_job_sees_none_of_the_log_in_environments_secrets(sshd: Sshd, work: Path, tmp_path: Path) -> None:
    sshd.stop()
    set_there = "SetEnv AWS_SECRET_ACCESS_KEY=remote-secret PYTHONPATH=/evil NEURON_RT_VISIBLE_CORES=3"
    sshd.options = (set_there, "AcceptEnv *")
    sshd.start()
    os.environ["ANTHROPIC_API_KEY"] = "local-secret"
    try:
        with SshRunner(sshd.destination, sshd.settings, root=str(work)) as runner:
            code = "import os\nfor name in sorted(os.environ): print(name + '=' + os.environ[name])"
            _, lines = finish(runner, python(code, env={"EXTRA": f"{JOB_DIR}/x"}, path_first=("/first",)))
    finally:
        del os.environ["ANTHROPIC_API_KEY"]
    text = "\n".join(lines)
    assert "secret" not in text and "/evil" not in text and "SSH_" not in text
    assert "NEURON_RT_VISIBLE_CORES=3" in lines
    assert any(line.startswith(f"EXTRA={work}/jobs/") for line in lines)
    assert any(line.startswith("PATH=/first:") for line in lines)


def test_jobs_run_side_by_side_over_one_connection(sshd: Sshd, runner: SshRunner) -> None:
    runner.connect()
    results: dict[str, list[str]] = {}

    def one(name: str) -> None:
        results[name] = finish(runner, python("import sys, time\ntime.sleep(0.2)\nprint(sys.argv[1])", name))[1]

    threads = [threading.Thread(target=one, args=(f"job {number}",)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    assert results == {f"job {number}": [f"job {number}"] for number in range(5)}
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in sshd.connections()]
    assert len([command for command in commands if "[priv]" in command or os.geteuid() == 0]) <= 2


def test_old_work_is_swept_and_running_and_recent_work_is_not(runner: SshRunner, work: Path) -> None:
    old_tree = runner.put_tree({"old": b"old"})
    finished, _ = finish(runner, python("import os; os.mkdir('locked'); os.chmod('locked', 0)"))
    running = runner.new_job(python("import time; print('on', flush=True); time.sleep(60)"))
    runner.start_job(running)
    assert next(iter(runner.follow(running))) == "on"
    long_ago = time.time() - 8 * 86400
    for path in [Path(old_tree.path), *(work / "jobs").iterdir(), *(work / "blobs").iterdir()]:
        os.utime(path, (long_ago, long_ago))
    new_tree = runner.put_tree({"new": b"new"})
    assert runner.sweep(7) == 3
    assert {path.name for path in (work / "jobs").iterdir()} == {running.id}
    assert [str(path) for path in (work / "trees").iterdir()] == [new_tree.path]
    runner.kill(running, remove=True)


def test_close_leaves_no_follower_and_no_thread_behind(sshd: Sshd, work: Path) -> None:
    threads = threading.active_count()
    marker = f"46{os.getpid()}.25"
    runner = SshRunner(sshd.destination, sshd.settings, root=str(work))
    job = runner.new_job(
        python("import sys, time; print('on', flush=True); time.sleep(float(sys.argv[1]))", marker, timeout_s=600)
    )
    runner.start_job(job)
    assert next(iter(runner.follow(job))) == "on"
    runner.kill(job)
    runner.close()
    assert eventually(lambda: not sshd.connections())
    assert eventually(lambda: threading.active_count() <= threads)  # one of an earlier test may end meanwhile
    assert not processes_mentioning(marker)
    with pytest.raises(TargetUnreachable, match="closed by this program"):
        runner.run(["true"], 5)


@pytest.mark.slow
def test_runs_that_start_at_the_same_time_do_not_spoil_each_others_trees(sshd: Sshd, work: Path) -> None:
    files = {f"package/module_{number}.py": b"print('x')\n" * 200 for number in range(80)}
    with ExitStack() as stack:
        runners = [stack.enter_context(SshRunner(sshd.destination, sshd.settings, root=str(work))) for _ in range(3)]

        def use(runner: SshRunner) -> list[str]:
            tree = runner.put_tree(files, compile_with=sys.executable)
            ended = []
            for _ in range(4):
                job = runner.new_job(JobSpec(("true",), 60))
                runner.start_job(job, tree)
                list(runner.follow(job))
                ended.append(job.outcome.ended)
            return ended

        with ThreadPoolExecutor(len(runners)) as threads:
            assert list(threads.map(use, runners)) == [["exit"] * 4] * 3
