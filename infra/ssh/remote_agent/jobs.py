"""Detached jobs: start one under a supervisor, pass on what it prints, end it, hand over what it made."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from infra.ssh.remote_agent.files import inside, locked, read_bounded, remove_tree, work_directory, write_atomically
from infra.ssh.remote_agent.frames import Refused, Wire, take
from infra.ssh.remote_agent.processes import (
    Watched,
    become_subreaper,
    descendants,
    environment,
    kill_descendants,
    process_table,
    send,
)
from infra.ssh.remote_agent.trees import digest_of

ACKNOWLEDGE_S = 60.0
"""How long a finished job's follower waits to hear what to do with the files."""
_NO_SIGN_OF_LIFE_S = 5.0
"""For a job that is about to start."""
_GONE_S = 0.5
"""For one that had started."""
_CHUNK = 65536
_SMALL_FILE_BYTES = 1 << 20


def start(request: dict[str, Any], wire: Wire) -> None:
    """Start a job and follow it; one that already exists is followed only, so that asking twice is harmless."""
    payload = [(name, take(size)) for name, size in request["files"]]
    job = _directory(request)
    tree = request["tree"]
    if tree and not _is_as_sent(tree, request, wire):
        raise Refused("tree_changed", f"{tree['path']} is not what was sent")
    try:
        os.mkdir(job, 0o700)
    except FileExistsError:
        return follow(request, wire)
    if tree:
        os.utime(tree["path"])  # in use: not to be swept
    try:
        for name, data in payload:
            write_atomically(inside(job, name), data)
    except OSError:
        remove_tree(job)
        raise
    intermediate = os.fork()
    if intermediate == 0:
        try:
            _detach()
            _supervise(job, request)
        finally:
            os._exit(1)
    os.waitpid(intermediate, 0)
    return follow(request, wire)


def follow(request: dict[str, Any], wire: Wire) -> None:
    """Pass on what the job prints from `offset` on; at its end, how it ended and the files asked for."""
    job = _directory(request)
    if not os.path.isdir(job):
        raise Refused("no_job", f"job {request['job']} is not there; it was removed or never started")
    wire.listen()
    wire.say("started")
    offset, since = request["offset"], time.monotonic()
    last_seen, began = since, os.path.exists(os.path.join(job, "supervisor.json"))
    while not wire.gone:
        ending = _ending_of(job, request["secret"])
        offset = _pass_on(job, offset, wire)
        if ending is not None:
            _hand_over(job, ending, request, wire)
            return
        if supervisor_of(job) is not None:
            last_seen, began = time.monotonic(), True
        elif time.monotonic() - last_seen > (_GONE_S if began else _NO_SIGN_OF_LIFE_S):
            kill_strays(job)
            raise Refused("lost", f"job {request['job']} vanished; the host was restarted, or out of memory or disk")
        wire.beat()
        wire.pause(0.02 if time.monotonic() - since < 60 else 0.2)


def kill(request: dict[str, Any], wire: Wire) -> None:
    """End a job and all it started; say so when they are gone."""
    job = _directory(request)
    deadline = time.monotonic() + _NO_SIGN_OF_LIFE_S
    while (
        os.path.isdir(job) and not os.path.exists(os.path.join(job, "supervisor.json")) and time.monotonic() < deadline
    ):
        time.sleep(0.02)  # it is starting at this moment
    _stop(job, wire)
    if request["remove"]:
        remove_tree(job)
    wire.say("done")


def runs(request: dict[str, Any], name: str) -> bool:
    """Whether a job of that name, if it is one, is under way."""
    return bool(name) and supervisor_of(inside(os.path.join(work_directory(request), "jobs"), name)) is not None


def end(request: dict[str, Any], name: str, wire: Wire) -> None:
    """End a job by its name, and all it started; its files stay."""
    _stop(inside(os.path.join(work_directory(request), "jobs"), name), wire)


def collect(request: dict[str, Any], wire: Wire) -> None:
    data = read_bounded(inside(_directory(request), request["name"]), request["limit"])
    if data is None:
        raise Refused("no_file", f"job {request['job']} has no file {request['name']}")
    wire.say("file", data, name=request["name"])


def supervisor_of(job: str) -> int | None:
    """The pid of the process that runs the job; None when nobody does."""
    try:
        text = read_bounded(os.path.join(job, "supervisor.json"), _SMALL_FILE_BYTES)
        known = json.loads(text.decode()) if text is not None else {}
        pid, began = int(known["pid"]), known["start"]
    except (Refused, OSError, ValueError, KeyError):
        return None
    table = process_table()
    if table is None:
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return pid
    entry = table.get(pid)
    return pid if entry is not None and entry.start == began and entry.state != "Z" else None


def _directory(request: dict[str, Any]) -> str:
    return inside(os.path.join(work_directory(request), "jobs"), request["job"])


def _is_as_sent(tree: dict[str, Any], request: dict[str, Any], wire: Wire) -> bool:
    with locked(work_directory(request), os.path.basename(tree["path"]), False, wire.beat):
        return os.path.isdir(tree["path"]) and digest_of(tree["path"]) == tree["digest"]


def _detach() -> None:
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def _supervise(job: str, request: dict[str, Any]) -> None:
    """The detached process: run the job within its limits, leave nothing running, write the sentinel last."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    become_subreaper()
    started = time.monotonic()
    outcome: dict[str, Any] = {"status": None, "ended": "cannot_start", "message": "the supervisor failed"}
    try:
        table = process_table() or {}
        mine = table.get(os.getpid())
        write_atomically(
            os.path.join(job, "supervisor.json"),
            json.dumps({"pid": os.getpid(), "start": mine.start if mine else ""}).encode(),
        )
        with open(os.path.join(job, "stdout.log"), "wb", buffering=0) as log:
            left_bytes = request["stdout_limit"]

            def keep(data: bytes) -> None:
                nonlocal left_bytes
                log.write(data[:left_bytes])
                left_bytes -= len(data[:left_bytes])

            argv = [word.replace(request["job_dir_word"], job) for word in request["argv"]]
            extra = {name: value.replace(request["job_dir_word"], job) for name, value in request["env"].items()}
            extra["NKI_OPTIMIZER_JOB"] = job
            child = Watched(argv, environment(extra, request["path_first"]), request["cwd"] or job, keep)
            status = child.wait(request["timeout_s"], should_stop=lambda: bool(stopped))
        outcome = {"status": status, "ended": child.ended, "message": child.stderr_tail.decode("utf-8", "replace")}
    except (Refused, OSError) as error:
        outcome["message"] = str(error)
    finally:
        kill_descendants()
        outcome.update(elapsed_s=round(time.monotonic() - started, 3), secret=request["secret"])
        try:
            write_atomically(os.path.join(job, "exit.json"), json.dumps(outcome).encode())
        finally:
            os._exit(0)


def _ending_of(job: str, secret: str) -> dict[str, Any] | None:
    """The supervisor's last word; None before it, and for anything that the job wrote in its place."""
    try:
        text = read_bounded(os.path.join(job, "exit.json"), _SMALL_FILE_BYTES)
        ending = json.loads(text.decode()) if text is not None else None
        return ending if ending is not None and ending["secret"] == secret else None
    except (Refused, OSError, ValueError, KeyError, TypeError):
        return None


def _pass_on(job: str, offset: int, wire: Wire) -> int:
    try:
        with open(os.path.join(job, "stdout.log"), "rb") as stream:
            stream.seek(offset)
            for chunk in iter(lambda: stream.read(_CHUNK), b""):
                wire.say("out", chunk)
                offset += len(chunk)
    except FileNotFoundError:
        pass
    return offset


def _hand_over(job: str, outcome: dict[str, Any], request: dict[str, Any], wire: Wire) -> None:
    for name in request["collect"]:
        try:
            data = read_bounded(inside(job, name), request["collect_limit"])
        except (Refused, OSError) as error:
            wire.say("unreadable", name=name, message=str(error))
            continue
        if data is not None:
            wire.say("file", data, name=name)
    outcome.pop("secret")
    wire.say("over", outcome=outcome)
    if wire.word(ACKNOWLEDGE_S) == b"remove":
        remove_tree(job)


def _stop(job: str, wire: Wire) -> None:
    pid = supervisor_of(job)
    deadline = time.monotonic() + 15.0
    if pid is not None:
        send(signal.SIGTERM, [pid])
    while supervisor_of(job) is not None:
        if time.monotonic() > deadline:
            send(signal.SIGKILL, [*descendants(pid or 0), pid or 0])
        wire.beat()
        time.sleep(0.02)
    kill_strays(job)


def kill_strays(job: str) -> None:
    """End what still runs of a job whose supervisor is gone; it is known by its directory or its environment."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        strays = [pid for pid in process_table() or {} if pid != os.getpid() and _belongs_to(pid, job)]
        if not strays:
            return
        send(signal.SIGKILL, strays)
        time.sleep(0.02)


def _belongs_to(pid: int, job: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            variables = stream.read()
        return job.encode() in variables or f"{os.readlink(f'/proc/{pid}/cwd')}/".startswith(f"{job}/")
    except OSError:
        return False  # gone, or somebody else's
