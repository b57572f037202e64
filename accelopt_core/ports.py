"""What the core needs from outside, as protocols it defines and `infra` implements.

One verb per port: a target evaluates, a model completes, an observer is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.evaluation import Evaluation, Installed, Measured, Predicted, Step
from accelopt_core.optimization_memory import Experience, OptimizationMemory
from accelopt_core.task import Task
from accelopt_core.toolchain import Calibration

# --- target ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluationLimits:
    compile_timeout_s: float = 300.0
    run_timeout_s: float = 600.0
    memory_bytes: int = 12 << 30
    warmup: int = 2
    iterations: int = 10
    max_spread: float = 0.01
    """Measure again while (max - min) / min is above this ..."""
    remeasure: int = 2
    """... but at most this many times."""


@dataclass(frozen=True)
class KnownProgram:
    """What an earlier candidate of the run was compiled to, and what it came to: a duplicate is not tried again."""

    candidate_id: str
    programs: tuple[str, ...]
    """As `Measured.programs`."""
    came_to: str
    """One line."""


@dataclass(frozen=True)
class EvaluationRequest:
    task: Task
    candidate: Candidate
    limits: EvaluationLimits = field(default_factory=EvaluationLimits)
    verify_full_below_us: float | None = None
    """Verify the full shape only when the latency is below this; None: always."""
    extra_seeds: tuple[int, ...] = ()
    """Seeds beside the task's published ones, secret from the candidate."""
    final: bool = False
    """The final winner: every seed."""
    incumbent: Candidate | None = None
    """The kernel to beat. Timed in turns with the candidate where timing is not exact, so that drift cannot decide;
    where it is exact, only for `final` (the input kernel then), so that one process's numbers make the speed-up."""
    original: Candidate | None = None
    """The task's input kernel, which the candidate is proved equal to where that can be; None for itself."""
    is_input: bool = False
    """It is the task's input kernel: right where it is right on the reference's own inputs. What it gets wrong on
    changed ones, nobody can be held to; that is left out, and said."""
    cores: int | None = None
    """How many of them (`Language.core`) the task's input runs on at once; a kernel for another number is refused,
    since their times say nothing of each other. None: that is not known yet."""
    output_types: tuple[str, ...] | None = None
    """Of the task's input kernel: a kernel that returns others is refused. None: that is not known yet."""
    known: tuple[KnownProgram, ...] = ()
    """A candidate that is compiled to one of these programs is a Duplicate of it."""
    by_tool: bool = False
    """A change of our own catalogue. One that is proved equal at the first shape is executed at the full shape in the
    winner's last check only; whatever a model wrote is before it can become the best."""


Progress = Callable[[Step, str], None]
"""Told as each step begins, with one line of detail."""


class TargetError(Exception):
    """The target itself failed, not the candidate. One line: what, where, what next."""


class TargetUnreachable(TargetError):
    """No connection, refused, unknown host key, wrong credentials: fix the host or the flags."""


class TargetMisconfigured(TargetError):
    """Reached, but it cannot evaluate anything: run `orchestrator.py doctor`."""


class TaskFault(Exception):
    """The task's own reference fails or breaks the protocol: fix the reference (docs/tasks.md)."""


@dataclass(frozen=True)
class TargetInfo:
    name: str
    """For people, e.g. `simulated trn2` or `ubuntu@10.0.0.1`."""
    fingerprint: str
    """Changes whenever a latency measured there could change: machine, toolchain, its version."""
    simulated: bool
    machine: str
    """What it times on, e.g. `trn2`. Prompts, prices and bounds are of it."""
    caveat: str = ""
    """As `Measured.caveat`."""
    installed: Installed = Installed()
    """With what a device's code is made; empty where the machine is simulated."""
    calibration: Calibration | None = None
    """What the machine's model was refitted to by its user: predictions, bounds and gaps are of that."""


class Target(Protocol):
    """`evaluate` may be called from `width` threads at once."""

    @property
    def width(self) -> int:
        """How many candidates it evaluates at once without one waiting for, or disturbing, another."""
        ...

    def describe(self) -> TargetInfo:
        """Raises TargetError when it cannot be reached or used."""
        ...

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        """Every fault of the candidate is an Evaluation; every fault of the target a TargetError."""
        ...

    def close(self) -> None: ...


# --- the simulated machine, beside the target ---------------------------------------------------------


class Simulator(Protocol):
    """Both are answered by source, for sources that nobody has judged. Raises TargetMisconfigured and TaskFault."""

    def predicted(self, sources: Sequence[str]) -> Mapping[str, Predicted | None]:
        """None of what it cannot compile at every shape of the task, or not price in its time."""
        ...

    def programs(self, sources: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """What tells the programs of these sources apart: the same for two where they are the same program at every
        shape, and only then. Empty where it does not compile, and for a source that has no other beside it."""
        ...


class Predict(Protocol):
    """Simulated latency in µs at the task's full shape, by source: the predictor that `infra` provides."""

    def __call__(self, sources: Sequence[str], limit_s: float = ...) -> Mapping[str, float | None]:
        """None: it does not compile at every shape. Sources that the time does not suffice for are left out."""
        ...


# --- language model -------------------------------------------------------------------------------


class Role(str, Enum):
    PLANNER = "planner"
    EXECUTOR = "executor"
    SUMMARIZER = "summarizer"
    REFLEXION = "reflexion"


@dataclass(frozen=True)
class Message:
    role: Literal["user", "assistant"]
    content: str
    kept: tuple[int, ...] = field(default=(), compare=False)
    """Where parts of it end that later requests begin with: a provider may be told to cache so much."""


@dataclass(frozen=True)
class ModelRequest:
    role: Role
    system: str
    """The static part: the same for every request of a run, so that it can be cached."""
    messages: tuple[Message, ...]
    max_tokens: int = 16_000
    temperature: float | None = None
    effort: str | None = None
    """How much the model is to think, as its provider names it; None: its default."""

    def __post_init__(self) -> None:
        if not self.messages or self.messages[-1].role != "user":
            raise ValueError("a model request must end with a user message")


@dataclass(frozen=True)
class Usage:
    input_tokens: int = 0
    """Not counting what came from a cache."""
    output_tokens: int = 0
    cached_input_tokens: int = 0
    """Read from a cache."""
    cache_write_tokens: int = 0
    """Input written to a cache, where the provider charges for that apart; not in `input_tokens`."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self.cached_input_tokens + self.cache_write_tokens


@dataclass(frozen=True)
class ModelReply:
    text: str
    model: str
    usage: Usage
    truncated: bool = False
    """The reply hit max_tokens; what is there is the beginning of it."""


class ModelError(Exception):
    """A model could not answer. One line: what, where, what next."""

    usage: Usage = Usage()
    """Tokens that the attempts before the failure are known to have cost."""


class ModelUnreachable(ModelError):
    """No connection, or none that lasted, after all retries."""


class ModelUnusable(ModelError):
    """What answers is no model, and will not be one later: the address is wrong. Ends a run that has no other."""


class ModelRejectedCredentials(ModelUnusable):
    """The key is missing, wrong or lacks access to the model, or there is no such model."""


class ModelBusy(ModelError):
    """Rate limits or overload outlasted all retries."""


class ModelContextOverflow(ModelError):
    """The request is longer than the model accepts: shorten it, or choose another model."""


class ModelRefused(ModelError):
    """The model declined to answer."""


class ModelEmptyReply(ModelError):
    """The model answered with no text, repeatedly."""


class ModelAllThought(ModelEmptyReply):
    """The whole length that it was allowed went into thought: it is worth asking once more with more room."""


class BudgetExhausted(ModelError):
    """The next call could exceed the budget; the run stops before it."""


class LanguageModel(Protocol):
    @property
    def name(self) -> str: ...

    def complete(self, request: ModelRequest) -> ModelReply:
        """Retries what is worth retrying; raises a ModelError for the rest. Never invents a reply."""
        ...


# --- what a run leaves behind, and what it may use up ----------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Of one kernel: whether it is worth the device's time."""

    kernel: str
    """`Candidate.content_hash`."""
    predicted: Predicted | None
    sent: bool


class Journal(Protocol):
    """Everything is durable when the call returns."""

    def attempt(self, attempt: Attempt) -> None: ...

    def best(self, candidate: Candidate, result: Measured) -> None:
        """A new best kernel, or the input kernel at the start."""
        ...

    def counterpart(self, kernel: tuple[Candidate, Measured] | None) -> None:
        """What stands beside the best from now on (`SearchState.counterpart`)."""
        ...

    def remember(self, experience: Experience, occasion: str, shown: tuple[Experience, ...]) -> None:
        """Filed once per `occasion` (a candidate's id), however often a resumed run comes by.

        `shown`: the experiences the round was shown; those it followed are confirmed or refuted.
        """
        ...

    def credit(self, keys: tuple[str, ...], improved: bool, occasion: str, instead: bool = False) -> None:
        """A plan followed the experiences of these keys and came to a new best, or did not; once per `occasion`.

        `instead`: the opposite was said of the plan before, on an occasion of its own."""
        ...

    def recall(self) -> OptimizationMemory:
        """All experiences, those of other runs included."""
        ...

    def shown(self, round: int, choose: Callable[[], tuple[Experience, ...]]) -> tuple[Experience, ...]:
        """What a round is shown of memory: chosen once, and the same when the round is gone through again."""
        ...

    def chosen(
        self, round: int, number: int, choose: Callable[[tuple[Choice, ...]], tuple[Choice, ...]]
    ) -> tuple[Choice, ...]:
        """The `number`-th choice of a round of what goes to the device: on file before anything is sent.

        `choose` is handed what is on file of that choice, which is nothing unless the round is gone through again, and
        says what it comes to now.
        """
        ...


class Budget(Protocol):
    def exhausted(self) -> str | None:
        """One line naming the limit that is reached, or None. Asked before every step that spends."""
        ...

    def seconds_left(self) -> float:
        """Until its time alone ends the run; infinity where nothing limits that."""
        ...

    def reserve(self, seconds: float) -> None:
        """How long the winner's last check will take, about: the run's time ends so much earlier."""
        ...
