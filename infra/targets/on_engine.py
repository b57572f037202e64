"""An engine as a target: a fresh judge process for each evaluation, wherever the engine has a place for it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from accelopt_core.evaluation import Crashed, Evaluation, Step, TimedOut
from accelopt_core.ports import EvaluationRequest, Progress, TargetInfo, TargetMisconfigured, TargetUnreachable
from accelopt_core.task import DEFAULT_LANGUAGE
from accelopt_core.toolchain import Calibration, ToolchainMissing
from infra.calibration.file import CalibrationOf
from infra.devices.share import PATIENCE_S, WAIT_VARIABLE
from infra.engines.engine import NOTE, ON, PARENT, SESSION, WORK, Command, Engine, Placement
from infra.judging import wire
from infra.judging.limits import judge_limit_s
from infra.judging.toolchains import account_of, open_toolchain
from infra.languages.registry import supported
from infra.targets.remembering import WorkClock
from ka_extensions.plain_text import one_line

_JUDGE = "infra.judging.judge"
_DESCRIBE_LIMIT_S = 300.0


class EngineTarget:
    """The simulator, or a device, wherever an engine has them."""

    def __init__(
        self,
        engine: Engine,
        toolchain: str,
        machine: str,
        calibration: Calibration | None = None,
        *,
        language: str = DEFAULT_LANGUAGE,
        calibration_of: CalibrationOf = lambda machine, installed: None,
        neuron_cores: int = 0,
        groups: int = 1,
        core_wait_s: float = PATIENCE_S,
        processes: int | None = None,
        device_environment: Mapping[str, str] | None = None,
    ) -> None:
        """toolchain: `simulator` or `auto`, of that language (`Language.key`); machine: which is simulated, a device
        says itself what it is.
        calibration: what the machine's model is replaced by; calibration_of: finds a device's own, once it has said
        what it is.
        neuron_cores: how many each candidate is evaluated with, of `groups` groups; 0 where none are asked for.
        core_wait_s: how long a judge on a device waits for a core that others use.
        processes: that a judge with the simulator keeps busy; None: one for each CPU.
        device_environment: of judges on a device, beside what every judge sees.
        """
        self.engine = engine
        self._toolchain = toolchain
        self._language = language
        self._machine = machine
        self._calibration = calibration
        self._calibration_of = calibration_of
        self._placement = Placement(neuron_cores=neuron_cores)
        self._groups = groups
        self._core_wait_s = core_wait_s
        self._processes = processes
        on_device = toolchain != "simulator"
        self._environment = {WAIT_VARIABLE: f"{core_wait_s:g}", **(device_environment or {})} if on_device else {}
        self.clock = WorkClock()
        """What is spent on evaluations, as a budget counts it: waiting for a place is left out."""
        self._session = secrets.token_hex(16)
        self._cache_key = secrets.token_hex(32)
        self._info: TargetInfo | None = None
        self._fingerprints: dict[str, str] = {}
        """Of devices, by node."""
        self._describing = threading.Lock()
        self._closed = False

    @property
    def width(self) -> int:
        """Of a device, its groups of cores. Of the simulator 1: what a run finds is no matter of how many machines
        there are, and whoever wants more candidates at once says so (`--width`, `--beam`)."""
        return self._groups

    @property
    def places(self) -> int:
        """How many it can have at work at once. Raises TargetError."""
        return self._groups if self._placement.neuron_cores else self.engine.places

    def describe(self) -> TargetInfo:
        """Raises TargetError."""
        with self._describing:
            if self._info is None:
                self.engine.begin()
                on_device = self._toolchain != "simulator"
                self._info = self._described_there() if on_device else self._described_here()
                self._calibration = self._info.calibration
            return self._info

    def _described_here(self) -> TargetInfo:
        """The simulator is the same wherever this very tree is."""
        try:
            toolchain = open_toolchain(
                self._toolchain, language=self._language, machine=self._machine, calibration=self._calibration
            )
        except ToolchainMissing as error:
            raise TargetMisconfigured(str(error)) from error
        try:
            return account_of(toolchain, self._calibration)
        finally:
            toolchain.close()

    def _described_there(self, node: str = "") -> TargetInfo:
        """As a judge says it, which is on a node with devices."""
        argv = (
            "-m", _JUDGE, "--describe", "--language", self._language, "--toolchain", self._toolchain,
            "--machine", self._machine,
        )  # fmt: skip
        done = self.engine.carry_out(
            Command(argv, _DESCRIBE_LIMIT_S, environment=self._environment),
            lambda line: None,
            Placement(node, self._placement.neuron_cores),
        )
        try:
            said = wire.decode_account(done.result or "")
        except TargetMisconfigured as error:
            raise TargetMisconfigured(f"{done.where}: {error}" if done.where else str(error)) from None
        except ValueError:
            raise TargetMisconfigured(
                f"the judge on {done.where or 'this machine'} gives no account of itself: {done.last_words}"
            ) from None
        self._fingerprints[done.node] = said.fingerprint
        return replace(said, calibration=self._calibration_of(said.machine, said.installed))

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        self._check_open()
        nonce = secrets.token_hex(16)
        job = wire.Job(
            request, nonce, self._toolchain, self._machine, self._cache_key, self._calibration, self._processes
        )
        on_device = self._toolchain != "simulator"
        limit_s = judge_limit_s(request) + (self._core_wait_s if on_device else 0.0)
        command = Command(
            argv=("-m", _JUDGE, "--wait", "--language", self._language, "--toolchain", self._toolchain,
                  "--result", f"{WORK}/result.json", "--cache", SESSION, "--parent", PARENT),
            limit_s=limit_s,
            input=wire.encode_job(job),
            loads=(_JUDGE, supported(self._language).module),
            collect="result.json",
            session=self._session,
            environment=self._environment,
        )  # fmt: skip
        reached, where = Step.UPLOAD, ""

        def told(step: Step, detail: str) -> None:
            nonlocal reached
            reached = step
            progress(step, f"{detail} ({where})" if where else detail)

        def hear(line: str) -> None:
            nonlocal where
            if not line.startswith(NOTE):
                known = wire.decode_progress(line)
                if known is not None:
                    told(*known)
                return
            said = one_line(line.removeprefix(NOTE), wire.LONGEST_DETAIL)
            where = said.removeprefix(ON) if said.startswith(ON) else ""
            progress(Step.UPLOAD, said)

        began, worked_s = time.monotonic(), 0.0
        try:
            done = self.engine.carry_out(command, hear, self._placement)
            worked_s = done.seconds
        finally:
            self.clock.leave_out(time.monotonic() - began - worked_s)
        self._check_open()  # what an ended judge says is no verdict, and nobody may keep it for one
        if done.result is None:
            if done.late:
                return TimedOut(reached, limit_s)
            if done.is_lost:
                return Crashed(reached, f"its worker was lost each time it was tried: {done.last_words}")
            if done.status is not None and done.status < 0:
                why = "out of memory, or the candidate did it"
                return Crashed(reached, f"the judge was killed by signal {-done.status}: {why}")
            raise TargetMisconfigured(
                f"the judge process ended with status {done.status} and no result: {done.last_words}"
            )
        if self._placement.neuron_cores:
            self._check_fingerprint(done.node, done.where)
        return wire.decode_result(done.result, nonce=nonce)

    def close(self) -> None:
        """Ends what other threads are still evaluating."""
        self._closed = True
        self.engine.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TargetUnreachable("the run has ended, and its judges with it")

    def _check_fingerprint(self, node: str, where: str) -> None:
        """Of a device on a node that came later. Raises TargetMisconfigured."""
        with self._describing:
            if node not in self._fingerprints:
                self._described_there(node)
            assert self._info is not None
            if self._fingerprints[node] != self._info.fingerprint:
                raise TargetMisconfigured(
                    f"latencies of {where} and of {self._info.name} cannot be compared (machine, tools or versions "
                    "differ): make the nodes alike, or take one of them out of the cluster"
                )
