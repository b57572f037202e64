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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accelopt_core.evaluation import Step
from accelopt_core.toolchain import StepTimeout, ToolchainMissing
from infra.isolation.sandbox import kill_group, scrubbed_environment

STDOUT_LIMIT = 64 << 20
STDERR_LIMIT = 256 << 10


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
    images = newest_first(Path("/opt").glob("aws_neuronx_venv*/bin/python"))
    searched = [Path(p) for p in os.environ.get("PATH", os.defpath).split(os.pathsep) if p]
    return Installation(
        tool_folders=(*searched, Path("/opt/aws/neuron/bin")),
        pythons=tuple(dict.fromkeys([Path(sys.executable), *images])),
    )


def newest_first(paths: Iterable[Path]) -> list[Path]:
    """By the numbers in their names, as numbers: `aws_neuronx_venv_pytorch_2_14` is newer than `..._2_9`."""

    def by_number(path: Path) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]

    return sorted(paths, key=by_number, reverse=True)


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
