"""One request to the host and its answer: the program that answers, the frames it answers with."""

from __future__ import annotations

import json
import shlex
import zlib
from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from typing import Any, NoReturn

import paramiko

from accelopt_core.ports import TargetMisconfigured, TargetUnreachable
from infra.ssh import remote_agent
from infra.ssh.connection import LinkDropped

_NOISE_LIMIT_BYTES = 65536
"""What a log-in script may print before the host's own first line."""

_BOOTSTRAP = (
    r'exec("import json,os,sys,types,zlib\ndef take(n):\n d=bytes()\n while len(d)<n:\n  c=os.read(0,n-len(d))\n'
    r"  if not c: os._exit(1)\n  d+=c\n return d\n"
    r"for name,text in json.loads(zlib.decompress(take(int(take(10)))).decode()):\n"
    r' m=sys.modules[name]=types.ModuleType(name)\n exec(compile(text,name,\"exec\"),m.__dict__)\nm.main()")'
)
"""Single-quoted on the command line of any shell; reads the modules of infra.ssh.remote_agent from standard input."""


class JobRefused(TargetMisconfigured):
    """The host was reached and will not do it; `code` says why, for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def remote_agent_command(python: str) -> str:
    """The command line, for any log-in shell."""
    return f"{shlex.quote(python)} -I -S -c '{_BOOTSTRAP}'"


@lru_cache(maxsize=1)
def remote_agent_program() -> bytes:
    """What `remote_agent_command` reads first: the modules of infra.ssh.remote_agent, packed, behind their length."""
    package = resources.files(remote_agent)
    modules = [[remote_agent.__name__, ""]]
    modules += [
        [f"{remote_agent.__name__}.{name}", package.joinpath(f"{name}.py").read_text("utf-8")]
        for name in remote_agent.MODULES
    ]
    packed = zlib.compress(json.dumps(modules).encode(), 9)
    return b"%010d" % len(packed) + packed


class Stream:
    """The answer to one request: frames in order. `expect` turns refusals and drops into exceptions."""

    def __init__(
        self,
        channel: paramiko.Channel,
        token: bytes,
        where: str,
        python: str,
        drop: Callable[[BaseException], NoReturn],
        printed: Callable[[bytes], None] = lambda noise: None,
    ) -> None:
        """`printed`: told what the host says before its own first line; a log-in script's words."""
        self._channel = channel
        self._token = token
        self._where = where
        self._python = python
        self._drop = drop
        self._printed = printed
        self._buffer = b""
        self.greeted = False
        """Whether the host has spoken: the link is up, and what was asked for runs there."""
        self._closed = False

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    def send(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if self._channel.recv_ready() or self._ended_there():
                return  # the host ended early and says why; `expect` will tell
            self._drop(error)

    def tell(self, word: bytes) -> bool:
        """Say a word to the host without waiting for an answer; False when it cannot be said."""
        try:
            self._channel.sendall(word)
            self._channel.shutdown_write()
        except (OSError, EOFError, paramiko.SSHException):
            return False
        return True

    def expect(self, *kinds: str) -> tuple[dict[str, Any], bytes]:
        """The next frame of one of `kinds`, with its payload."""
        if not self.greeted:
            self._skip_noise()
        while True:
            frame = json.loads(self._line())
            payload = self._exactly(frame["bytes"])
            if frame["frame"] in kinds:
                return frame, payload
            if frame["frame"] == "refused":
                raise JobRefused(frame["code"], f"{self._where}: {frame['message']}")

    def _skip_noise(self) -> None:
        marker = b"\n" + self._token + b"\n"
        while marker not in self._buffer:
            if len(self._buffer) > _NOISE_LIMIT_BYTES:
                raise TargetUnreachable(
                    f"{self._where} prints more than {_NOISE_LIMIT_BYTES} bytes at log-in; make "
                    f"its shell start-up files silent for non-interactive use"
                )
            self._more()
        noise, _, self._buffer = self._buffer.partition(marker)
        self._printed(noise)
        self.greeted = True

    def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            self._more()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _exactly(self, size: int) -> bytes:
        parts = [self._buffer]
        have = len(self._buffer)
        while have < size:
            self._buffer = b""
            self._more()
            parts.append(self._buffer)
            have += len(self._buffer)
        data = b"".join(parts)
        self._buffer = data[size:]
        return data[:size]

    def _more(self) -> None:
        try:
            data = self._channel.recv(1 << 18)
        except (TimeoutError, OSError, EOFError, paramiko.SSHException) as error:
            self._drop(error)
        if data:
            self._buffer += data
            return
        if self._closed:  # by this side, in another thread: the link itself is sound
            raise LinkDropped(f"the request to {self._where} was withdrawn")
        if not self.greeted and self._ended_there():
            self._explain_no_start()
        self._drop(EOFError("the host hung up"))

    def _ended_there(self) -> bool:
        """The command has ended with a status, rather than the link."""
        return self._channel.exit_status_ready() and self._channel.recv_exit_status() != -1

    def _explain_no_start(self) -> NoReturn:
        status = self._channel.recv_exit_status()
        said = self._channel.recv_stderr(4096) if self._channel.recv_stderr_ready() else b""
        words = " ".join((said or self._buffer).decode("utf-8", "replace").split())[-300:]
        raise TargetUnreachable(
            f"{self._where} logs in but cannot run '{self._python}' (exit status {status}: "
            f"{words}); install Python 3.8 or newer there, or name one"
        )
