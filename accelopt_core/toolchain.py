"""What the judge needs from whatever compiles, runs and times kernels of one language.

A toolchain compiles a candidate once, in a process of the candidate's own, into an artifact that is
pure data (a NEFF, a simulated program, launches of compiled kernels). The same artifact is then run on inputs the
candidate's code never saw, and timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Union

from accelopt_core.evaluation import Bounds, Gap, HotLine, Idle, Installed, Likely, Proof, Step
from accelopt_core.language import Finding, Language
from accelopt_core.task import ALONE, PrecisionPolicy, Surroundings, Work

if TYPE_CHECKING:  # whoever asks for `--help` waits for no NumPy
    import numpy as np


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


class NotTimed(Exception):
    """Kernels can be checked with this toolchain but not timed, or not at such a shape; says what needs a device."""


class ToolchainMissing(Exception):
    """This machine cannot compile or run kernels this way: the message says what was looked for and where."""


@dataclass(frozen=True)
class TensorArgument:
    shape: tuple[int, ...]
    dtype: str
    """As NumPy and ml_dtypes call it, e.g. `float32`."""


Constant = Union[int, float, bool, str, None, "tuple[Constant, ...]"]


@dataclass(frozen=True)
class ConstantArgument:
    """A plain value of Python's given to the kernel at compile time."""

    value: Constant


@dataclass(frozen=True)
class DtypeArgument:
    """An element type given to the kernel at compile time, as NumPy and ml_dtypes call it."""

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
    """Names and units of the profiler's summary; a simulator adds some of its own."""
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
    contested: tuple[str, ...] = ()
    """As `Measured.contested`."""


@dataclass(frozen=True)
class Traced:
    """What the simulator counts in a source that a device runs; a second opinion on what was executed."""

    matmul_flops: int
    """Without transposes."""
    low_precision: tuple[str, ...]
    """As `Facts.low_precision`."""
    contested: tuple[str, ...] = ()
    """As `Measured.contested`."""


@dataclass(frozen=True)
class Calibration:
    """Constants of a machine's model, measured by its user. A value: it travels with a job as JSON, and nobody but the
    language whose machine it is looks inside."""

    machine: str
    """As `TargetInfo.machine`."""
    on: str
    """When and where, e.g. `2026-11-03 on trn2.3xlarge`; no name of a host."""
    line: str
    """How far to trust a latency. One line, at most 110 characters."""
    constants: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        if not self.line.startswith("calibrated: ") or "\n" in self.line or len(self.line) > _LONGEST_LINE:
            raise ValueError(f"a calibration's line is `calibrated: ...`, at most {_LONGEST_LINE} long: {self.line!r}")

    @property
    def label(self) -> str:
        """Beside the name of what simulates."""
        return f"calibrated on {self.on}"


_LONGEST_LINE = 110


class MachineModel(Protocol):
    """What the judge holds a kernel against: one core of the machine that it was timed on, or several together."""

    @property
    def name(self) -> str:
        """E.g. `trn2`, or `2 cores of trn2`."""
        ...

    @property
    def memory_bytes_per_ns(self) -> float:
        """The most that can be moved to and from the chip's memory (GB/s)."""
        ...

    @property
    def fastest_flops_per_ns(self) -> float:
        """Of matrix products, in whatever type those are fastest in that results may be judged in (GFLOP/s)."""
        ...

    def matmul_flops_per_ns(self, precision: PrecisionPolicy) -> float:
        """Of matrix products, at the fastest rate that the policy permits (GFLOP/s)."""
        ...

    def bounds(self, work: Work, precision: PrecisionPolicy, declared: bool = True) -> Bounds:
        """Each kind of work at its own peak rate. `declared`: by the task, else counted."""
        ...

    def gaps(self, facts: Facts, bounds: Bounds, latency_us: float) -> tuple[Gap, ...]:
        """What could be gained, largest first; empty where nothing can be priced soundly."""
        ...

    def of_cores(self, cores: int) -> MachineModel:
        """So many of this one core together, held against the work of all of them."""
        ...


class Toolchain(Protocol):
    @property
    def language(self) -> Language:
        """What its kernels are written in."""
        ...

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
        """How many runs may go on at once, in forked processes; 0: one after the other in this one, as on a device."""
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
        """How many it runs on at once (`Language.core`)."""
        ...

    def memory_bytes(self, artifact: Any) -> int:
        """What one run of it holds in this machine's memory, besides its arguments; 0 where a device does."""
        ...

    def instructions(self, artifact: Any) -> int:
        """That one run of it executes on this machine, one after the other; 0 where that is no measure of its work."""
        ...

    def program_digest(self, artifact: Any) -> str:
        """The same for artifacts that compute the same bits in the same time, however their source is worded; empty
        for a device, whose compiler knows more than is recorded."""
        ...

    def device_doubts(self, artifact: Any) -> tuple[Finding, ...]:
        """What is right where it runs here and may be wrong on a device, with the remedy. Empty where a device runs it:
        its own outputs are verified."""
        ...

    def rounded_integers(self, artifact: Any) -> bool:
        """Did the last execution of it in this process convert an integer beyond 2^24 to float32, which does not hold
        all of those? False where that cannot be seen."""
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
    ) -> Timing:
        """Raises NotTimed where there is no device, RunError and StepTimeout."""
        ...

    def facts(self, artifact: Any) -> Facts:
        """About the execution `time` measured last for this artifact."""
        ...

    def close(self) -> None:
        """Delete what compile and run left on disk."""
        ...
