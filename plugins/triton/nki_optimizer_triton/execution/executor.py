"""Launch programs handed to the process that carries them out, here or on a GPU; what it answers, as verdicts."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accelopt_core.evaluation import Step
from accelopt_core.toolchain import NotTimed, RunError, StepTimeout, ToolchainMissing
from infra.devices.leases import Told
from infra.isolation.sandbox import ONE_THREAD
from nki_optimizer_triton.artifact import TritonArtifact
from nki_optimizer_triton.execution import on_cpu, on_device
from nki_optimizer_triton.execution.on_device.calls import OF_THE_KERNEL
from nki_optimizer_triton.execution.process import WorkerDied, WorkerLate, WorkerProcess
from nki_optimizer_triton.execution.verified import Executed, bits_of, bytes_of, digest_of, verified
from nki_optimizer_triton.gpu_share import PACKAGES_VARIABLE, RUNTIME_VARIABLES, GpuShare, VisibleGpu
from nki_optimizer_triton.ir.executing import MOST_OPERATIONS, MOST_WORK

MOST_LOADED = 16
"""Programs that a process keeps; the one used longest ago makes room for the next."""


class Executor:
    """One process at a time, with the programs that it was given."""

    on_device: bool

    def __init__(self, worker: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._worker = worker
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._process: WorkerProcess | None = None
        self._loaded: dict[int, int] = {}
        """id of an artifact -> number of its program, the one used longest ago first."""
        self._kept: dict[int, TritonArtifact] = {}
        self._count = 0
        self._verified: dict[tuple[int, str], list[str]] = {}
        """Digests of the outputs that `run` handed out, by artifact and inputs."""

    def close(self) -> None:
        process, self._process = self._process, None
        self._loaded.clear()
        self._kept.clear()
        if process is not None:
            process.close()

    def run(self, artifact: TritonArtifact, tensors: Sequence[np.ndarray], timeout_s: float) -> list[np.ndarray]:
        """Outputs. Raises RunError, StepTimeout, NotTimed, ToolchainMissing."""
        deadline = time.monotonic() + timeout_s
        inputs = self._inputs(artifact, tensors)
        number = self._load(artifact, deadline, timeout_s)
        first = True

        def execute(pattern: int, last_first: bool) -> Executed:
            nonlocal first
            request = {
                "do": "run", "program": number, "pattern": pattern, "last_first": last_first, "races": first,
                "inputs": first, "most_work": MOST_WORK, "most_operations": MOST_OPERATIONS,
            }  # fmt: skip
            answer, blobs = self._ask(request, inputs if first else [], deadline, timeout_s, Step.RUN)
            first = False
            outputs = {n: np.frombuffer(blob, np.uint8) for n, blob in zip(artifact.plan["outputs"], blobs)}
            return Executed(outputs, tuple(answer["changed"]), tuple(answer["outside"]))

        outputs, bits = verified(
            artifact.program, execute, artifact.adds_floats_atomically, order_is_ours=not self.on_device
        )
        self._verified[id(artifact), digest_of(inputs)] = bits
        return outputs

    def _inputs(self, artifact: TritonArtifact, tensors: Sequence[np.ndarray]) -> list[memoryview]:
        program = artifact.program
        given = [(tuple(t.shape), t.dtype.name) for t in tensors]
        expected = [(shape, buffer.dtype) for shape, buffer in zip(program.argument_shapes, program.buffers)]
        if given != expected:
            raise RunError(f"a function traced for {expected} is given {given}")
        return bytes_of(tensors)

    def _load(self, artifact: TritonArtifact, deadline: float, timeout_s: float) -> int:
        if self._process is None:
            self._loaded.clear()
        if id(artifact) in self._loaded:
            self._loaded[id(artifact)] = self._loaded.pop(id(artifact))
            return self._loaded[id(artifact)]
        if len(self._loaded) >= MOST_LOADED:
            oldest = next(iter(self._loaded))
            self._ask({"do": "unload", "program": self._loaded.pop(oldest)}, [], deadline, timeout_s, Step.RUN)
            del self._kept[oldest]
        self._count += 1
        request = {"do": "load", "program": self._count, "plan": artifact.plan, "file": "kernels_0.py"}
        self._ask(request, self._code(artifact), deadline, timeout_s, Step.RUN)
        self._loaded[id(artifact)] = self._count
        self._kept[id(artifact)] = artifact  # so that no other takes its id
        return self._count

    def _code(self, artifact: TritonArtifact) -> list[bytes]:
        raise NotImplementedError

    def _started(self, deadline: float) -> WorkerProcess:
        return WorkerProcess(self._worker, self._arguments, self._environment)

    def _ask(
        self, request: Mapping[str, Any], blobs: Sequence[Any], deadline: float, timeout_s: float, step: Step
    ) -> tuple[dict[str, Any], list[bytearray]]:
        if self._process is None:
            self._process = self._started(deadline)
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise WorkerLate("no time is left")
            answer, found = self._process.ask(request, blobs, left)
        except WorkerLate:
            self.close()
            raise StepTimeout(step, timeout_s) from None
        except WorkerDied as error:
            self.close()
            raise RunError(f"the process that executed the kernels died ({error})") from None
        if "error" in answer:
            raise self._fault(answer, timeout_s, step)
        return answer, found

    def _fault(self, answer: Mapping[str, Any], timeout_s: float, step: Step) -> Exception:
        kind = answer["error"]
        if kind == "fault":
            line = answer.get("line")
            return RunError(str(answer["message"]) + ("" if line is None else f" (line {line})"))
        if kind == "not here":
            return NotTimed(str(answer["message"]))
        if kind == "memory":
            return RunError(f"executing the kernels needs {answer['message']}")
        if kind == "late":
            return StepTimeout(step, timeout_s)
        if kind == "missing":
            return ToolchainMissing(f"no GPU can be used: {str(answer['message'])[:300]}")
        return self._cuda_fault(answer)

    def _cuda_fault(self, answer: Mapping[str, Any]) -> Exception:
        self.close()  # what it allocated is gone with it
        name, where = str(answer["name"]), str(answer["call"])
        if name in OF_THE_KERNEL:
            return RunError(f"kernel {answer['kernel']} on the GPU: {OF_THE_KERNEL[name]} ({name})")
        if name == "CUDA_ERROR_OUT_OF_MEMORY":
            return RunError("its tensors need more memory than the GPU has left (CUDA_ERROR_OUT_OF_MEMORY)")
        return ToolchainMissing(f"{where} fails with {name}; look at nvidia-smi, and run `orchestrator.py doctor`")


class CpuExecutor(Executor):
    on_device = False

    def __init__(self, memory_bytes: int) -> None:
        super().__init__(on_cpu.WORKER, [str(memory_bytes)], ONE_THREAD)

    def _code(self, artifact: TritonArtifact) -> list[bytes]:
        return [kernel.ttir.encode() for kernel in artifact.distinct]


class DeviceExecutor(Executor):
    on_device = True

    def __init__(self, packages: str = "", told: Told = lambda line: None) -> None:
        """`packages`: a folder with Python packages, searched first; without it, the environment's. `told`: who is
        waited for."""
        chosen = {name: os.environ[name] for name in RUNTIME_VARIABLES if name in os.environ}
        packages = packages or os.environ.get(PACKAGES_VARIABLE, "")
        super().__init__(on_device.WORKER, [packages] if packages else [], chosen)
        self._told = told
        self._looked: WorkerProcess | None = None
        self._share: GpuShare | None = None
        self.there: tuple[VisibleGpu, ...] = ()
        """All that CUDA shows, once it was looked."""
        self.facts: Mapping[str, Any] = {}
        """What the driver says of the one that is, or will be, used; if it may be one of several, they are alike."""

    def look(self, timeout_s: float = 60.0) -> Mapping[str, Any]:
        """The facts. No GPU is taken yet, and nothing allocated on any.

        Raises ToolchainMissing where there is none that can be used, no driver, or no Python bindings of it.
        """
        if self._share is None:
            process = super()._started(time.monotonic() + timeout_s)
            found = self._asked(process, {"do": "look"}, timeout_s)["gpus"]
            self._looked = process
            self.there = tuple(VisibleGpu(number, facts) for number, facts in enumerate(found))
            self._share = GpuShare(self.there, told=self._told)
            self.facts = self._share.gpus[0].facts
        return self.facts

    def run(self, artifact: TritonArtifact, tensors: Sequence[np.ndarray], timeout_s: float) -> list[np.ndarray]:
        self._take()
        return super().run(artifact, tensors, timeout_s)

    def close(self) -> None:
        super().close()
        if self._looked is not None:
            self._looked.close()
            self._looked = None

    def give_back(self) -> None:
        """The GPU, for good."""
        self.close()
        if self._share is not None:
            self._share.close()

    def _take(self) -> VisibleGpu:
        """Before any deadline is set: others may have it for long. Raises LeaseUnavailable."""
        self.look()
        assert self._share is not None
        return self._share.take()

    def _started(self, deadline: float) -> WorkerProcess:
        process, self._looked = self._looked or super()._started(deadline), None
        self._asked(process, {"do": "open", "device": self._take().number}, deadline - time.monotonic())
        return process

    def _asked(self, process: WorkerProcess, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Of a process that has no device yet. Raises ToolchainMissing, and then it is gone."""
        try:
            answer, _ = process.ask(request, [], timeout_s)
        except (WorkerLate, WorkerDied) as error:
            process.close()
            raise ToolchainMissing(f"the GPU does not answer: {error}") from None
        if "error" in answer:
            process.close()
            said = answer.get("message") or f"{answer.get('call')} fails with {answer.get('name')}"
            raise ToolchainMissing(f"no GPU can be used: {str(said)[:300]}")
        return answer

    def _code(self, artifact: TritonArtifact) -> list[bytes]:
        return [kernel.cubin for kernel in artifact.distinct]

    def time(
        self, artifact: TritonArtifact, tensors: Sequence[np.ndarray], warmup: int, iterations: int, timeout_s: float
    ) -> dict[str, Any]:
        """What was measured. Raises RunError where a timed call computed something else than was verified."""
        self._take()
        deadline = time.monotonic() + timeout_s
        inputs = self._inputs(artifact, tensors)
        number = self._load(artifact, deadline, timeout_s)
        request = {
            "do": "time", "program": number, "inputs": True, "warmup": warmup, "iterations": iterations,
            "limit_s": deadline - time.monotonic(),
        }  # fmt: skip
        measured, blobs = self._ask(request, inputs, deadline, timeout_s, Step.BENCHMARK)
        assert self._share is not None
        self._share.check()
        self._check_timed(artifact, inputs, blobs)
        return measured

    def _check_timed(self, artifact: TritonArtifact, inputs: Sequence[memoryview], blobs: Sequence[bytearray]) -> None:
        """Of the first and the last call: the outputs of timed executions are those that were verified."""
        known = self._verified.get((id(artifact), digest_of(inputs)))
        if known is None or artifact.adds_floats_atomically:
            return
        numbers = artifact.plan["outputs"]
        for start in range(0, len(blobs), len(numbers)):
            outputs = {
                n: np.frombuffer(blob, np.uint8) for n, blob in zip(numbers, blobs[start : start + len(numbers)])
            }
            executed = Executed(outputs, (), ())
            found = [digest_of([bits_of(executed, output)]) for output in artifact.program.outputs]
            if found != known:
                raise RunError("a timed execution computed other outputs than the verified one on the same inputs")
