"""Running a candidate's code: a process group of its own, an empty environment, limits, a deadline.

Standard library only: it is shipped to the instance.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""All that a candidate sees of the judge's environment: no keys, no HOME, no agent sockets."""

ONE_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
}
"""For processes of which several run side by side: small matrix products gain nothing from threads."""

OUTPUT_LIMIT = 64 << 10


@dataclass(frozen=True)
class Limits:
    wall_s: float
    memory_bytes: int
    file_bytes: int = 2 << 30
    processes: int = 256


@dataclass(frozen=True)
class Finished:
    status: int | None
    """Exit status, negative for a signal; None when the deadline passed."""
    output: str
    """The last part of stdout and stderr together; for people, never for a verdict."""

    @property
    def timed_out(self) -> bool:
        return self.status is None


def scrubbed_environment(extra: Mapping[str, str]) -> dict[str, str]:
    return {**{name: os.environ[name] for name in _KEPT if name in os.environ}, **extra}


def run(argv: Sequence[str], *, cwd: Path, limits: Limits, env: Mapping[str, str], stdin: bytes = b"") -> Finished:
    """Run to the end or to the deadline; in either case nothing of its process group is left."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env={**scrubbed_environment(env), "TMPDIR": str(cwd)},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                process.communicate(stdin, timeout=limits.wall_s)
            status = process.poll()
        finally:
            kill_group(process.pid)
            process.wait()
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - OUTPUT_LIMIT))
        return Finished(status, output.read().decode("utf-8", "replace"))


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def limit_this_process(limits: Limits) -> None:
    """Called by a worker before it imports the candidate; a candidate cannot raise hard limits again."""
    cpu = max(1, int(limits.wall_s) + 1)
    wanted = [(resource.RLIMIT_CPU, cpu), (resource.RLIMIT_FSIZE, limits.file_bytes), (resource.RLIMIT_CORE, 0)]
    if hasattr(resource, "RLIMIT_NPROC"):
        wanted.append((resource.RLIMIT_NPROC, limits.processes))
    if os.uname().sysname == "Linux":  # macOS does not enforce an address-space limit
        wanted.append((resource.RLIMIT_AS, limits.memory_bytes))
    for which, value in wanted:
        _, hard = resource.getrlimit(which)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
