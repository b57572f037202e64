"""A process that has loaded what a command's process needs, and forks one for each such command. Linux.

Loading takes longer than most evaluations do. It sees nothing of what a command is given: input, result and folder are
those of what it forks, which goes on as one that was started does: in a session of its own, with files and an
environment of its own. When whoever started it is gone it ends, and all that it forked ends with it.

Asked over a Unix socket: arguments and environment as JSON, with four open files: the three standard ones, and a socket
on which the process says its id, and this one, later, its wait status.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from accelopt_core.judging.orphans import end_with_parent
from infra.isolation.forking import keep_files, take_environment

NUMBER = struct.Struct("=q")
"""How ids and wait statuses cross the socket."""
_FILES = 4
_MOST_BYTES = 1 << 17
"""Of a message; the environment is a few variables."""

_LOADING_S = 60.0
"""Until the first answer; who answers later is not waited for."""


class ForkServerGone(Exception):
    """It does not answer."""


class ForkServer:
    """Its starter's end. One thread at a time may ask it; it ends with the thread that made it."""

    def __init__(self, tree: Path, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """modules: of `tree`, to be loaded; the first has `main(arguments)`, which is what each process runs.
        environment: while they are loaded."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid()), *modules],
                cwd=tree,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )

        self.has_forked = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], errors: IO[bytes]) -> Forked:
        """A process of `main(arguments)`; `errors`: its standard error. Raises ForkServerGone, and OSError."""
        said = json.dumps([list(arguments), dict(environment)]).encode()
        answer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        input_end, ours = os.pipe()
        from_it, output_end = os.pipe()
        stdin, stdout = open(ours, "w", encoding="utf-8"), open(from_it, encoding="utf-8")  # noqa: SIM115
        process = Forked(answer, stdin, stdout)  # closes them
        try:
            try:
                socket.send_fds(self._link, [said], [input_end, output_end, errors.fileno(), theirs.fileno()])
            finally:
                theirs.close()
                os.close(input_end)
                os.close(output_end)
            process.begin(_LOADING_S)
        except (OSError, EOFError) as error:
            process.close()
            raise ForkServerGone(f"{type(error).__name__}: {error}") from error
        self.has_forked = True
        return process

    def close(self) -> None:
        """Ends what it has forked, too."""
        self._link.close()
        self._process.kill()
        self._process.wait()


class Forked:
    """A process that the server forked, as `subprocess.Popen` has it."""

    def __init__(self, answer: socket.socket, stdin: IO[str], stdout: IO[str]) -> None:
        self.stdin, self.stdout = stdin, stdout
        self.pid = 0
        self._answer = answer
        self._status: int | None = None

    def begin(self, timeout_s: float) -> None:
        """Once it is a process. Raises OSError, and EOFError where there is no server."""
        self.pid = self._number(timeout_s)

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
                raise subprocess.TimeoutExpired(__name__, timeout or 0) from None
            except EOFError:  # the server is gone, and with it all that it forked
                self._status = -signal.SIGKILL
        return self._status

    def close(self) -> None:
        for each in (self.stdin, self.stdout, self._answer):
            with contextlib.suppress(OSError):  # what was not written to one that is gone
                each.close()

    def _number(self, timeout_s: float | None) -> int:
        self._answer.settimeout(timeout_s)
        said = self._answer.recv(NUMBER.size)
        if not said:
            raise EOFError("it ended")
        (number,) = NUMBER.unpack(said)
        return int(number)


def main(link: str, parent: str, *modules: str) -> int:
    end_with_parent(int(parent))
    loaded = [importlib.import_module(name) for name in modules]
    gc.freeze()  # what all share is not gone through by each
    arguments = _forked(socket.socket(fileno=int(link)))
    if arguments is None:
        return 0
    sys.argv = [str(loaded[0].__file__), *arguments]
    status: int = loaded[0].main(arguments)
    return status


def _forked(link: socket.socket) -> list[str] | None:
    """In each process that is forked: its arguments. In the server: None, once nobody asks any more."""
    ended, end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, socket.socket] = {}
    awaited: list[socket.socket | int] = [link, ended]
    while True:
        ready, _, _ = select.select(awaited, [], [])
        if ended in ready:
            os.read(ended, 1 << 12)
            _tell(running)
        if link not in ready:
            continue
        said, files, _, _ = socket.recv_fds(link, _MOST_BYTES, _FILES)
        if not said:
            return None
        answer = socket.socket(fileno=files.pop())
        try:
            pid = os.fork()
        except OSError:  # whoever asked sees the socket closed
            answer.close()
        else:
            if pid == 0:
                for each in (link, *running.values()):
                    each.close()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return _taken_over(said, files, answer)
            running[pid] = answer
        for file in files:
            os.close(file)


def _tell(running: dict[int, socket.socket]) -> None:
    """Whoever waits for a process that has ended how it did."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            with running.pop(found[0]) as answer, contextlib.suppress(OSError):
                answer.send(NUMBER.pack(found[1]))


def _taken_over(said: bytes, files: Sequence[int], answer: socket.socket) -> list[str]:
    """The arguments, once this process has its own session, files and environment, and has said its id."""
    os.setsid()
    with answer:
        answer.send(NUMBER.pack(os.getpid()))
    for number, file in enumerate(files):
        os.dup2(file, number)
    keep_files((0, 1, 2))
    arguments, environment = json.loads(said)
    take_environment(environment)
    return list(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
