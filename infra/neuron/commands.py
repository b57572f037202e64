"""Neuron's command-line tools: where they are, and running one with a deadline. Standard library only: it is shipped.

The tools are trusted; what they are given (a NEFF that a candidate's process left) is not.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accelopt_core.evaluation import Step
from accelopt_core.toolchain import StepTimeout, ToolchainMissing
from infra.isolation.sandbox import kill_group, scrubbed_environment

STDOUT_LIMIT = 64 << 20
STDERR_LIMIT = 256 << 10

PROFILERS = ("neuron-explorer", "neuron-profile")
"""The same interface under its current and its former name (aws-neuron-sdk, how-to-profile-workload.rst)."""

_DOCUMENTED_FLAGS = frozenset({"--num-exec", "--profile-nth-exec", "--save-output-npy", "--save-output"})


@dataclass(frozen=True)
class Installation:
    """Where to look for Neuron on this machine."""

    tool_folders: tuple[Path, ...]
    pythons: tuple[Path, ...]
    """Interpreters that may have NKI, in order of preference."""
    device_folder: Path = Path("/dev")
    system_folder: Path = Path("/sys")

    def tool(self, name: str) -> Path | None:
        found = shutil.which(name, path=os.pathsep.join(map(str, self.tool_folders)))
        return Path(found) if found else None

    @property
    def path_variable(self) -> str:
        return os.pathsep.join(map(str, self.tool_folders))

    def devices(self) -> int:
        """Neuron devices that the driver shows, e.g. /dev/neuron0."""
        with contextlib.suppress(OSError):
            return sum(1 for entry in self.device_folder.iterdir() if re.fullmatch(r"neuron\d+", entry.name))
        return 0


def this_machine() -> Installation:
    """This interpreter first, then the virtual environments of the Neuron machine images (newest name first)."""
    images = sorted(Path("/opt").glob("aws_neuronx_venv*/bin/python"), reverse=True)
    searched = [Path(p) for p in os.environ.get("PATH", os.defpath).split(os.pathsep) if p]
    return Installation(
        tool_folders=(*searched, Path("/opt/aws/neuron/bin")),
        pythons=tuple(dict.fromkeys([Path(sys.executable), *images])),
    )


@dataclass(frozen=True)
class ToolRun:
    status: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """Everything it said, for finding a known error in."""
        return self.stdout[-STDERR_LIMIT:].decode("utf-8", "replace") + "\n" + self.stderr


def run_tool(
    argv: Sequence[str], *, cwd: Path, timeout_s: float, step: Step, env: Mapping[str, str] | None = None
) -> ToolRun:
    """Run to its end in a process group of its own.

    Raises StepTimeout when `timeout_s` passes, ToolchainMissing when it cannot start or says more than 64 MiB.
    """
    if timeout_s <= 0:
        raise StepTimeout(step, max(timeout_s, 0.0))
    environment = {**scrubbed_environment({}), "HOME": str(cwd), "TMPDIR": str(cwd), **(env or {})}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolchainMissing(
                f"{argv[0]} does not start: {error.strerror}; run `orchestrator.py doctor`"
            ) from None
        try:
            status = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise StepTimeout(step, timeout_s) from None
        finally:
            kill_group(process.pid)
            process.wait()
        if out.seek(0, os.SEEK_END) > STDOUT_LIMIT:
            raise ToolchainMissing(
                f"{Path(argv[0]).name} printed more than {STDOUT_LIMIT >> 20} MiB; its output changed"
            )
        out.seek(0)
        err.seek(max(0, err.seek(0, os.SEEK_END) - STDERR_LIMIT))
        return ToolRun(status, out.read(), err.read().decode("utf-8", "replace"))


@dataclass(frozen=True)
class Profiler:
    path: Path
    capture_flags: frozenset[str]
    """Long flags that this version's `capture --help` lists."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def keeps_timed_outputs(self) -> bool:
        """Else what a timed execution computed cannot be compared with what was verified."""
        return {"--save-nth-output", "--save-output-npy"} <= self.capture_flags


def find_profiler(installation: Installation) -> Profiler:
    """The newer name first. Raises ToolchainMissing."""
    for name in PROFILERS:
        path = installation.tool(name)
        if path is None:
            continue
        with tempfile.TemporaryDirectory(prefix="nki-probe-") as folder:
            try:
                said = run_tool([str(path), "capture", "--help"], cwd=Path(folder), timeout_s=60, step=Step.EXAMINE)
            except StepTimeout:
                raise ToolchainMissing(f"{path} capture --help does not answer within 60 s; reinstall it") from None
        flags = frozenset(re.findall(r"--[a-z][a-z0-9-]+", said.text))
        return Profiler(path, flags if "--num-exec" in flags else _DOCUMENTED_FLAGS)
    raise ToolchainMissing(
        f"neither {' nor '.join(PROFILERS)} is in PATH or /opt/aws/neuron/bin: install the package aws-neuronx-tools"
    )
