"""Start a process, bound what it says and how long it takes, and leave nothing it started behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from infra.ssh.remote_agent.frames import Refused

STDERR_TAIL_BYTES = 16384
_CHUNK = 65536
_PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
_INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "NKI_OPTIMIZER_LEASES",
)
_INHERITED_PREFIXES = ("NEURON_",)


def environment(extra: Mapping[str, str], path_first: Sequence[str] = ()) -> dict[str, str]:
    """All that a job sees of the log-in environment: enough to run and find a device, nothing that could be secret."""
    kept = {
        name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    kept["PATH"] = os.pathsep.join([*path_first, kept.get("PATH") or os.defpath])
    kept.update(extra)
    return kept


class ProcessEntry(NamedTuple):
    parent: int
    start: str
    """In clock ticks since boot; tells a process from another one with a recycled pid."""
    state: str


def process_table() -> dict[int, ProcessEntry] | None:
    """Every process by pid, from /proc; None where there is no /proc."""
    if not os.path.isdir("/proc/self"):
        return None
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stream:
                    fields = stream.read().rpartition(b")")[2].split()
            except OSError:
                continue
            table[int(name)] = ProcessEntry(int(fields[1]), fields[19].decode(), fields[0].decode())
    return table


def descendants(root: int) -> dict[int, ProcessEntry]:
    table = process_table() or {}
    children: dict[int, list[int]] = {}
    for pid, entry in table.items():
        children.setdefault(entry.parent, []).append(pid)
    found, pending = {}, [root]
    while pending:
        for pid in children.get(pending.pop(), ()):
            found[pid] = table[pid]
            pending.append(pid)
    return found


def kill_descendants(limit_s: float = 10.0) -> None:
    """Kill whatever descends from this process; as subreaper it has inherited those whose parents are gone."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        living = [pid for pid, entry in descendants(os.getpid()).items() if entry.state != "Z"]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: a fork bomb must not outrun this loop
            send(number, living)
        reap_orphans()
        if not living:
            return
        time.sleep(0.01)


def send(number: int, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def reap_orphans(keep: int | None = None) -> None:
    """Collect dead children other than `keep`, whose exit status somebody waits for."""
    for pid, entry in (process_table() or {}).items():
        if entry.parent == os.getpid() and entry.state == "Z" and pid != keep:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def become_subreaper() -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the process group is all there is to kill
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Watched:
    """A child in a session of its own, its output read within bounds until it ends, is told to, or is late."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, on_stdout: Callable[[bytes], object]
    ) -> None:
        become_subreaper()
        try:
            self._child = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", error)
            raise Refused("cannot_start", f"{argv[0]} cannot be started: {reason}") from error
        self._on_stdout = on_stdout
        self._selector = selectors.DefaultSelector()
        for stream in (self._child.stdout, self._child.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                self._selector.register(stream, selectors.EVENT_READ)
        self.stderr_tail = b""
        self.ended = "exit"

    def wait(
        self, timeout_s: float, should_stop: Callable[[], bool] = lambda: False, tick: Callable[[], None] = lambda: None
    ) -> int | None:
        """Exit status (negative: signal), None when it was killed. Nothing that it started survives this call."""
        deadline = time.monotonic() + timeout_s
        next_reaping = time.monotonic() + 1.0
        while self._child.poll() is None:
            if should_stop():
                self.ended = "killed"
            elif time.monotonic() >= deadline:
                self.ended = "timeout"
            if self.ended != "exit":
                break
            self._read(0.05)
            tick()
            if time.monotonic() > next_reaping:
                reap_orphans(keep=self._child.pid)
                next_reaping = time.monotonic() + 1.0
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)
        status = self._child.wait()
        kill_descendants()
        drained_by = time.monotonic() + 5.0
        while self._selector.get_map() and time.monotonic() < drained_by and self._read(0.01):
            pass  # what is left in the pipes; they have no writer any more
        return status if self.ended == "exit" else None

    def _read(self, timeout_s: float) -> bool:
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return False
        events = self._selector.select(timeout_s)
        for key, _ in events:
            try:
                data = os.read(key.fd, _CHUNK)
            except BlockingIOError:
                continue
            if not data:
                self._selector.unregister(key.fileobj)
            elif key.fileobj is self._child.stdout:
                self._on_stdout(data)
            else:
                self.stderr_tail = (self.stderr_tail + data)[-STDERR_TAIL_BYTES:]
        return bool(events)
