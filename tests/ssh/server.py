"""A real OpenSSH server on the loopback interface, with keys, known_hosts and configuration of its own."""

from __future__ import annotations

import atexit
import functools
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from infra.ssh.config import SshSettings
from infra.targets.over_ssh import SshTarget
from tests.processes import PATIENCE_S, eventually


def _sshd_program() -> str | None:
    return shutil.which("sshd", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Sshd:
    """One server process. `home` plays the part of the user's ~/.ssh on this side."""

    program: str
    home: Path
    port: int
    options: tuple[str, ...] = ()
    sftp: str = "internal-sftp"
    """Its sftp subsystem; empty: it has none."""
    process: subprocess.Popen[bytes] | None = None
    settings: SshSettings = field(init=False)

    def __post_init__(self) -> None:
        self.settings = SshSettings(
            config_file=self.home / "config", connect_timeout_s=120.0, silence_limit_s=240.0, reconnect_for_s=300.0
        )

    @property
    def destination(self) -> str:
        return f"{getpass.getuser()}@127.0.0.1:{self.port}"

    @property
    def user_key(self) -> Path:
        return self.home / "id_ed25519"

    def host_key_line(self, name: str | None = None) -> str:
        kind, blob = (self.home / "host_key.pub").read_text().split()[:2]
        return f"{name or f'[127.0.0.1]:{self.port}'} {kind} {blob}\n"

    def trust(self) -> None:
        (self.home / "known_hosts").write_text(self.host_key_line())

    def start(self) -> None:
        config = self.home / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.home / 'host_key'}\n"
            f"AuthorizedKeysFile {self.home / 'authorized_keys'}\nPidFile {self.home / 'sshd.pid'}\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\nMaxSessions 30\n"
            + "".join(f"{line}\n" for line in (*((f"Subsystem sftp {self.sftp}",) if self.sftp else ()), *self.options))
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
        listens = self.home / "sshd.pid"  # which sshd writes once it listens
        listens.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [self.program, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=(self.home / "sshd.log").open("ab"),
        )  # fmt: skip
        process = self.process
        assert eventually(lambda: process.poll() is not None or listens.exists())
        if process.poll() is not None:
            pytest.fail(f"sshd does not start: {(self.home / 'sshd.log').read_text()[-500:]}")

    def stop(self) -> None:
        self.cut()
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=PATIENCE_S)
            self.process = None

    def connections(self) -> list[int]:
        """The server's processes for connections that are open now."""
        if self.process is None:
            return []
        found, pending = [], [self.process.pid]
        while pending:
            parent = pending.pop()
            for name in os.listdir("/proc"):
                try:
                    stat = Path(f"/proc/{name}/stat").read_text() if name.isdigit() else ""
                    command = Path(f"/proc/{name}/cmdline").read_text() if stat else ""
                except OSError:
                    continue
                if stat and int(stat.rpartition(")")[2].split()[1]) == parent and "sshd" in command:
                    found.append(int(name))
                    pending.append(int(name))
        return found

    def cut(self) -> None:
        """Drop every connection as a failing network would: without a word."""
        for pid in self.connections():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    @contextmanager
    def cutting(self, after_s: float) -> Iterator[None]:
        """Drops every connection after so long, and again as long as nobody has felt it and left: on a busy machine the
        first may come before there is one."""
        felt = threading.Event()

        def cut() -> None:
            pause_s = after_s
            while not felt.wait(pause_s):
                self.cut()
                pause_s = 0.5

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            yield
        finally:
            felt.set()
            thread.join()


@functools.cache
def _keys(keygen: str) -> Path:
    """Made once by each process of these tests: they protect nothing."""
    folder = Path(tempfile.mkdtemp(prefix="sshd-keys-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("host_key", "id_ed25519", "other_key"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)], check=True)
    shutil.copy(folder / "id_ed25519.pub", folder / "authorized_keys")
    return folder


def make_sshd(home: Path, options: tuple[str, ...] = ()) -> Sshd:
    program = _sshd_program()
    keygen = shutil.which("ssh-keygen")
    if program is None or keygen is None:
        pytest.skip("needs the program sshd: apt-get install openssh-server")
    if not os.path.isdir("/proc/self"):
        pytest.skip("these tests watch processes through /proc, which this system has not")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in _keys(keygen).iterdir():
        shutil.copy(path, home / path.name)
    return Sshd(program, home, free_port(), options)


def simulated_target(sshd: Sshd, root: Path, settings: SshSettings | None = None) -> SshTarget:
    """On that host, with this Python and the simulator there."""
    return SshTarget(
        sshd.destination, machine="trn2", remote_simulator=True, remote_python=sys.executable,
        settings=settings or sshd.settings, root=str(root),
    )  # fmt: skip


def processes_mentioning(text: str) -> list[str]:
    """Command lines of living processes that contain `text`."""
    found = []
    for name in os.listdir("/proc"):
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ") if name.isdigit() else b""
        except OSError:
            continue
        if text.encode() in command and int(name) != os.getpid():
            found.append(command.decode("utf-8", "replace"))
    return found
