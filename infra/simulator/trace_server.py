"""A process that has loaded what tracing needs, and forks one for every candidate.

Loading takes longer than tracing most kernels does. What it forks isolates itself exactly as a process of its own
would (`trace_worker.py`), in namespaces from which this one can be neither seen nor reached; where there are none, it
ends before a candidate is read. This one never reads a candidate or a job, and knows nothing of the judge.

Started by `toolchain.py`, or forked from a judge that has loaded the same and knows no job yet. Asked over a Unix
socket: a message is the machine's name with six open files (stdin, stdout, the three of the worker, its working
folder), and the answers are the pid and, later, its wait status.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from infra.simulator.integrity import Snapshot

NUMBER = struct.Struct("=q")
"""How pids and wait statuses cross the socket."""
FILES = 6

_MOST_BYTES = 1 << 10
"""Of a message."""

_LOADING_S = 60.0
"""Until the first answer; who answers later is not waited for."""


class ServerGone(Exception):
    """The process that forks workers does not answer."""


class Process(Protocol):
    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self) -> object: ...


class TraceServer:
    """The judge's end. One candidate at a time."""

    def __init__(self, process: Process, link: socket.socket, machine: str) -> None:
        self._process, self._socket, self._machine = process, link, machine

    @classmethod
    def started(
        cls, start: Callable[[int, list[str]], subprocess.Popen[bytes]], tree: Path, machine: str
    ) -> TraceServer:
        """`start(fd, arguments)`: starts Python on this file with the arguments, and with `fd` open in it."""
        link, theirs = socket.socketpair()
        with theirs:
            return cls(
                start(theirs.fileno(), [__file__, str(tree), str(os.getpid()), str(theirs.fileno())]), link, machine
            )

    @classmethod
    def forked_before(cls, machine: str) -> TraceServer | None:
        """The one that `fork_one` forked, once."""
        global _forked
        if _forked is None:
            return None
        (process, link), _forked = _forked, None
        return cls(process, link, machine)

    def start(self, given: IO[bytes], output: IO[bytes], work: Path, files: tuple[int, int, int]) -> Forked:
        """Raises ServerGone."""
        folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        try:
            socket.send_fds(self._socket, [self._machine.encode()], [given.fileno(), output.fileno(), *files, folder])
            pid = self._number(_LOADING_S)
        except OSError as error:
            raise ServerGone(str(error)) from error
        finally:
            os.close(folder)
        return Forked(pid, self._number)

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _number(self, timeout_s: float | None) -> int:
        self._socket.settimeout(timeout_s)
        said = self._socket.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(said) < NUMBER.size:
            raise ServerGone("it ended")
        (number,) = NUMBER.unpack(said)
        return int(number)


class Forked:
    """A worker that the server forked; what `sandbox.Started` asks for."""

    def __init__(self, pid: int, number: Callable[[float | None], int]) -> None:
        self.pid = pid
        self._number = number
        self._status: int | None = None

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            try:
                self._status = os.waitstatus_to_exitcode(self._number(timeout))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("trace_worker", timeout or 0) from None
        return self._status


_forked: tuple[Process, socket.socket] | None = None


def fork_one(environment: dict[str, str]) -> None:
    """Of this process, for the simulator that will be opened here: nothing has to be loaded once more. To be called
    while this process knows nothing that is not for candidates; `environment`: all that they see of one."""
    global _forked
    from infra.isolation.forking import end_as

    link, theirs = socket.socketpair()
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        link.close()
        end_as(partial(_alone, theirs, me, environment))
    theirs.close()
    _forked = _OfThisProcess(pid), link


class _OfThisProcess:
    """A process that this one forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _alone(link: socket.socket, parent: int, environment: dict[str, str]) -> int:
    """As one that was started: with no file and no variable of the process that it was forked from."""
    from infra.isolation.forking import keep_files, take_environment

    os.setsid()
    keep_files((link.fileno(),))
    take_environment(environment)
    return _serve(link, parent)


def main(tree: str, parent: str, fd: str) -> int:
    sys.path.insert(0, tree)
    return _serve(socket.socket(fileno=int(fd)), int(parent))


def _serve(link: socket.socket, parent: int) -> int:
    """Until nobody asks any more."""
    import numpy.ma  # noqa: F401  # NumPy does so in np.unique: too late where a candidate may read no files

    import nki_sim
    from accelopt_core import toolchain  # noqa: F401  # this and what follows is loaded once, for all
    from accelopt_core.judging.orphans import end_with_parent
    from infra.isolation import linux, namespaces, report, sandbox, system_calls  # noqa: F401
    from infra.isolation.forking import end_as
    from infra.simulator import integrity, trace_worker
    from nki_sim.encoding import program_file  # noqa: F401
    from nki_sim.tracing import session  # noqa: F401

    end_with_parent(parent)
    nki_sim.install()
    tracer = integrity.snapshot()  # of no candidate yet, and the same in all that is forked
    gc.freeze()  # what all share is not gone through by each
    me = os.getpid()
    sys.argv = [trace_worker.__file__]
    while True:
        said, files, _, _ = socket.recv_fds(link, _MOST_BYTES, FILES)
        if not said:
            return 0
        os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = said.decode()
        pid = os.fork()
        if pid == 0:
            link.close()
            end_as(partial(_traced, files, me, tracer))
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here too: whoever is told the pid may end its group at once
        for file in files:
            os.close(file)
        link.sendall(NUMBER.pack(pid))
        link.sendall(NUMBER.pack(os.waitpid(pid, 0)[1]))


def _traced(files: list[int], parent: int, tracer: Snapshot) -> int:
    from infra.simulator import trace_worker

    return trace_worker.carry_out(_taken_over(files, parent), tracer)


def _taken_over(files: list[int], parent: int) -> dict[str, object]:
    """The job, once this process has its own group, folder and files."""
    os.setpgid(0, 0)
    given, output, program, failure, report, folder = files
    os.fchdir(folder)
    os.environ["TMPDIR"] = os.getcwd()
    os.dup2(given, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for file in (given, output, folder):
        os.close(file)
    with open(0, closefd=False) as stdin:
        job = json.load(stdin)
    return {**job, "program_fd": program, "failure_fd": failure, "report_fd": report, "parent": parent, "forked": True}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
