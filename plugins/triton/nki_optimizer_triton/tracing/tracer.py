"""The judge's end of tracing: it starts the process, and holds what that leaves to the contract of launch programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO

from accelopt_core.evaluation import Step
from accelopt_core.task import ALONE, Surroundings
from accelopt_core.toolchain import ArgumentSpec, CompileError, StepTimeout, TensorArgument, ToolchainMissing
from infra.isolation import sandbox
from infra.judging.shipment import TREE
from nki_optimizer_triton.program import program_file
from nki_optimizer_triton.program.elements import BY_NAME
from nki_optimizer_triton.program.launch_program import LaunchProgram
from nki_optimizer_triton.tracing.gpu_facts import GpuFacts

WORKER = Path(__file__).with_name("worker.py")

ENTRY_POINTS = ("run", "kernel", "optimized_kernel")
"""What the function that launches kernels may be called where its user says nothing, in order of preference."""

CANDIDATE_BYTES = 4 << 30
"""Of memory, while a function is traced: tensors have no contents."""
DISK_BYTES = 1 << 30


class Tracer:
    """Traces one candidate after the other, each in a process of its own below `folder`."""

    def __init__(self, folder: Path, gpu: GpuFacts, memory_bytes: int, *, namespaces: bool = True) -> None:
        """`memory_bytes`: for all tensors of one call together. `namespaces`: False leaves them out."""
        self._folder = folder
        self._gpu = gpu
        self._memory_bytes = memory_bytes
        self._namespaces = namespaces
        self._count = 0
        self.isolation = ""
        """What kept the last candidate in."""

    def trace(
        self,
        source: str,
        arguments: Sequence[ArgumentSpec],
        timeout_s: float,
        around: Surroundings = ALONE,
        choices: Mapping[str, int] | None = None,
    ) -> LaunchProgram:
        """`choices`: the number of the configuration that an autotuned kernel is launched with, 0 where it is not
        named.

        Raises CompileError, StepTimeout, or ToolchainMissing where no such process starts here.
        """
        for argument in arguments:
            if isinstance(argument, TensorArgument) and argument.dtype not in BY_NAME:
                raise CompileError(f"a tensor of {argument.dtype} is given, and kernels take {', '.join(BY_NAME)}")
        self._count += 1
        work = self._folder / f"trace-{self._count}"
        work.mkdir()
        limits = sandbox.ProcessLimits(timeout_s, CANDIDATE_BYTES, file_bytes=DISK_BYTES, disk_bytes=DISK_BYTES)
        try:
            with ExitStack() as files:
                # opened here and handed over, so that no name, link or folder of the candidate's is ever followed
                program, failure, report = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
                job = {
                    "tree": str(TREE),
                    "work": str(work),
                    "text": source,
                    "module": around.module,
                    "path": around.path,
                    "neighbours": around.neighbours,
                    "entry_points": (around.function,) if around.function else ENTRY_POINTS,
                    "arguments": [asdict(argument) for argument in arguments],
                    "gpu": asdict(self._gpu),
                    "choices": dict(choices or {}),
                    "namespaces": self._namespaces,
                    "parent": os.getpid(),
                    "limits": asdict(limits),
                    "program_fd": program.fileno(),
                    "failure_fd": failure.fileno(),
                    "report_fd": report.fileno(),
                }
                finished = sandbox.run(
                    [sys.executable, "-I", str(WORKER)],
                    cwd=work,
                    limits=limits,
                    env=sandbox.ONE_THREAD,
                    stdin=json.dumps(job).encode(),
                    pass_fds=(program.fileno(), failure.fileno(), report.fileno()),
                )
                said = _beginning(report, 4096).decode("utf-8", "replace")
                self.isolation = said
                return self._checked(
                    finished, _beginning(program, program_file.MOST_BYTES + 1), _beginning(failure, 64 << 10), said,
                    arguments, timeout_s, 1 + len(around.neighbours),
                )  # fmt: skip
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _checked(
        self,
        finished: sandbox.Finished,
        program: bytes,
        failure: bytes,
        isolation: str,
        arguments: Sequence[ArgumentSpec],
        timeout_s: float,
        files: int,
    ) -> LaunchProgram:
        if finished.over_disk:
            raise CompileError(f"the file writes more than {DISK_BYTES >> 20} MiB to disk")
        if finished.timed_out:
            raise StepTimeout(Step.COMPILE, timeout_s)
        if finished.status != 0:
            if not isolation:  # the candidate was not even read
                raise ToolchainMissing(
                    f"no process for tracing starts here: {_last_line(finished)}; run `orchestrator.py doctor`"
                )
            raise _compile_error(failure, finished)
        try:
            return program_file.loads(program, arguments, self._memory_bytes, files)
        except program_file.ProgramDamaged as error:
            raise CompileError(f"the traced program is refused: {error}") from None


def _compile_error(failure: bytes, finished: sandbox.Finished) -> CompileError:
    try:
        said = json.loads(failure.splitlines()[0])
        line = said["line"] if type(said["line"]) is int else None
        return CompileError(" ".join(str(said["message"]).split())[:2000], line)
    except (ValueError, LookupError, TypeError, RecursionError):
        status = finished.status or 0
        number = -status if status < 0 else status - 128 if status > 128 else 0
        how = f"signal {number}" if number else f"exit status {status}"
        return CompileError(f"the process that traced the file died ({how}): {_last_line(finished)}")


def _last_line(finished: sandbox.Finished) -> str:
    return (finished.output.strip().splitlines()[-1:] or ["it said nothing"])[0][:300]


def _beginning(file: IO[bytes], limit: int) -> bytes:
    file.seek(0)
    return file.read(limit)
