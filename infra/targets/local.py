"""This machine as a target: a fresh judge process for each evaluation."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from accelopt_core.evaluation import Crashed, Evaluation, Step, TimedOut
from accelopt_core.ports import EvaluationRequest, Progress, TargetInfo, TargetMisconfigured, TargetUnreachable
from accelopt_core.toolchain import ToolchainMissing
from infra.isolation.sandbox import ONE_THREAD, kill_group, scrubbed_environment
from infra.judging import wire
from infra.judging.limits import judge_limit_s
from infra.judging.shipment import TREE
from infra.judging.toolchains import open_toolchain
from infra.neuron.cores import PATIENCE_S
from infra.scratch_folder import ScratchFolder
from ka_extensions.plain_text import one_line
from nki_sim.calibration import Calibration

_DETAIL_LIMIT = 500
"""Characters of one line of progress: a candidate may have a word in it."""


@dataclass(frozen=True)
class _Judge:
    """A process that has loaded what judging needs, and waits to be told of its job."""

    process: subprocess.Popen[str]
    work: Path
    errors: IO[bytes]

    @property
    def result(self) -> Path:
        return self.work / "result.json"

    def told(self, job: str) -> bool:
        """Of its job. False: it is gone, before it had one."""
        assert self.process.stdin is not None and "\n" not in job
        try:
            self.process.stdin.write(f"{job}\n")
            self.process.stdin.close()
        except OSError:
            return False
        return self.process.poll() is None

    def end(self) -> None:
        kill_group(self.process.pid)
        self.process.wait()
        for each in (self.process.stdin, self.process.stdout, self.errors):
            if each is not None:
                with suppress(OSError):  # what was not written to one that is gone
                    each.close()
        shutil.rmtree(self.work, ignore_errors=True)


class LocalTarget:
    """This machine: a fresh judge process for each evaluation. The next one loads meanwhile."""

    def __init__(self, toolchain: str, machine: str, calibration: Calibration | None = None) -> None:
        """toolchain: `simulator` or `auto`; machine: which is simulated, a device says itself what it is.
        calibration: what the machine's model is replaced by.
        """
        self._calibration = calibration
        self._toolchain = toolchain
        self._machine = machine
        self._scratch = ScratchFolder("nki-judge-")
        self._folder = self._scratch.path
        self._cache_key = secrets.token_hex(32)
        self._starter = ThreadPoolExecutor(1, "judges")
        """Judges end with the thread that started them, and evaluations come from threads that do not last."""
        self._next: Future[_Judge] | None = None
        self._choosing = threading.Lock()
        self._judges: set[int] = set()
        """Process groups at work; several, where several threads evaluate."""
        self._closed = False

    @property
    def width(self) -> int:
        return 1

    def describe(self) -> TargetInfo:
        """Raises TargetMisconfigured."""
        try:
            toolchain = open_toolchain(self._toolchain, machine=self._machine, calibration=self._calibration)
        except ToolchainMissing as error:
            raise TargetMisconfigured(str(error)) from error
        try:
            return TargetInfo(
                toolchain.name, toolchain.fingerprint, toolchain.simulated, toolchain.machine.name, toolchain.caveat,
                toolchain.installed, self._calibration,
            )  # fmt: skip
        finally:
            toolchain.close()

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        if self._closed:
            raise TargetUnreachable("this machine: the run has ended, and its judges with it")
        nonce = secrets.token_hex(16)
        progress(Step.UPLOAD, "nothing to upload: it is evaluated on this machine")
        job = wire.Job(request, nonce, self._toolchain, self._machine, self._cache_key, self._calibration)
        judge = self._started(wire.encode_job(job))
        try:
            return self._verdict(judge, request, nonce, progress)
        finally:
            judge.end()

    def _started(self, job: str) -> _Judge:
        """A judge at work on the job: the one that has loaded already, if it is still there."""
        with self._choosing:
            loading, self._next = self._next, None
        judge = (loading or self._loading()).result()
        if not judge.told(job) and loading is not None:
            judge.end()
            judge = self._loading().result()
            judge.told(job)
        with self._choosing:
            if self._next is None and not self._closed:
                self._next = self._loading()
        return judge

    def _loading(self) -> Future[_Judge]:
        try:
            return self._starter.submit(self._load)
        except RuntimeError:
            raise TargetUnreachable("this machine: the run has ended, and its judges with it") from None

    def _load(self) -> _Judge:
        work = Path(tempfile.mkdtemp(prefix="job-", dir=self._folder))
        judge_module = [sys.executable, "-m", "infra.judging.judge", "--wait", "--parent", str(os.getpid())]
        paths = ["--result", work / "result.json", "--cache", self._folder / "references"]
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the judge
        process = subprocess.Popen(
            [*judge_module, *map(str, paths)],
            cwd=TREE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            text=True,
            env=scrubbed_environment({**ONE_THREAD, "TMPDIR": str(work)}),
        )
        return _Judge(process, work, errors)

    def _verdict(self, judge: _Judge, request: EvaluationRequest, nonce: str, progress: Progress) -> Evaluation:
        process = judge.process
        self._judges.add(process.pid)
        limit_s = judge_limit_s(request) + (0.0 if self._toolchain == "simulator" else PATIENCE_S)
        overdue = threading.Timer(limit_s, kill_group, (process.pid,))  # it has limits of its own, and may fail
        overdue.start()
        reached = Step.UPLOAD

        def told(step: Step, detail: str) -> None:
            nonlocal reached
            reached = step
            progress(step, detail)

        try:
            assert process.stdout is not None
            for line in process.stdout:
                relay(line, told)
            status = process.wait()
        finally:
            late = not overdue.is_alive()
            overdue.cancel()
            self._judges.discard(process.pid)
            kill_group(process.pid)
            process.wait()
        if self._closed:  # what an ended judge says is no verdict, and nobody may keep it for one
            raise TargetUnreachable("this machine: the run has ended, and its judges with it")
        if not judge.result.exists() and late:
            return TimedOut(reached, limit_s)
        if not judge.result.exists() and status < 0:
            why = "out of memory, or the candidate did it"
            return Crashed(reached, f"the judge was killed by signal {-status}: {why}")
        if not judge.result.exists():
            judge.errors.seek(0)
            last = judge.errors.read().decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
            raise TargetMisconfigured(f"the judge process ended with status {status} and no result: {last[0]}")
        return wire.decode_result(judge.result.read_text(encoding="utf-8"), nonce=nonce)

    def close(self) -> None:
        """Ends what other threads are still evaluating."""
        with self._choosing:
            self._closed = True
            loading, self._next = self._next, None
        for judge in list(self._judges):
            kill_group(judge)
        if loading is not None:
            with suppress(OSError):  # where the disk is full it never began
                loading.result().end()
        self._starter.shutdown()
        self._scratch.close()


def relay(line: str, progress: Progress) -> None:
    """One line of a judge's stdout; what is not progress is ignored."""
    try:
        said = json.loads(line)
        step, detail = Step(said["step"]), str(said["detail"])
    except (ValueError, KeyError, TypeError):
        return
    progress(step, one_line(detail, _DETAIL_LIMIT))
