"""Running a candidate's code: a process group of its own, an empty environment, limits, a deadline.

Standard library only: it is shipped to the instance. What hides files, processes and the network is in
`namespaces.py` beside it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from infra.isolation import linux, processes

_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""All that a candidate sees of the judge's environment: no keys, no HOME, no agent sockets."""

ONE_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
}
"""For processes of which several run side by side: small matrix products gain nothing from threads."""

OUTPUT_LIMIT = 64 << 10

_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.002, 0.1
"""How often the folder and the process are looked at: often at first, when most compilations end."""


CANDIDATE_BYTES = 8 << 30
"""Of memory, for a candidate while it is traced, where nobody says otherwise; never more than half of what there is."""


@dataclass(frozen=True)
class ProcessLimits:
    deadline_s: float
    memory_bytes: int
    file_bytes: int = 2 << 30
    processes: int = 256
    disk_bytes: int = 16 << 30
    """All files in the work folder together."""


@dataclass(frozen=True)
class Finished:
    status: int | None
    """Exit status, negative for a signal; None when the deadline passed."""
    output: str
    """The last part of stdout and stderr together; for people, never for a verdict."""
    over_disk: bool = False
    """Ended because the work folder outgrew its limit."""

    @property
    def timed_out(self) -> bool:
        return self.status is None and not self.over_disk


def scrubbed_environment(extra: Mapping[str, str]) -> dict[str, str]:
    return {**{name: os.environ[name] for name in _KEPT if name in os.environ}, **extra}


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    limits: ProcessLimits,
    env: Mapping[str, str],
    stdin: bytes = b"",
    pass_fds: Sequence[int] = (),
) -> Finished:
    """Run to the end or to a limit; in either case nothing of its process group is left.

    In a process that called `adopt_descendants`, nothing that left the group is left either.
    """

    def start(given: IO[bytes], output: IO[bytes]) -> Started:
        return subprocess.Popen(
            list(argv),
            cwd=cwd,
            env={**scrubbed_environment(env), "TMPDIR": str(cwd)},
            stdin=given,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
            pass_fds=tuple(pass_fds),
        )

    return watched(start, cwd=cwd, limits=limits, stdin=stdin)


class Started(Protocol):
    """A process that leads a group of its own, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        ...


def watched(
    start: Callable[[IO[bytes], IO[bytes]], Started], *, cwd: Path, limits: ProcessLimits, stdin: bytes = b""
) -> Finished:
    """As `run`, of a process that `start` starts, given its input and its output as files."""
    processes.hide_this_process()
    before = set(processes.children()) if _adopting else set()
    deadline = time.monotonic() + limits.deadline_s
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        process = start(given, output)
        over_disk = False
        try:
            look_s = _SHORTEST_LOOK_S
            while (status := process.poll()) is None and (left_s := deadline - time.monotonic()) > 0:
                if look_s >= _LONGEST_LOOK_S and _size_bytes(cwd) > limits.disk_bytes:
                    over_disk = True
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(left_s, look_s))
                look_s = min(2 * look_s, _LONGEST_LOOK_S)
        finally:
            kill_group(process.pid)
            try:
                process.wait()
            finally:
                if _adopting:
                    _end_descendants(before)
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - OUTPUT_LIMIT))
        return Finished(status, output.read().decode("utf-8", "replace"), over_disk)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


_adopting = False


def adopt_descendants() -> None:
    """For a process that only runs candidates, one after the other: what leaves their group is found and ended too."""
    global _adopting
    with contextlib.suppress(linux.IsolationUnavailable):
        processes.adopt_orphans()
        _adopting = hasattr(os, "fork") and os.path.isdir("/proc/self")


def _end_descendants(before: set[int]) -> None:
    """Kill and reap every child that was not there before, until no more turn up."""
    while left := [pid for pid in processes.children() if pid not in before]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _size_bytes(folder: Path) -> int:
    """Of all files below; what vanishes meanwhile counts nothing, and links are not followed."""
    total, waiting = 0, [folder]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def limit_this_process(limits: ProcessLimits) -> None:
    """Called by a worker before it imports the candidate; a candidate cannot raise hard limits again."""
    cpu = max(1, int(limits.deadline_s) + 1)
    wanted = [(resource.RLIMIT_CPU, cpu), (resource.RLIMIT_FSIZE, limits.file_bytes), (resource.RLIMIT_CORE, 0)]
    if hasattr(resource, "RLIMIT_NPROC"):
        wanted.append((resource.RLIMIT_NPROC, limits.processes))
    if os.uname().sysname == "Linux":  # macOS does not enforce an address-space limit
        wanted.append((resource.RLIMIT_AS, limits.memory_bytes))
    for which, value in wanted:
        _, hard = resource.getrlimit(which)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
