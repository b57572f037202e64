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
from pathlib import Path

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


class LocalTarget:
    """This machine: a fresh judge process for each evaluation."""

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
        work = Path(tempfile.mkdtemp(prefix="job-", dir=self._folder))
        job, result = work / "job.json", work / "result.json"
        job.write_text(
            wire.encode_job(
                wire.Job(request, nonce, self._toolchain, self._machine, self._cache_key, self._calibration)
            ),
            encoding="utf-8",
        )
        progress(Step.UPLOAD, "nothing to upload: it is evaluated on this machine")
        argv = [
            sys.executable,
            "-m",
            "infra.judging.judge",
            "--job",
            str(job),
            "--result",
            str(result),
            "--cache",
            str(self._folder / "references"),
            "--parent",
            str(os.getpid()),
        ]
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                argv,
                cwd=TREE,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
                env=scrubbed_environment({**ONE_THREAD, "TMPDIR": str(work)}),
            )
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
            if not result.exists() and late:
                return TimedOut(reached, limit_s)
            if not result.exists() and status < 0:
                why = "out of memory, or the candidate did it"
                return Crashed(reached, f"the judge was killed by signal {-status}: {why}")
            if not result.exists():
                errors.seek(0)
                last = errors.read().decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
                raise TargetMisconfigured(f"the judge process ended with status {status} and no result: {last[0]}")
        try:
            return wire.decode_result(result.read_text(encoding="utf-8"), nonce=nonce)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def close(self) -> None:
        """Ends what other threads are still evaluating."""
        self._closed = True
        for judge in list(self._judges):
            kill_group(judge)
        self._scratch.close()


def relay(line: str, progress: Progress) -> None:
    """One line of a judge's stdout; what is not progress is ignored."""
    try:
        said = json.loads(line)
        step, detail = Step(said["step"]), str(said["detail"])
    except (ValueError, KeyError, TypeError):
        return
    progress(step, one_line(detail, _DETAIL_LIMIT))
