"""A process that has loaded what tracing needs, and forks one for every candidate.

Loading takes longer than tracing most kernels does. What it forks isolates itself exactly as a process of its own
would (`trace_worker.py`), in namespaces from which this one can be neither seen nor reached; where there are none, it
ends before a candidate is read. This one never reads a candidate or a job, and knows nothing of the judge.

Started by `simulator_toolchain.py` with a Unix socket: a message is six open files (stdin, stdout, the three of the
worker, its working folder), and the answers are the pid and, later, its wait status.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from infra.simulator.integrity import Snapshot

NUMBER = struct.Struct("=q")
"""How pids and wait statuses cross the socket."""
FILES = 6

_LOADING_S = 60.0
"""Until the first answer; who answers later is not waited for."""


class ServerGone(Exception):
    """The process that forks workers does not answer."""


class TraceServer:
    """The judge's end. One candidate at a time."""

    def __init__(self, start: Callable[[int, list[str]], subprocess.Popen[bytes]], tree: Path, machine: str) -> None:
        """`start(fd, arguments)`: starts Python on this file with the arguments, and with `fd` open in it."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            arguments = [str(tree), machine, str(os.getpid()), str(theirs.fileno())]
            self._process = start(theirs.fileno(), [__file__, *arguments])

    def start(self, given: IO[bytes], output: IO[bytes], work: Path, files: tuple[int, int, int]) -> Forked:
        """Raises ServerGone."""
        folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        try:
            socket.send_fds(self._socket, [b"."], [given.fileno(), output.fileno(), *files, folder])
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


def main(tree: str, machine: str, parent: str, fd: str) -> int:
    sys.path.insert(0, tree)
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = machine
    import nki_sim
    from accelopt_core import toolchain  # noqa: F401  # this and what follows is loaded once, for all
    from accelopt_core.judging.orphans import end_with_parent
    from infra.isolation import linux, namespaces, report, sandbox, system_calls  # noqa: F401
    from infra.simulator import integrity, trace_worker
    from nki_sim import program_file, session  # noqa: F401

    end_with_parent(int(parent))
    nki_sim.install()
    tracer = integrity.snapshot()  # of no candidate yet, and the same in all that is forked
    gc.freeze()  # what all share is not gone through by each
    link = socket.socket(fileno=int(fd))
    me = os.getpid()
    sys.argv = [trace_worker.__file__]
    while True:
        said, files, _, _ = socket.recv_fds(link, 1, FILES)
        if not said:
            return 0
        pid = os.fork()
        if pid == 0:
            link.close()
            _end_as(partial(_traced, files, me, tracer))
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here too: whoever is told the pid may end its group at once
        for file in files:
            os.close(file)
        link.sendall(NUMBER.pack(pid))
        link.sendall(NUMBER.pack(os.waitpid(pid, 0)[1]))


def _end_as(work: Callable[[], int]) -> NoReturn:
    """End this process with that status, whatever is raised: the loop that it was forked from is not its own."""
    status = 1
    try:
        status = work()
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
        if left.code is not None and not isinstance(left.code, int):  # as Python ends
            with contextlib.suppress(Exception):
                print(left.code, file=sys.stderr, flush=True)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(status & 255)


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
