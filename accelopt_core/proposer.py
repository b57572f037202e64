"""Who proposes changes: the four roles, played by a language model or by the built-in catalogue.

`accelopt_core.model` implements them with a language model, `accelopt_core.catalogue` with none. The round does not
know which it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from accelopt_core.candidate import Attempt, Candidate, Plan
from accelopt_core.evaluation import Evaluation, IncumbentTiming, Measured
from accelopt_core.language import Language
from accelopt_core.optimization_memory import Experience
from accelopt_core.task import Task
from ka_extensions.divergence_guard import Decision
from ka_extensions.error_patterns import RecurringError
from ka_extensions.idea_bans import Ban
from ka_extensions.reflexion import Reflexion


class NothingToPlan(Exception):
    """The planner has no idea left that it has not tried; the run is finished."""


class UnusablePlan(Exception):
    """The planner answered, repeatedly, with something that is not a plan."""

    proposer: str = ""
    """Whose planner, where several take turns."""


class UnusableReply(Exception):
    """The executor's answer holds no usable kernel; the message says what is missing, for the next try."""

    def __init__(self, message: str, reply: str = "") -> None:
        super().__init__(message)
        self.reply = reply
        """What was answered: the kernel that was refused, or the raw text when it held none."""


class CannotRepair(Exception):
    """The executor has nothing better to offer for this plan: the round ends without a kernel."""


@dataclass(frozen=True)
class Feedback:
    """One failed try of this round: what was written and what the compiler or the checker said."""

    source: str
    """The kernel that failed, or the raw reply when it held none."""
    message: str


@dataclass(frozen=True)
class RoundContext:
    """Everything a proposer may know at the start of a round."""

    round: int
    task: Task
    parent: Candidate
    parent_result: Measured
    best: Candidate
    best_result: Measured
    baseline_us: float
    language: Language
    """That the kernels are written in."""
    history: tuple[Attempt, ...] = ()
    """Every attempt of this run, oldest first."""
    reflexions: tuple[Reflexion, ...] = ()
    """The window of recent reflexions, oldest first."""
    avoid: tuple[str, ...] = ()
    build_on: tuple[str, ...] = ()
    experiences: tuple[Experience, ...] = ()
    """What memory holds that is relevant here, best first."""
    banned: tuple[Ban, ...] = ()
    """Techniques that a planner who invents freely may not use in this round; the catalogue, which never
    tries one site twice, need not ask."""
    recurring: tuple[RecurringError, ...] = ()
    """Errors that came again and again in the last rounds; how an executor is told to write changes with them."""
    measured: tuple[tuple[Candidate, Measured], ...] = ()
    """Every right kernel of this run with its result, the input first: a plan may start from any (Plan.parent_id)."""
    failed: tuple[Feedback, ...] = ()
    """For who looks back on a round: its tries that failed before the kernel at hand, oldest first."""
    planned: tuple[Plan, ...] = ()
    """What is being tried side by side in this very round: the next plan must be another one."""
    wanted: int = 1
    """Plans that the round still takes from this parent, the next one among them: one answer may bring all."""
    sample: int = 1
    """Which of `samples` kernels is to be written from the plan, each without knowing of the others."""
    samples: int = 1
    rounds_left: int | None = None
    """After this one, at most; None where that is not known."""
    until: float = math.inf
    """When the run's time is used up, as `time.monotonic` tells it: a plan that takes longer is of no use."""

    def started_from(self, parent_id: str | None) -> RoundContext:
        """The same knowledge, with another measured candidate as the parent. Raises UnusablePlan for an unknown one."""
        if parent_id is None or parent_id == self.parent.id:
            return self
        for candidate, result in self.measured:
            if candidate.id == parent_id:
                return replace(self, parent=candidate, parent_result=result)
        known = ", ".join(candidate.id for candidate, _ in self.measured)
        raise UnusablePlan(f"it starts from {parent_id!r}, which is none of this run's right kernels ({known})")

    def with_parent_timed(self, incumbent: IncumbentTiming | None) -> RoundContext:
        """The parent's latency as it was measured beside the candidate, where it was: what a gain is a gain over."""
        if incumbent is None or incumbent.content_hash != self.parent.content_hash:
            return self
        old, us = self.parent_result, incumbent.latency_us
        timed = replace(old, latency_us=us, min_us=min(old.min_us, us), max_us=max(old.max_us, us))
        return replace(self, parent_result=timed)


class Planner(Protocol):
    def plan(self, context: RoundContext) -> Plan:
        """Raises NothingToPlan, UnusablePlan or a ModelError."""
        ...


class Executor(Protocol):
    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        """The new kernel's whole source. Raises UnusableReply, CannotRepair or a ModelError."""
        ...


class Summarizer(Protocol):
    def summarize(
        self, context: RoundContext, plan: Plan, candidate: Candidate, result: Measured, decision: Decision
    ) -> Experience:
        """Of a new best; what did not improve is filed from its numbers, without a model. May raise a ModelError."""
        ...


class Reflector(Protocol):
    def reflect(
        self,
        context: RoundContext,
        plan: Plan,
        candidate: Candidate | None,
        result: Evaluation | None,
        decision: Decision,
    ) -> Reflexion:
        """`candidate` and `result` are None when no usable kernel was written. May raise a ModelError."""
        ...


@dataclass(frozen=True)
class Proposer:
    name: str
    """For people, e.g. `catalogue` or `anthropic:<model>`."""
    planner: Planner
    executor: Executor
    summarizer: Summarizer
    reflector: Reflector
    spent_usd: Callable[[str], float] | None = None
    """Where several take turns: US dollars that the one of that name has cost so far. None: nobody keeps account."""
