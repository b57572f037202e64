"""Compiling, running and timing a kernel with a real Neuron SDK, one route per era. Shipped to the instance.

Whatever the era, a candidate's process leaves a NEFF and nothing else that counts. The profiler's
command line then runs that NEFF on inputs the candidate never saw, saves its outputs and times it on the
device's clock. Routes differ only in how the NEFF comes about, so they are data here and one function
each in `neff_worker.py`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import numpy as np

from accelopt_core.evaluation import HotLine, Installed, Proof, Step
from accelopt_core.language import Finding, Language
from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.nki.neuron_cores import NeuronCores
from accelopt_core.task import ALONE, Surroundings
from accelopt_core.toolchain import (
    ArgumentSpec,
    Calibration,
    Facts,
    RunError,
    StepTimeout,
    Timing,
    ToolchainMissing,
    Traced,
)
from infra.devices.leases import Told
from infra.devices.share import CORES_VARIABLE, PATIENCE_S, WAIT_VARIABLE, CoreShare
from infra.neuron.commands import Installation, ToolRun, run_tool, this_machine
from infra.neuron.compilation.compiling import Neff, NeffCompiler
from infra.neuron.faults import run_fault
from infra.neuron.packages import system_versions
from infra.neuron.profiling.profile import ProfileUnreadable, narrow_matmuls, resource_bound_us
from infra.neuron.profiling.profile_reader import ProfileReader, find_table_reader
from infra.neuron.profiling.profiler import Profiler, find_profiler
from infra.neuron.routes import (
    DOCTOR,
    LNC,
    ROUTES,
    ProbeResult,
    Route,
    installed,
    instance_type,
    machine_of,
    probe_routes,
)
from infra.neuron.tensors import read_output, write_input
from nki_sim.machine import MACHINES, Machine
from nki_sim.timing.calibration import calibrated_machine

log = logging.getLogger(__name__)


Trace = Callable[[str, str, Sequence[ArgumentSpec], float, Surroundings], "Traced | None"]
"""(machine, source, arguments, time limit in s, files around it) -> what another tool counts in the source.

None: it cannot read it."""


def open_neuron_toolchain(
    trace: Trace,
    route: str | None = None,
    installation: Installation | None = None,
    core: str | None = None,
    told: Told = lambda line: None,
    calibration: Calibration | None = None,
) -> NeuronToolchain:
    """The first route that works here, or the named one. Raises ToolchainMissing, naming all that was looked for.

    `trace`: the second opinion on what a source computes.
    `calibration`: of this machine by its user; of another one it is refused.
    `core`: for NEURON_RT_VISIBLE_CORES; without it one is leased when the first kernel is compiled, which `told` tells.
    """
    where = installation or this_machine()
    if where.devices() == 0:
        raise ToolchainMissing(
            f"no Neuron device in {where.device_folder}: is this a Trainium instance with the driver "
            "(aws-neuronx-dkms) loaded?"
        )
    profiler = find_profiler(where)
    reader = ProfileReader(profiler, find_table_reader(where) if profiler.needs_parquet else None)
    kind = instance_type(where)
    generation = machine_of(kind)
    if generation is None:
        raise ToolchainMissing(
            f"cannot evaluate on an instance of type {kind or 'unknown'}: {', '.join(MACHINES)} are known"
        )
    looked = []
    for result in probe_routes(where):
        if route not in (None, result.route):
            continue
        if result.available:
            chosen = next(known for known in ROUTES if known.name == result.route)
            share = share_of_this_host(generation, where.devices(), told)
            if core is not None:
                share = CoreShare((), chosen=core, told=told)
            try:
                core_model = calibrated_machine(generation, calibration)
            except (KeyError, ValueError) as error:
                raise ToolchainMissing(f"the calibration does not fit this device: {error.args[0]}") from None
            return NeuronToolchain(chosen, result, where, profiler, reader, core_model, kind or "", share, trace)
        looked.append(f"{result.route}: {result.why_not}")
    why = "; ".join(looked) or f"no route is named {route!r}"
    raise ToolchainMissing(f"no way to compile a kernel here ({why}); {DOCTOR}")


# --- the toolchain --------------------------------------------------------------------------------


class NeuronToolchain:
    """One route on one NeuronCore. Satisfies `accelopt_core.toolchain.Toolchain`."""

    language: Language = NKI
    simulated = False
    caveat = ""
    parallel_runs = 0

    def __init__(
        self,
        route: Route,
        probe: ProbeResult,
        installation: Installation,
        profiler: Profiler,
        reader: ProfileReader,
        machine: Machine,
        kind: str,
        share: CoreShare,
        trace: Trace,
    ) -> None:
        self.route = route
        self.model = machine
        self.machine = NeuronCores(machine)
        self._probe = probe
        self._where = installation
        self._profiler = profiler
        self._reader = reader
        self._kind = kind
        self._share = share
        self._trace = trace
        self._folder = Path(tempfile.mkdtemp(prefix="nki-trn-"))
        self._count = 0
        self._last: dict[str, tuple[dict[str, float], Path]] = {}
        self._verified: dict[tuple[str, str], str] = {}
        """By NEFF and inputs: the digest of the outputs that `run` handed out."""

    @cached_property
    def _compiler(self) -> NeffCompiler:
        python = Path(str(self._probe.python))
        folders = self._probe.folders
        return NeffCompiler(self.route, python, folders, self._where, self.model.name, self._share.core, self._folder)

    @cached_property
    def versions(self) -> dict[str, str]:
        return {**dict(self._probe.versions), **system_versions(self._where)}

    @property
    def installation(self) -> Installation:
        return self._where

    @property
    def core(self) -> str:
        """For NEURON_RT_VISIBLE_CORES; leased when it is first asked for."""
        return self._share.core

    @property
    def installed(self) -> Installed:
        return installed(self.versions, self._kind)

    @property
    def name(self) -> str:
        known = self.versions
        compiler = f"NKI {known['nki']}" if "nki" in known else f"neuronx-cc {known.get('neuronx-cc', 'unknown')}"
        return f"{self.model.name} ({compiler}, {self._profiler.name} {known.get('aws-neuronx-tools', 'unknown')})"

    @property
    def fingerprint(self) -> str:
        binary = self._profiler.path.stat()
        facts = {
            "kind": self._kind,
            "route": self.route.name,
            "lnc": LNC,
            "profiler": [self._profiler.name, binary.st_size],
            "versions": sorted(self.versions.items()),
        }
        return f"{self.model.name}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]}"

    def close(self) -> None:
        self._share.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def isolation(self) -> str:
        return self._compiler.isolation if "_compiler" in self.__dict__ else ""  # asking must not lease a core

    def compile(
        self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
    ) -> Neff:
        """Raises CompileError, StepTimeout, or ToolchainMissing when the SDK itself does not work."""
        return self._compiler.compile(source, arguments, timeout_s, around)

    def traced(
        self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
    ) -> Traced | None:
        return self._trace(self.model.name, source, arguments, timeout_s, around)

    def prove(
        self,
        artifact: Neff,
        tensors: Sequence[np.ndarray],
        seed: int,
        tolerance: float,
        original: object,
        kept: object,
        matters: object,
    ) -> tuple[Proof, ...]:
        """What is in a NEFF is the compiler's; only its runs tell what it computes."""
        return ()

    def run(self, artifact: Neff, tensors: Sequence[np.ndarray], timeout_s: float) -> list[np.ndarray]:
        """One execution. bfloat16 and float8 outputs come back as float32, which holds them exactly."""
        work = self.new_folder("run")
        try:
            flags = ["--num-exec", "1"]
            if "--disable-profile" in self._profiler.capture_flags:
                flags.append("--disable-profile")
            npy = "--save-output-npy" in self._profiler.capture_flags
            flags.append("--save-output-npy" if npy else "--save-output")
            said = self._capture(artifact, tensors, work, flags, timeout_s, Step.RUN)
            outputs = self._outputs(artifact, work, said)
            self._verified[artifact.digest, _digest(tensors)] = _digest(outputs)
            return outputs
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _outputs(self, artifact: Neff, work: Path, said: ToolRun) -> list[np.ndarray]:
        pairs = zip(artifact.outputs, artifact.output_specs)
        return [read_output(work, name, spec, said.text) for name, spec in pairs]

    def cores(self, artifact: Neff) -> int:
        return LNC

    def memory_bytes(self, artifact: Neff) -> int:
        """The device has memory of its own."""
        return 0

    def instructions(self, artifact: Neff) -> int:
        """They run on the device."""
        return 0

    def program_digest(self, artifact: Neff) -> str:
        """Two NEFFs of one program need not be the same bytes."""
        return ""

    def device_doubts(self, artifact: Neff) -> tuple[Finding, ...]:
        return ()

    def rounded_integers(self, artifact: Neff) -> bool:
        return False

    def counts(self, artifact: Neff) -> bool:
        """The device takes the time that it takes."""
        return False

    def estimate_us(self, artifact: Neff) -> None:
        return None

    def time(
        self, artifact: Neff, tensors: Sequence[np.ndarray], warmup: int, iterations: int, timeout_s: float
    ) -> Timing:
        """The device's own time of each execution after the warm-ups.

        At least one execution is left out, because the first loads the GpSimd program (about 1 ms). Reading
        the profile of a long kernel takes long: after half of `timeout_s`, three samples are enough.
        """
        work = self.new_folder("time")
        skipped = max(1, warmup)
        total = skipped + iterations
        flags = ["--num-exec", str(total)]  # and every one profiled, which is the default
        known = self._profiler.capture_flags
        flags += [flag for flag in ("--check-output-determinism",) if flag in known]
        if self._profiler.keeps_timed_outputs:
            flags += ["--save-output-npy", f"--save-nth-output={total}"]
        with self._share.timing():
            started = time.monotonic()
            said = self._capture(artifact, tensors, work, flags, timeout_s, Step.BENCHMARK)
        if self._profiler.keeps_timed_outputs:
            self._check_timed_outputs(artifact, tensors, work, said)
        sessions = [work / f"profile_exec_{number}.ntff" for number in range(skipped + 1, total + 1)]
        lost = [session.name for session in sessions if not session.is_file()]
        if lost:
            left = ", ".join(sorted(p.name for p in work.glob("*.ntff"))) or "nothing"
            raise ToolchainMissing(
                f"{self._profiler.name} capture left {left}, not {lost[0]}: its naming changed; {DOCTOR}"
            )
        summaries = self._summaries(artifact, sessions, started, timeout_s)
        samples = [summary["total_time"] * 1e6 for summary in summaries]
        middle = samples.index(statistics.median_low(samples))
        if artifact.digest in self._last:
            shutil.rmtree(self._last[artifact.digest][1].parent, ignore_errors=True)
        for left_over in work.iterdir():
            if left_over != sessions[middle] and left_over.is_file():
                left_over.unlink()
        self._last[artifact.digest] = (summaries[middle], sessions[middle])
        return Timing(tuple(samples))

    def _summaries(
        self, artifact: Neff, sessions: Sequence[Path], started: float, timeout_s: float
    ) -> list[dict[str, float]]:
        together = max(1, min(4, (os.cpu_count() or 1) // 2))
        summaries: list[dict[str, float]] = []
        with ThreadPoolExecutor(max_workers=together) as pool:
            while len(summaries) < len(sessions):
                if len(summaries) >= 3 and time.monotonic() - started > timeout_s / 2:
                    log.warning("reading profiles takes long: %d of %d samples are used", len(summaries), len(sessions))
                    break
                batch = sessions[len(summaries) : len(summaries) + together]
                summaries += pool.map(lambda session: self._summary(artifact, session, started + timeout_s), batch)
        return summaries

    def _check_timed_outputs(self, artifact: Neff, tensors: Sequence[np.ndarray], work: Path, said: ToolRun) -> None:
        """What was timed must have computed what was verified, where the same inputs were verified."""
        verified = self._verified.get((artifact.digest, _digest(tensors)))
        if verified is not None and _digest(self._outputs(artifact, work, said)) != verified:
            raise RunError("a timed execution computed other outputs than the verified one on the same inputs")

    def facts(self, artifact: Neff) -> Facts:
        if artifact.digest not in self._last:
            raise ValueError("facts are about an execution: call time first")
        summary, session = self._last[artifact.digest]
        narrow = {found for found in [narrow_matmuls(summary)] if found}
        lines: tuple[HotLine, ...] = ()
        try:
            until = time.monotonic() + _TABLE_TIMEOUT_S
            env = self._run_environment
            detail = self._reader.instructions(
                artifact.path, session, artifact.source_name, summary["total_time"], until, env
            )
            lines, narrow = detail.hot_lines, narrow | set(detail.low_precision)
        except (ProfileUnreadable, StepTimeout, RunError, ToolchainMissing) as error:
            log.warning("no time per source line: %s", error)
        flops = summary.get("hardware_flops")
        return Facts(
            fields=summary,
            hot_lines=lines,
            low_precision=tuple(sorted(narrow)),
            matmul_flops=None if flops is None else int(flops - summary.get("transpose_flops", 0.0)),
            counted_flops=None if flops is None else int(flops),
            vector_ops=0,  # no profiler counts them; a bound by the other two resources is still a bound
            hbm_bytes=artifact.io_bytes,
            resource_bound_us=resource_bound_us(summary, self.model),
        )

    def _capture(
        self,
        artifact: Neff,
        tensors: Sequence[np.ndarray],
        work: Path,
        flags: Sequence[str],
        timeout_s: float,
        step: Step,
    ) -> ToolRun:
        given: list[str] = []
        if len(tensors) != len(artifact.inputs):
            raise RunError(f"{len(tensors)} tensors were given to a kernel compiled for {len(artifact.inputs)}")
        inputs = work / "inputs"
        inputs.mkdir()
        for number, (name, tensor) in enumerate(zip(artifact.inputs, tensors)):
            if name is not None:
                given += [name, str(write_input(inputs / str(number), tensor))]
        said = run_tool(
            [
                str(self._profiler.path),
                "capture",
                "-n",
                str(artifact.path),
                "-s",
                str(work / "profile.ntff"),
                *flags,
                *given,
            ],
            cwd=work,
            timeout_s=timeout_s,
            step=step,
            env=self._run_environment,
        )
        shutil.rmtree(inputs)
        if said.status != 0:
            raise run_fault(said, f"{self._profiler.name} capture")
        return said

    def _summary(self, artifact: Neff, session: Path, deadline: float) -> dict[str, float]:
        return self._reader.summary(artifact.path, session, deadline, self._run_environment)

    @property
    def _run_environment(self) -> dict[str, str]:
        return {
            "PATH": self._where.path_variable,
            "NEURON_RT_VISIBLE_CORES": self._share.core,
            "NEURON_LOGICAL_NC_CONFIG": str(LNC),
            "NEURON_RT_ENABLE_DGE_NOTIFICATIONS": "0",  # their queue can overflow (nrt-troubleshoot.rst)
        }

    def new_folder(self, step: str) -> Path:
        """Below its own, which goes when it is closed."""
        self._count += 1
        work = self._folder / f"{step}-{self._count}"
        work.mkdir()
        return work


_TABLE_TIMEOUT_S = 120.0


def _digest(arrays: Sequence[np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


RUNTIME_VARIABLE = "NEURON_RT_VISIBLE_CORES"
"""The Neuron runtime's own; a user who sets it has chosen, and no core is leased."""


def share_of_this_host(machine: str, devices: int, told: Told = lambda line: None) -> CoreShare:
    """As the environment has it. Raises ToolchainMissing for cores that this machine has not.

    machine: a key of `nki_sim.machine.MACHINES`; devices: how many the driver shows.
    """
    if machine not in MACHINES:
        raise ToolchainMissing(f"{machine} is not known here, only {', '.join(MACHINES)}: upgrade")
    per_device = MACHINES[machine].cores_per_device
    there = range(devices * per_device)
    wanted = os.environ.get(CORES_VARIABLE, "")
    chosen = None if wanted else os.environ.get(RUNTIME_VARIABLE) or None
    try:
        cores = [int(word) for word in wanted.split(",")] if wanted else list(there)
        patience_s = float(os.environ.get(WAIT_VARIABLE) or PATIENCE_S)
    except ValueError as error:
        raise ToolchainMissing(f"{CORES_VARIABLE}, {WAIT_VARIABLE}: {error}") from None
    beyond = [str(core) for core in cores if core not in there]
    if beyond:
        raise ToolchainMissing(
            f"core {', '.join(beyond)}: this machine has {len(there)}, 0 to {len(there) - 1} "
            f"({devices} devices of {per_device}); choose others with --cores"
        )
    return CoreShare(cores, chosen=chosen, patience_s=patience_s, told=told)
