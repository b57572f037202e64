"""Real Ray nodes on this machine: own ports, own temporary folders, and no other cluster is touched."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.ssh.server import free_port

STORE_BYTES = 80_000_000
MARK = "NKI_TEST_RAY_NODE"
"""In the environment of all that a node starts: by that it is found and ended, whatever group it is in."""
AS_OTHERS = {"RAY_worker_niceness": "0"}
"""Ray's workers stand back by 15 behind all else on their machine: beside other tests they would hardly work."""
SECRET_OF_THE_NODE = {"OPENAI_API_KEY": "sk-of-whoever-started-the-node"}

HEAD_SYSTEM = (
    '{"automatic_object_spilling_enabled": false, "local_fs_capacity_threshold": 0.001, '
    '"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 3}'
)
"""A full object store is full (its disk counts as full, too), and a dead node is known in seconds."""


@dataclass
class RayNode:
    """`ray start --block`, and what it starts."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="nkr-", dir="/tmp")))  # sockets: short
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
        scratch = self.folder / "own"
        scratch.mkdir(exist_ok=True)
        environment = {
            **kept, **SECRET_OF_THE_NODE, **AS_OTHERS, "TMPDIR": str(scratch), MARK: self.mark, **self.environment
        }  # fmt: skip
        with open(self.folder / "start.log", "ab") as log:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats",
                 "--num-cpus=1", f"--object-store-memory={STORE_BYTES}", f"--temp-dir={self.folder}/ray",
                 *self.arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip

    @property
    def scratch(self) -> Path:
        """The temporary folder of all that runs there."""
        return self.folder / "own"

    def processes(self) -> dict[int, str]:
        """Of this node: id and command line. Those that overwrite their environment are found by their parents."""
        found, parents = {}, {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if not entry.name.isdigit():
                    continue
                pid = int(entry.name)
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                if status[0] != "Z":
                    parents[pid] = (int(status[1]), line)
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                        found[pid] = line
        while more := {pid: line for pid, (parent, line) in parents.items() if parent in found and pid not in found}:
            found.update({pid: line for pid, line in more.items() if line.startswith("ray::")})
            for pid in more:
                del parents[pid]
        return found

    def kill(self) -> None:
        """At once, as when a machine is switched off; what judges there is not marked, and ends with its parent."""
        for _ in range(50):
            left = self.processes()
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.2)
        assert not self.processes()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Cluster:
    """A head and another node, each with one CPU."""

    def __init__(self, head: tuple[str, ...] = (), other: tuple[str, ...] = ()) -> None:
        self.port = free_port()
        self._head_only = head
        self.head = RayNode(
            ("--head", f"--port={self.port}", "--include-dashboard=false",
             f"--system-config={HEAD_SYSTEM}", *head)
        )  # fmt: skip
        self.other = self.new_node(other)

    def new_node(self, more: tuple[str, ...] = ()) -> RayNode:
        return RayNode((f"--address=127.0.0.1:{self.port}", *more))

    @property
    def name(self) -> str:
        return f"ray://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.head.start()
        self._wait_for(self.head, "Ray runtime started")
        self.other.start()
        self._wait_for(self.other, "Ray runtime started")

    def _wait_for(self, node: RayNode, words: str) -> None:
        log = node.folder / "start.log"
        until = time.monotonic() + 60
        while words not in (log.read_text("utf-8", "replace") if log.exists() else ""):
            assert node.process is not None and node.process.poll() is None, log.read_text("utf-8", "replace")
            assert time.monotonic() < until, log.read_text("utf-8", "replace")
            time.sleep(0.1)

    def nodes(self) -> tuple[RayNode, RayNode]:
        return self.head, self.other

    def processes(self) -> dict[int, str]:
        return {**self.head.processes(), **self.other.processes()}

    def close(self) -> None:
        for node in (self.other, self.head):
            node.close()


@contextlib.contextmanager
def running_cluster(head: tuple[str, ...] = (), other: tuple[str, ...] = ()) -> Iterator[Cluster]:
    cluster = Cluster(head, other)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
