"""What the judge needs from a Neuron SDK, or from the simulator standing in for one.

A toolchain compiles a candidate once, in a process of the candidate's own, into an artifact that is
pure data (a NEFF, or a simulated program). The same artifact is then run on inputs the candidate's
code never saw, and timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Union

import numpy as np

from accelopt_core.evaluation import HotLine, Idle, Installed, Likely, Proof, Step
from accelopt_core.task import ALONE, Surroundings


class CandidateFault(Exception):
    """Something about the candidate; becomes an Evaluation."""


class CompileError(CandidateFault):
    """The kernel does not compile; `line` is in the candidate's source when the compiler says."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class RunError(CandidateFault):
    """The compiled kernel failed on the device (or on the simulator)."""


class StepTimeout(CandidateFault):
    def __init__(self, step: Step, limit_s: float) -> None:
        super().__init__(step, limit_s)
        self.step = step
        self.limit_s = limit_s

    def __str__(self) -> str:
        return f"{self.step.value} took more than {self.limit_s:g} s"


class ToolchainMissing(Exception):
    """This machine cannot compile or run kernels this way: the message says what was looked for and where."""


@dataclass(frozen=True)
class TensorArgument:
    shape: tuple[int, ...]
    dtype: str
    """An NKI dtype name, e.g. `float32`."""


Constant = Union[int, float, bool, str, None, "tuple[Constant, ...]"]


@dataclass(frozen=True)
class ConstantArgument:
    """A plain value of Python's given to the kernel at compile time."""

    value: Constant


@dataclass(frozen=True)
class DtypeArgument:
    """An element type given to the kernel at compile time, as `nki.language` calls it."""

    element_type: str


ArgumentSpec = Union[TensorArgument, ConstantArgument, DtypeArgument]


def constant(value: object) -> Constant:
    """Raises TypeError for what is none; a list, which is what JSON makes of a tuple, is one."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(constant, value))
    raise TypeError(type(value).__name__)


@dataclass(frozen=True)
class Timing:
    samples_us: tuple[float, ...]
    """One per measured execution; a simulator that is deterministic gives one."""


@dataclass(frozen=True)
class Facts:
    """What the profiler (or the machine model) says about one execution."""

    fields: Mapping[str, float]
    """Names and units of the Neuron profiler's summary-json; a simulator adds some of its own (nki_sim.profile)."""
    hot_lines: tuple[HotLine, ...] = ()
    idle: tuple[Idle, ...] = ()
    matmul_flops: int | None = None
    vector_ops: int | None = None
    hbm_bytes: int | None = None
    """Counted work of this kernel, for tasks that declare none."""
    resource_bound_us: float | None = None
    """No machine of this kind can run this instruction stream faster; None where unknown."""
    low_precision: tuple[str, ...] = ()
    """Dtypes below float32 that arithmetic instructions really read or wrote, e.g. `bfloat16`."""
    counted_flops: int | None = None
    """Of all matrix products that the device's profiler saw, transposes included; None where nothing is counted."""
    likely: Likely | None = None
    """Of a simulated latency how sure it is."""


@dataclass(frozen=True)
class Traced:
    """What the simulator counts in a source that a device runs; a second opinion on what was executed."""

    matmul_flops: int
    """Without transposes."""
    low_precision: tuple[str, ...]
    """As `Facts.low_precision`."""


class MachineModel(Protocol):
    """What the judge holds a kernel against: peak rates of one core of the machine that it was timed on.

    `nki_sim.machine.Machine` is one; each number has its source there.
    """

    @property
    def name(self) -> str:
        """E.g. `trn2`."""
        ...

    @property
    def matmul_fp32_flops_per_ns(self) -> float: ...

    @property
    def matmul_bf16_flops_per_ns(self) -> float: ...

    @property
    def tensor_double_row(self) -> bool:
        """fp8 products at twice the bf16 rate."""
        ...

    @property
    def tensor_fp32_transpose_passes(self) -> int: ...

    @property
    def vector_pool_ops_per_ns(self) -> float: ...

    @property
    def activation_table_load_ns(self) -> float: ...

    @property
    def dma_bytes_per_ns(self) -> float:
        """All DMA engines together."""
        ...

    @property
    def dma_plain_issue_ns(self) -> float:
        """Between two transfers of whole tiles that name no queue."""
        ...

    @property
    def dma_latency_ns(self) -> float:
        """From a transfer's issue to what it moved being usable, beside its bytes."""
        ...


@dataclass(frozen=True)
class Together:
    """Several cores of one machine, held against the work of all of them: their rates add up, and what each does by
    itself passes in a share of the time."""

    core: MachineModel
    cores: int

    @property
    def name(self) -> str:
        return f"{self.cores} cores of {self.core.name}"

    @property
    def matmul_fp32_flops_per_ns(self) -> float:
        return self.cores * self.core.matmul_fp32_flops_per_ns

    @property
    def matmul_bf16_flops_per_ns(self) -> float:
        return self.cores * self.core.matmul_bf16_flops_per_ns

    @property
    def tensor_double_row(self) -> bool:
        return self.core.tensor_double_row

    @property
    def tensor_fp32_transpose_passes(self) -> int:
        return self.core.tensor_fp32_transpose_passes

    @property
    def vector_pool_ops_per_ns(self) -> float:
        return self.cores * self.core.vector_pool_ops_per_ns

    @property
    def activation_table_load_ns(self) -> float:
        return self.core.activation_table_load_ns / self.cores

    @property
    def dma_bytes_per_ns(self) -> float:
        return self.cores * self.core.dma_bytes_per_ns

    @property
    def dma_latency_ns(self) -> float:
        return self.core.dma_latency_ns

    @property
    def dma_plain_issue_ns(self) -> float:
        return self.core.dma_plain_issue_ns / self.cores


class Toolchain(Protocol):
    @property
    def name(self) -> str:
        """For people, e.g. `simulated trn2 (nki_sim 0.1.0)` or `trn2 (NKI 0.6.0, neuron-explorer 2.32)`."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes whenever a latency could change: machine, toolchain and version."""
        ...

    @property
    def machine(self) -> MachineModel:
        """What it times on: bounds and plausibility follow from this machine's rates."""
        ...

    @property
    def simulated(self) -> bool:
        """Then the same artifact always takes the same time, and nothing is timed twice to be sure."""
        ...

    @property
    def caveat(self) -> str:
        """How far its latencies are calibrated, where they are not; empty for a device and for a calibrated model."""
        ...

    @property
    def installed(self) -> Installed: ...

    @property
    def isolation(self) -> str:
        """What kept the last candidate in while it was compiled, for people; empty before the first."""
        ...

    @property
    def parallel_runs(self) -> int:
        """How many runs may go on at once in forked processes; 1 for a device."""
        ...

    def compile(
        self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
    ) -> Any:
        """An artifact. Raises CompileError, StepTimeout, RunError (the compiler itself died) or ToolchainMissing."""
        ...

    def traced(
        self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
    ) -> Traced | None:
        """What the simulator makes of the source; None where this is the simulator, or it does not trace there."""
        ...

    def run(self, artifact: Any, tensors: Sequence[np.ndarray], timeout_s: float) -> list[np.ndarray]:
        """Outputs in the order the kernel returns them. Raises RunError or StepTimeout."""
        ...

    def prove(
        self,
        artifact: Any,
        tensors: Sequence[np.ndarray],
        seed: int,
        tolerance: float,
        original: Callable[[], Any] | None,
        kept: Callable[[Callable[[], tuple[np.ndarray, ...]]], tuple[np.ndarray, ...]],
        matters: Callable[[Sequence[np.ndarray]], bool],
    ) -> tuple[Proof, ...]:
        """What holds for all inputs with the shapes of `tensors`, whose integers are what they are. Empty for a device.

        `seed` is secret from candidates, `tolerance` relative to an output's size. `original` compiles the kernel that
        this one shall be equal to; `kept` returns what that came to with this seed, or computes and keeps it; `matters`
        says whether the task looks at any of these elements of the outputs (bool, shaped like them).
        """
        ...

    def cores(self, artifact: Any) -> int:
        """NeuronCores that it runs on at once (LNC)."""
        ...

    def memory_bytes(self, artifact: Any) -> int:
        """What one run of it holds in this machine's memory, besides its arguments; 0 where a device does."""
        ...

    def program_digest(self, artifact: Any) -> str:
        """The same for artifacts that compute the same bits in the same time, however their source is worded; empty
        for a device, whose compiler knows more than is recorded."""
        ...

    def counts(self, artifact: Any) -> bool:
        """Does its time depend on what runs of it do, so that they must not go on in processes of their own?

        A simulated kernel whose device loops run as often as a register says. The time is then that of the run
        which did most.
        """
        ...

    def estimate_us(self, artifact: Any) -> float | None:
        """A latency before any run, where the toolchain can tell; None where only a device can, or a run."""
        ...

    def time(
        self, artifact: Any, tensors: Sequence[np.ndarray], warmup: int, iterations: int, timeout_s: float
    ) -> Timing: ...

    def facts(self, artifact: Any) -> Facts:
        """About the execution `time` measured last for this artifact."""
        ...

    def close(self) -> None:
        """Delete what compile and run left on disk."""
        ...
