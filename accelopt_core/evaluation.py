"""What became of a candidate: exactly one of eight outcomes, and only one of them has a latency."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol, Union


class Step(str, Enum):
    """What a run is at. The first nine are the steps of a round, in order; the others are parts of judging a kernel."""

    PROFILE = "profile"
    PLAN = "plan"
    EXECUTE = "execute"
    UPLOAD = "upload"
    VERIFY = "compile and verify"
    BENCHMARK = "benchmark"
    DECIDE = "decide"
    SUMMARIZE = "summarize"
    REFLECT = "reflect"

    COMPILE = "compile"
    RUN = "run"
    READ_PROFILE = "read the profile"
    EXAMINE = "examine the machine"


ROUND_STEPS = tuple(Step)[:9]
"""The nine steps of a round, in order."""


class Bottleneck(str, Enum):
    """What limits a kernel; the same words for what a plan attacks."""

    COMPUTE_BOUND = "compute-bound"
    MEMORY_BOUND = "memory-bound"
    UNDERUTILIZED = "underutilized"


@dataclass(frozen=True)
class Bounds:
    """How fast the machine could possibly do the useful work; all in microseconds."""

    matmul_us: float
    vector_us: float
    memory_us: float
    source: Literal["declared", "trace"]
    """`declared`: from the task's Work; `trace`: from what the input kernel itself computes and moves."""

    @property
    def peak_us(self) -> float:
        """NKIBench's t_peak, the slowest of the three: a yardstick, since fused operators can go below `vector_us`."""
        return max(self.matmul_us, self.vector_us, self.memory_us)

    @property
    def floor_us(self) -> float:
        """What no kernel can beat: products and traffic. Elementwise operators can share an instruction."""
        return max(self.matmul_us, self.memory_us)

    @property
    def limiter(self) -> str:
        return max(
            (("matmul", self.matmul_us), ("vector", self.vector_us), ("memory", self.memory_us)),
            key=lambda pair: pair[1],
        )[0]

    def percent_of_peak(self, latency_us: float) -> float:
        return 100.0 * self.peak_us / latency_us


@dataclass(frozen=True)
class HotLine:
    """Time that one source line keeps its busiest engine occupied."""

    line: int
    engine: str
    active_us: float
    instructions: int
    text: str = ""


@dataclass(frozen=True)
class Idle:
    """One stretch in which the compute engine that works most stood still."""

    engine: str
    begin_us: float
    end_us: float
    line: int
    """Of the instruction that ended it."""
    waiting_on: str
    """An engine, what moves data, or `order` where its own queue held it."""
    waiting_on_line: int
    """Of what it waited for; 0 where its own queue held it."""


@dataclass(frozen=True)
class Gap:
    """A distance between what happened and what is possible, priced, with the class of remedy."""

    name: str
    cost_us: float
    remedy: str
    evidence: str


BUSY = 0.6
"""Share of the time above which an engine, or what moves data, counts as what limits the kernel."""

MOVERS = ("dma", "dram")
"""What moves data to and from the chip, as profiles call it."""

_ENGINE_FIELD = "_engine_active_time"
_NO_WORK = ("sync",)
"""Engines that only issue and wait."""


def busy_fields(fields: Mapping[str, float]) -> dict[str, str]:
    """By engine, and by what moves data, the field that says how long it was busy, in seconds."""
    engines = [name.removesuffix(_ENGINE_FIELD) for name in fields if name.endswith(_ENGINE_FIELD)]
    found = {engine: engine + _ENGINE_FIELD for engine in engines if engine not in _NO_WORK}
    return found | {mover: f"{mover}_active_time" for mover in MOVERS if f"{mover}_active_time" in fields}


def busy_shares(fields: Mapping[str, float]) -> dict[str, float]:
    """Fraction of the time that each engine, and what moves data, is busy, as far as the profiler says."""
    total_s = fields.get("total_time", 0.0)
    if not total_s > 0:
        return {}
    return {engine: fields[name] / total_s for engine, name in busy_fields(fields).items()}


def bound_by(fields: Mapping[str, float]) -> str:
    """The engine, or one of MOVERS, that limits a kernel of these fields; empty where none is busy enough."""
    name, share = max(busy_shares(fields).items(), key=lambda item: item[1], default=("", 0.0))
    return name if share >= BUSY else ""


@dataclass(frozen=True)
class Predicted:
    """What the simulated machine says of a kernel at the task's full shape, before a device times it."""

    latency_us: float
    bound_by: str
    """As the function of that name."""
    contested: tuple[str, ...] = ()
    """As `Measured.contested`."""


@dataclass(frozen=True)
class Profile:
    """Named fields of the profiler's summary, in its units: seconds, bytes, fractions."""

    fields: Mapping[str, float]
    bounds: Bounds
    hot_lines: tuple[HotLine, ...] = ()
    gaps: tuple[Gap, ...] = ()
    idle: tuple[Idle, ...] = ()
    """The longest stretches, in the order of time; empty where the profiler does not tell."""

    @property
    def busy_shares(self) -> dict[str, float]:
        """As the function of that name."""
        return busy_shares(self.fields)

    def bottleneck(self, latency_us: float) -> Bottleneck:
        """What limits the kernel, from its busiest engine, or from its bounds where the profiler is silent."""
        if self.busy_shares:
            name = bound_by(self.fields)
            if not name:
                return Bottleneck.UNDERUTILIZED
            return Bottleneck.MEMORY_BOUND if name in MOVERS else Bottleneck.COMPUTE_BOUND
        if self.bounds.peak_us < BUSY * latency_us:
            return Bottleneck.UNDERUTILIZED
        return Bottleneck.MEMORY_BOUND if self.bounds.limiter == "memory" else Bottleneck.COMPUTE_BOUND


@dataclass(frozen=True)
class CheckFailure:
    """The first check that an output did not pass."""

    seed: int
    preset: str
    output: int
    """Which output of the kernel, counted from 0."""
    reason: str
    rel_l2: float | None = None
    tolerance: float | None = None
    worst_index: tuple[int, ...] | None = None
    expected: float | None = None
    got: float | None = None
    distribution: str = "reference"
    """Which input distribution; `reference` is the reference module's own get_inputs."""
    limit: str = ""
    """Which limit it was held to, where that is from, and which TOLERANCE would accept it."""

    def describe(self) -> str:
        parts = [
            f"{self.reason} (seed {self.seed}, shape {self.preset}, inputs {self.distribution}, output {self.output})"
        ]
        if self.rel_l2 is not None and self.tolerance is not None:
            parts.append(f"relative L2 {self.rel_l2:.3g}, over its limit of {self.tolerance:.3g}")
        if self.worst_index is not None:
            parts.append(f"worst at {list(self.worst_index)}: expected {self.expected:.6g}, got {self.got:.6g}")
        if self.limit:
            parts.append(self.limit)
        return "; ".join(parts)


@dataclass(frozen=True)
class Furthest:
    """What single elements are off at most, on the reference's own inputs at the shape that is timed."""

    absolute: float
    relative: float
    """Of the reference's value and 1e-8."""


@dataclass(frozen=True)
class CompileFailed:
    message: str
    line: int | None = None
    kind: Literal["compile_failed"] = "compile_failed"


@dataclass(frozen=True)
class Incorrect:
    failure: CheckFailure
    programs: tuple[str, ...] = ()
    """As `Measured.programs`."""
    kind: Literal["incorrect"] = "incorrect"


@dataclass(frozen=True)
class Implausible:
    """Faster than the machine can be, or not doing the work; the arithmetic says which."""

    message: str
    latency_us: float | None = None
    programs: tuple[str, ...] = ()
    """As `Measured.programs`."""
    kind: Literal["implausible"] = "implausible"


@dataclass(frozen=True)
class TimedOut:
    step: Step
    limit_s: float
    kind: Literal["timed_out"] = "timed_out"


@dataclass(frozen=True)
class Crashed:
    step: Step
    message: str
    line: int | None = None
    kind: Literal["crashed"] = "crashed"


@dataclass(frozen=True)
class Duplicate:
    """The program of an earlier kernel in other words: it would compute the same bits in the same time."""

    of: str
    """Id of the earlier candidate."""
    came_to: str
    """What that came to, in one line."""
    kind: Literal["duplicate"] = "duplicate"


@dataclass(frozen=True)
class IncumbentTiming:
    """The kernel to beat, timed by the same judge and, on a device, in turns with the candidate."""

    content_hash: str
    """`Candidate.content_hash` of the incumbent: which kernel this is a latency of."""
    latency_us: float
    noise: float
    """Fraction of `latency_us` by which the candidate must be faster to count; 0 where timing is exact."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency_us) and self.latency_us > 0):
            raise ValueError(f"an incumbent's latency must be a positive number of µs, not {self.latency_us}")
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise ValueError(f"a noise band must be a fraction >= 0, not {self.noise}")


@dataclass(frozen=True)
class Installed:
    """What code is made with, and where it runs: what a calibration of a device is kept by. Empty for the simulator."""

    sdk: str = ""
    """Release of the Neuron SDK, e.g. `2.32`."""
    compiler: str = ""
    """E.g. `neuronx-cc 2.27.1`."""
    instance: str = ""
    """Type of the instance, e.g. `trn2.3xlarge`."""


@dataclass(frozen=True)
class Likely:
    """Where a device's latency would lie, of a kernel that was simulated (`nki_sim.timing.intervals`)."""

    low_us: float
    high_us: float
    level: float
    """In which share of the cases; 0 where the range is a choice, since nothing was measured."""
    rests_on: tuple[str, ...]
    """One line each, e.g. `13 % of this time is a guess that no measurement checks: GpSimd tensor_tensor`."""

    @property
    def sure(self) -> str:
        """`a range that held 80 % of 21 measured kernels of less than 100 us, of 3 families`."""
        said = "; ".join(self.rests_on)
        return f"a range that held {100 * self.level:.0f} % of {said}" if self.level else said


class Finding(str, Enum):
    """What a proof came to."""

    HELD = "held"
    REFUTED = "refuted"
    NOT_PROVABLE = "not provable"


class Property(str, Enum):
    """What is proved of a kernel beside testing it, for all inputs of one shape."""

    COVERAGE = "coverage"
    """Every output element is written, and none depends on memory that nothing wrote or on which core is first."""
    EQUIVALENCE = "equivalence"
    """It computes the formulas of the task's input kernel, up to reassociation."""
    ERROR_BOUND = "error bound"
    """Types narrower than float32 take no output further off than the task's tolerance, on inputs of its sizes."""


@dataclass(frozen=True)
class Proof:
    """One property of a kernel. Of the program as it was traced, so it never replaces a test of what runs."""

    property: Property
    finding: Finding
    reason: str
    """One line."""
    shape: str = ""
    """At which it was made, e.g. `M256 N512`; empty where it holds at any."""


def is_proved_equal(proofs: Sequence[Proof]) -> bool:
    """To the input kernel, by the formulas of its outputs; and every element of them is written."""
    held = {proof.property for proof in proofs if proof.finding is Finding.HELD}
    return {Property.COVERAGE, Property.EQUIVALENCE} <= held


@dataclass(frozen=True)
class Measured:
    """A right answer with a latency. Simulated latencies say so, always."""

    latency_us: float
    min_us: float
    max_us: float
    samples: int
    simulated: bool
    machine: str
    """For people: what it ran on and with which toolchain, e.g. `simulated trn2 (nki_sim 0.1)`."""
    profile: Profile
    checks: tuple[str, ...] = ()
    """What was verified, one short line per tier."""
    verified_full: bool = True
    """False when nothing was executed at the full shape: it was slower than the best, or that waits for the winner's
    last check, since a change of our own catalogue was proved equal at the first shape."""
    worst_rel_l2: float = 0.0
    incumbent: IncumbentTiming | None = None
    """The request's incumbent as timed beside this kernel; None where none was asked for or its time is exact."""
    caveat: str = ""
    """What must be said wherever the latency is shown: that its machine's model is not calibrated."""
    cores: int = 1
    """NeuronCores that it ran on at once (LNC)."""
    likely: Likely | None = None
    """Of a simulated latency how sure it is; None of one that a device took, and of those of older versions."""
    proofs: tuple[Proof, ...] = ()
    """At the first shape; none where only a device could tell what runs. Equivalence only of a proposed kernel."""
    shared_faults: tuple[str, ...] = ()
    """What this kernel and the task's input kernel both fail, one line each: left out of the winner's last check."""
    programs: tuple[str, ...] = ()
    """Digests of what it was compiled to, at the task's shapes in their order, as far as it was; the same for kernels
    that differ in words only. None where only a device knows what runs."""
    furthest: Furthest | None = None
    """None but for tasks that have a suite's own rule for elements (`Task.within`)."""
    contested: tuple[str, ...] = ()
    """Facts of the machine, in words, that its time rests on and that are contested: the vendor's documentation
    contradicts itself, or a compiler crashed on it. Of a latency that a device took, by simulation."""
    identical_draws: int = 0
    """On how many draws every bit of its outputs was the input kernel's; 0 where the task does not ask for that."""
    output_types: tuple[str, ...] = ()
    """Of its outputs, as NumPy calls them; empty where nothing was executed, and of evaluations of older versions."""
    arithmetic: str = ""
    """`bfloat16 in, float32 arithmetic, bfloat16 out`; empty where all that is float32."""
    kind: Literal["measured"] = "measured"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency_us) and self.latency_us > 0):
            raise ValueError(f"a measured latency must be a positive number of µs, not {self.latency_us}")
        if not 0 < self.min_us <= self.latency_us <= self.max_us or not math.isfinite(self.max_us):
            raise ValueError(
                f"latencies out of order: min {self.min_us}, median {self.latency_us}, max {self.max_us} µs"
            )
        if self.samples < 1:
            raise ValueError("a measurement needs at least one sample")

    @property
    def bottleneck(self) -> Bottleneck:
        return self.profile.bottleneck(self.latency_us)

    @property
    def rests_on(self) -> str:
        """What the verdict `right` rests on, the most first: `proved equal to the input kernel up to reassociation (at
        M256), and tested`. What a proof of equality contains is not said beside it."""
        equal = self.is_proved_equal
        found = [proof for proof in self.proofs if not (equal and proof.property is Property.COVERAGE)]
        proved = sorted(found, key=lambda proof: proof.property is not Property.EQUIVALENCE)
        said = [_PROVED.get((proof.property, proof.finding), "") for proof in proved]
        shapes = dict.fromkeys(proof.shape for proof in proved if proof.shape and proof.finding is Finding.HELD)
        proofs = "; ".join(filter(None, said)) + (f" (at {', '.join(shapes)})" if shapes else "")
        exact = f"bit-identical to the input kernel on {self.identical_draws} draws" if self.identical_draws else ""
        tested = "; ".join(filter(None, ["tested", self.arithmetic, exact]))
        return f"{proofs}, and {tested}" if equal and said else "; ".join(filter(None, [tested, proofs]))

    @property
    def is_proved_equal(self) -> bool:
        return is_proved_equal(self.proofs)

    @property
    def refuted(self) -> Proof | None:
        """What a proof says against this kernel, although it passed its tests."""
        return next((proof for proof in self.proofs if proof.finding is Finding.REFUTED), None)

    def contested_beside(self, baseline: Measured) -> tuple[str, ...]:
        """Contested facts that this kernel rests on and the run's input kernel does not."""
        return tuple(what for what in self.contested if what not in baseline.contested)

    @property
    def label(self) -> str:
        """What stands before the latency: nothing for one that was measured on a device."""
        return latency_label(self.simulated, self.caveat)

    @property
    def spread(self) -> float:
        """(max - min) / min over the samples, as NKIBench defines it."""
        return (self.max_us - self.min_us) / self.min_us

    @property
    def percent_of_peak(self) -> float:
        return self.profile.bounds.percent_of_peak(self.latency_us)


@dataclass(frozen=True)
class CompilersOwn:
    """What the SDK's compiler makes of a task's reference by itself, timed as kernels are: no kernel is in it."""

    latency_us: float | None
    """Median of the timed executions; None where there is none, and `said` is why."""
    said: str
    """By what it was compiled, and how far its outputs are from the reference's; one line."""


NEEDS_A_DEVICE = CompilersOwn(None, "needs a device")


_PROVED = {
    (Property.COVERAGE, Finding.HELD): "every output element proved written",
    (Property.COVERAGE, Finding.REFUTED): "NOT every output element is written",
    (Property.COVERAGE, Finding.NOT_PROVABLE): "whether every output element is written is not provable",
    (Property.ERROR_BOUND, Finding.HELD): "narrow types bounded within the tolerance",
    (Property.ERROR_BOUND, Finding.REFUTED): "narrow types NOT within the tolerance",
    (Property.EQUIVALENCE, Finding.HELD): "proved equal to the input kernel up to reassociation",
    (Property.EQUIVALENCE, Finding.REFUTED): "NOT the input kernel's formula",
    (Property.EQUIVALENCE, Finding.NOT_PROVABLE): "equality with the input kernel is not provable",
}


@dataclass(frozen=True)
class Untimed:
    """Right as far as it can be checked here, where there is no device of its kind to time it on."""

    said: str
    """By what it was checked, and what it needs to be timed; one line."""
    checks: tuple[str, ...]
    """As `Measured.checks`."""
    worst_rel_l2: float
    kind: Literal["untimed"] = "untimed"


Evaluation = Union[CompileFailed, Incorrect, Implausible, TimedOut, Crashed, Duplicate, Untimed, Measured]


def explain(evaluation: Evaluation) -> str:
    """One line: what the executor, the log and the user are told."""
    match evaluation:
        case CompileFailed(message=message, line=line):
            return f"does not compile{_at(line)}: {message}"
        case Incorrect(failure=failure):
            return f"wrong: {failure.describe()}"
        case Implausible(message=message):
            return f"implausible: {message}"
        case TimedOut(step=step, limit_s=limit):
            return f"timed out while it was to {step.value} (limit {limit:g} s)"
        case Crashed(step=step, message=message, line=line):
            return f"crashed while it was to {step.value}{_at(line)}: {message}"
        case Duplicate(of=of, came_to=came_to):
            return (
                f"the same program as {of}, which came to: {came_to}; it differs in words only, so it was not tried "
                "again: change what the machine executes"
            )
        case Untimed(said=said):
            return f"right, but not timed: {said}"
        case Measured() as measured:
            bounds = measured.profile.bounds
            of = "the bound" if bounds.source != "trace" else "the speed that its own work allows"
            return f"{measured.label}{timed(measured)}, {measured.percent_of_peak:.1f} % of {of}"


_INPUTS = re.compile(r"\binputs ([\w-]+)[,)]")
_FIRST_FAULT = 240
"""Characters of the first of several."""


def faulty_inputs(faults: Sequence[str]) -> list[str]:
    """The input distributions that they are of."""
    return sorted({kind for line in faults for kind in _INPUTS.findall(line)})


def own_faults(faults: Sequence[str]) -> str:
    """One line of what an input kernel fails itself (`Measured.shared_faults`), which no candidate is held to."""
    kinds = faulty_inputs(faults)
    on = f" on inputs {', '.join(kinds)}" if kinds else ""
    means = " (large means: E[x^2] - E[x]^2 loses their digits)" if any("offset" in kind for kind in kinds) else ""
    first = faults[0] if len(faults[0]) <= _FIRST_FAULT else f"{faults[0][:_FIRST_FAULT]}..."
    return f"the input kernel itself is wrong{on}{means}, and the winner may be as far off there: {first}"


class Timed(Protocol):
    """Whatever has a latency, e.g. Measured."""

    @property
    def latency_us(self) -> float: ...

    @property
    def likely(self) -> Likely | None: ...


def timed(result: Timed) -> str:
    """Latency, and of a simulated one where a device's would lie: `38.1 µs (27.2 to 42.5)`."""
    return f"{result.latency_us:,.1f} µs" + (f" ({between(result.likely)})" if result.likely is not None else "")


def between(likely: Likely) -> str:
    return f"{likely.low_us:,.1f} to {likely.high_us:,.1f}"


def latency_label(simulated: bool, caveat: str) -> str:
    if not simulated:
        return ""
    return "uncalibrated simulated " if caveat else "simulated "


def microseconds(value: float) -> str:
    """For people."""
    return f"{value:,.1f} µs" if abs(value) >= 10 else f"{value:,.3g} µs"


def _at(line: int | None) -> str:
    return f" (line {line})" if line is not None else ""
