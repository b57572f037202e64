"""What happens in a run, in the order it happens: told to whoever watches, never asked back.

A view or a log is a `RunObserver`; it must not raise and must not block, because the run waits for it. Rounds that try
several candidates side by side tell from several threads; `infra.runs.event_log.Observers` lets one in at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol, Union

from accelopt_core.candidate import Attempt, Plan
from accelopt_core.evaluation import Evaluation, Measured, Step
from accelopt_core.ports import TargetInfo, Usage
from ka_extensions.divergence_guard import Decision


class Ending(str, Enum):
    """Why a run ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    BUDGET = "budget"
    FAILED = "failed"


BASELINE_ROUND = 0
"""The round number under which the steps of the input kernel's own evaluation are told."""


@dataclass(frozen=True)
class RunStarted:
    run_id: str
    task: str
    shape: str
    """For people, e.g. `M4096 K5120 N12288`."""
    kernel: str
    target: TargetInfo
    proposer: str
    rounds: int
    patience: int
    """Rounds without improvement after which the run stops."""
    folder: str
    """Where this run's files are."""
    experiences: int = 0
    """What optimization memory held at the start."""
    max_hours: float | None = None
    hours_before: float = 0.0
    """What a resumed run had used of them."""
    width: int = 1
    """Candidates that a round tries side by side."""


@dataclass(frozen=True)
class BaselineMeasured:
    result: Measured


@dataclass(frozen=True)
class RoundStarted:
    round: int
    parent_id: str
    parent_us: float


@dataclass(frozen=True)
class StepBegan:
    round: int
    step: Step
    lane: str = ""


@dataclass(frozen=True)
class StepNote:
    round: int
    step: Step
    detail: str
    lane: str = ""


@dataclass(frozen=True)
class PlanMade:
    round: int
    plan: Plan
    lane: str = ""


@dataclass(frozen=True)
class RoundEnded:
    """Of one lane; told once for each, in their order, where a round tries several candidates side by side."""

    attempt: Attempt
    decision: Decision


@dataclass(frozen=True)
class LastCheck:
    """The winner, verified on every seed and timed beside the input kernel."""

    candidate_id: str
    evaluation: Evaluation
    passed: bool
    reason: str = ""
    """Why it did not pass."""


@dataclass(frozen=True)
class BudgetUpdate:
    """Totals so far, not increments."""

    usage: Usage = Usage()
    cost_usd: float = 0.0
    """Of the calls whose price is known."""
    unpriced_calls: int = 0
    """Calls whose price nobody knows; as long as there are any, the cost is not `cost_usd`."""
    device_s: float = 0.0


@dataclass(frozen=True)
class Notice:
    """Something the user should know that belongs to no step."""

    message: str
    level: Literal["info", "warning"] = "info"


@dataclass(frozen=True)
class RunEnded:
    ending: Ending
    reason: str
    """One line: why it stopped here."""


Event = Union[
    RunStarted,
    BaselineMeasured,
    RoundStarted,
    StepBegan,
    StepNote,
    PlanMade,
    RoundEnded,
    LastCheck,
    BudgetUpdate,
    Notice,
    RunEnded,
]


class RunObserver(Protocol):
    def tell(self, event: Event) -> None: ...
