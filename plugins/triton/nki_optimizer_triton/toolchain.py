"""Triton kernels on an NVIDIA GPU as a toolchain: traced, compiled by us, executed twice, timed. Shipped.

With a GPU it executes and times there. Without one it executes the kernels' IR on this machine's CPU, a gate before the
device, and cannot time: `time` raises NotTimed. What is compiled is the same in both cases.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from accelopt_core.evaluation import Installed, Proof, Step
from accelopt_core.language import Finding, Language
from accelopt_core.task import ALONE, Surroundings
from accelopt_core.toolchain import ArgumentSpec, Facts, NotTimed, StepTimeout, Timing, ToolchainMissing
from infra.devices.leases import Told
from infra.scratch_folder import ScratchFolder
from nki_optimizer_triton.artifact import TritonArtifact, artifact_of
from nki_optimizer_triton.compiling.compiler import KernelCompiler, OutOfSharedMemory
from nki_optimizer_triton.execution.executor import CpuExecutor, DeviceExecutor
from nki_optimizer_triton.gpu_share import VisibleGpu
from nki_optimizer_triton.language.gpu_model import GpuModel
from nki_optimizer_triton.language.gpus import DEFAULT, GPUS, Gpu, gpu_of_device
from nki_optimizer_triton.language.language import TRITON
from nki_optimizer_triton.precision import low_precision
from nki_optimizer_triton.profile import static_fields, timed_fields
from nki_optimizer_triton.program.launch_program import LaunchProgram
from nki_optimizer_triton.tracing.gpu_facts import GpuFacts
from nki_optimizer_triton.tracing.tracer import Tracer

_EXECUTOR_BYTES = 16 << 30
"""Of memory, for executing kernels on the CPU; never more than half of what there is."""

_DEVICE_SHARE = 0.5
"""Of the GPU's memory that one call's tensors may take: their master copies lie there too while they are timed."""


def open_triton_toolchain(
    gpu: str | None = None,
    *,
    on_device: bool = True,
    packages: str = "",
    namespaces: bool = True,
    told: Told = lambda line: None,
) -> TritonToolchain:
    """On a GPU, if this machine has one; else on its CPU, compiled for `gpu`.

    A GPU is held from the first execution to `close`, and no other process of this program uses it meanwhile.

    `gpu`: a name of `gpus.GPUS`, of which a device takes no notice: it says itself what it is. `on_device`: False: none
    is looked for. `packages`: a folder with Python packages (cuda-bindings, nvidia-ml-py) that the process which owns
    the GPU searches first. `told`: who is waited for while others use it.
    Raises ToolchainMissing.
    """
    if gpu is not None and gpu not in GPUS:
        raise ToolchainMissing(f"no GPU is named {gpu!r}: {', '.join(GPUS)}")
    version = triton_version()
    if not on_device:
        return TritonToolchain(GPUS[gpu or DEFAULT], version, namespaces=namespaces)
    executor = DeviceExecutor(packages, told)
    try:
        facts = executor.look()
    except ToolchainMissing as error:
        executor.close()
        if executor.there:  # not the one that is asked for, but there are some
            raise
        return TritonToolchain(GPUS[gpu or DEFAULT], version, why_no_device=str(error), namespaces=namespaces)
    try:
        found = gpu_of_device(
            facts["name"], facts["capability"], facts["multiprocessors"], facts["clock_mhz"], facts["memory_bytes"],
            facts["l2_bytes"],
        )  # fmt: skip
    except KeyError:
        executor.close()
        raise ToolchainMissing(
            f"{facts['name']} has compute capability {facts['capability'] / 10:g}, of which nothing is known here"
        ) from None
    return TritonToolchain(found, version, executor, namespaces=namespaces)


def triton_version() -> str:
    """As installed; it is imported by the process that compiles and by no other. Raises ToolchainMissing."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainMissing("Triton is not installed: pip install 'nki-optimizer[triton]'") from None


class TritonToolchain:
    """Satisfies `accelopt_core.toolchain.Toolchain`."""

    language: Language = TRITON
    simulated = False
    parallel_runs = 1

    def __init__(
        self,
        gpu: Gpu,
        version: str,
        executor: DeviceExecutor | None = None,
        *,
        why_no_device: str = "none is looked for",
        namespaces: bool = True,
    ) -> None:
        """`executor`: that has looked at its device; None: the CPU executes."""
        self.gpu = gpu
        self.machine = GpuModel(gpu)
        self.version = version
        self.why_no_device = "" if executor is not None else why_no_device
        self._device = executor
        self._executor = executor or CpuExecutor(min(_EXECUTOR_BYTES, _memory_bytes() // 2))
        self._scratch = ScratchFolder("nki-plugin-")
        folder = self._scratch.path
        memory = int(gpu.memory_bytes * _DEVICE_SHARE) if executor is not None else _memory_bytes() // 4
        self._tracer = Tracer(folder, _facts_of(gpu, version), memory, namespaces=namespaces)
        self._compiler = KernelCompiler(
            folder, gpu.capability.number, gpu.capability.shared_bytes_per_block, namespaces=namespaces
        )
        self._measured: dict[int, tuple[TritonArtifact, dict[str, Any], float]] = {}

    @property
    def name(self) -> str:
        if self._device is not None:
            return f"{self.gpu.label} (Triton {self.version}, driver {self._device.facts['driver']})"
        return f"Triton {self.version} for {self.gpu.label}, its IR executed on the CPU, not on a GPU"

    @cached_property
    def fingerprint(self) -> str:
        facts: dict[str, Any] = {"gpu": self.gpu.name, "triton": self.version, "numpy": np.__version__}
        if self._device is not None:
            facts.update(
                {name: self._device.facts[name] for name in ("name", "driver", "multiprocessors", "memory_bytes")}
            )
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for path in sorted(Path(__file__).parent.rglob("*.py")):
            digest.update(path.read_bytes())
        where = self.gpu.name if self._device is not None else f"cpu-for-{self.gpu.name}"
        return f"triton-{where}-{digest.hexdigest()[:12]}"

    @property
    def caveat(self) -> str:
        return self.gpu.caveat

    @property
    def on_device(self) -> bool:
        return self._device is not None

    @property
    def gpus(self) -> tuple[VisibleGpu, ...]:
        """All that CUDA shows here."""
        return self._device.there if self._device is not None else ()

    @property
    def unseen(self) -> tuple[str, ...]:
        """What a profile on this machine lacks and why, one line each, for people."""
        if self._device is None:
            return (f"no time, clocks or counters: {self.why_no_device}",)
        facts = self._device.facts
        return tuple(filter(None, (facts["clocks_unseen"], facts["counters_unseen"])))

    @property
    def installed(self) -> Installed:
        if self._device is None:
            return Installed(compiler=f"triton {self.version}")
        return Installed(f"driver {self._device.facts['driver']}", f"triton {self.version}", self.gpu.label)

    @property
    def isolation(self) -> str:
        return self._tracer.isolation

    def compile(
        self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
    ) -> TritonArtifact:
        """An autotuned kernel is launched with the first of its configurations whose blocks fit on the GPU."""
        deadline = time.monotonic() + timeout_s
        sources = [source, *(text for _, text in around.neighbours)]
        choices: dict[str, int] = {}
        while True:
            program = self.traced_program(source, arguments, _left(deadline, timeout_s), around, choices)
            try:
                kernels = self._compiler.compile(program, sources, _left(deadline, timeout_s))
            except OutOfSharedMemory as error:
                choices = _next_choice(program, error, choices)
                continue
            return artifact_of(program, kernels)

    def traced_program(
        self,
        source: str,
        arguments: Sequence[ArgumentSpec],
        timeout_s: float,
        around: Surroundings = ALONE,
        choices: Mapping[str, int] | None = None,
    ) -> LaunchProgram:
        """Its launches, before any kernel is compiled. `choices`: of autotuned kernels' configurations. Raises what
        `compile` does."""
        return self._tracer.trace(source, arguments, timeout_s, around, choices or {})

    def traced(
        self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
    ) -> None:
        """There is no second opinion."""

    def run(self, artifact: TritonArtifact, tensors: Sequence[np.ndarray], timeout_s: float) -> list[np.ndarray]:
        """As the protocol says; raises NotTimed for what only a GPU can execute, or in minutes."""
        return self._executor.run(artifact, tensors, timeout_s)

    def prove(
        self,
        artifact: TritonArtifact,
        tensors: Sequence[np.ndarray],
        seed: int,
        tolerance: float,
        original: object,
        kept: object,
        matters: object,
    ) -> tuple[Proof, ...]:
        """Nothing is proved of these kernels."""
        return ()

    def cores(self, artifact: TritonArtifact) -> int:
        return 1

    def memory_bytes(self, artifact: TritonArtifact) -> int:
        return 0 if self.on_device else artifact.program.allocated_bytes

    def instructions(self, artifact: TritonArtifact) -> int:
        """Of tiles: how many there are says little."""
        return 0

    def program_digest(self, artifact: TritonArtifact) -> str:
        """Of the launches, their options and the kernels' IR: all that Triton makes machine code of."""
        return artifact.digest

    def device_doubts(self, artifact: TritonArtifact) -> tuple[Finding, ...]:
        """Blocks of a launch run in any order on a device: what races is refused when it is executed."""
        return ()

    def rounded_integers(self, artifact: TritonArtifact) -> bool:
        return False

    def counts(self, artifact: TritonArtifact) -> bool:
        return False

    def estimate_us(self, artifact: TritonArtifact) -> None:
        return None

    def time(
        self, artifact: TritonArtifact, tensors: Sequence[np.ndarray], warmup: int, iterations: int, timeout_s: float
    ) -> Timing:
        """One sample per region of calls, each with a cold L2 (`execution/on_device/timing.py`). Raises NotTimed."""
        if self._device is None:
            raise NotTimed(f"timing needs an NVIDIA GPU ({self.why_no_device})")
        measured = self._device.time(artifact, tensors, warmup, iterations, timeout_s)
        samples = tuple(float(sample) for sample in measured["samples_us"])
        self._measured[id(artifact)] = (artifact, measured, statistics.median(samples))
        return Timing(samples)

    def facts(self, artifact: TritonArtifact) -> Facts:
        """Of its machine code, and of the execution that was timed last, if one was."""
        fields = static_fields(artifact, self.gpu)
        if id(artifact) in self._measured:
            _, measured, latency_us = self._measured[id(artifact)]
            fields.update(timed_fields(artifact, measured, latency_us))
        return Facts(fields=fields, hbm_bytes=artifact.io_bytes, low_precision=low_precision(artifact))

    def close(self) -> None:
        self._executor.close()
        if self._device is not None:
            self._device.give_back()
        self._scratch.close()


def _next_choice(program: LaunchProgram, error: OutOfSharedMemory, choices: dict[str, int]) -> dict[str, int]:
    """The next configuration of the kernel that does not fit. Raises the error where there is none."""
    for tunable in program.tunables:
        if tunable.function.name == error.function:
            following = choices.get(error.function, 0) + 1
            if following < len(tunable.configs):
                return {**choices, error.function: following}
    raise error


def _left(deadline: float, timeout_s: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise StepTimeout(Step.COMPILE, timeout_s)
    return left


def _facts_of(gpu: Gpu, version: str) -> GpuFacts:
    capability = gpu.capability
    return GpuFacts(
        gpu.label, divmod(capability.number, 10), gpu.multiprocessors, gpu.memory_bytes, gpu.l2_bytes,
        capability.shared_bytes_per_block, capability.shared_bytes_per_multiprocessor,
        capability.registers_per_multiprocessor, capability.threads_per_multiprocessor, version,
    )  # fmt: skip


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
