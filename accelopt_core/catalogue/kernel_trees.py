"""What the catalogue asks of a kernel's loop trees: single steps priced, a way of several, and a way carried out.

Whoever answers traces the kernel, which runs its Python; so this is a port, and `infra.prediction` has it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from accelopt_core.proposer import RoundContext


class NoTree(Exception):
    """The kernel cannot be read as a loop tree, or has no price; why, in one line."""


class StepRefused(Exception):
    """A step cannot be taken, or what it leads to cannot be written; why, in one line."""


@dataclass(frozen=True)
class StepName:
    """A rule at one of its sites in a kernel."""

    rule: str
    site: str


StepDone = tuple[str, str]
"""A rule, and what it does: the same step, wherever it stands in a kernel."""


@dataclass(frozen=True)
class PricedStep:
    """One rule applied to a kernel, priced by simulation at the full shape."""

    name: StepName
    what: str
    """The change in one line."""
    why: str
    """What makes it faster, in a sentence."""
    lines: tuple[int, ...]
    """Of the kernel that the whole way starts from, whose instructions it concerns."""
    before_us: float
    after_us: float | None
    """None: an engine or the memory does not allow it."""

    @property
    def done(self) -> StepDone:
        return self.name.rule, self.what

    @property
    def gain_us(self) -> float:
        """Less than 0 for what costs time; none for what cannot run."""
        return self.before_us - self.after_us if self.after_us is not None else -math.inf


@dataclass(frozen=True)
class Refusal:
    """A site that a rule looked at and left as it is."""

    rule: str
    what: str
    lines: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class SingleSteps:
    """All that one step can make of a kernel."""

    latency_us: float
    """Of the kernel itself."""
    steps: tuple[PricedStep, ...]
    refusals: tuple[Refusal, ...]
    not_priced: int = 0
    """Sites that the time did not suffice for."""


@dataclass(frozen=True)
class Way:
    """The best that a search found from a kernel; no steps where nothing gains."""

    steps: tuple[PricedStep, ...]
    source: str
    before_us: float
    after_us: float
    priced: int
    """Kernels that were priced."""
    withheld: bool = False
    """Was a kernel left out because it rests on a contested fact?"""
    complete: bool = False
    """Did the search end by itself? Then none from the way's end finds more."""


@dataclass(frozen=True)
class Wanted:
    """What a search may do."""

    allowed: frozenset[str] | None = frozenset()
    """Contested facts that a kernel may rest on; None: any."""
    excluded: frozenset[StepDone] = frozenset()
    """Steps that are not taken."""
    enough_us: float = 0.0
    """A latency that is not searched below."""
    most_priced: int = 1500
    """Kernels."""


class KernelTrees(Protocol):
    """Raises NoTree, and what a predictor raises: TaskFault and TargetMisconfigured."""

    def single_steps(self, source: str, limit_s: float = math.inf) -> SingleSteps: ...

    def way(self, source: str, wanted: Wanted, limit_s: float = math.inf) -> Way:
        """After `limit_s`: the best so far."""
        ...

    def carried_out(self, source: str, steps: Sequence[StepName]) -> str:
        """Raises StepRefused too."""
        ...


def as_details(steps: Sequence[PricedStep]) -> str:
    """What a plan keeps of a way."""
    return json.dumps({"steps": [{"rule": s.name.rule, "site": s.name.site, "what": s.what} for s in steps]})


def steps_in(details: str) -> tuple[tuple[StepName, str], ...]:
    """Each with what it does; none for the details of a plan that is no way: a model wrote it, or an older release."""
    try:
        listed: Any = json.loads(details)["steps"]
        found = tuple((StepName(each["rule"], each["site"]), each["what"]) for each in listed)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    texts = (text for name, what in found for text in (name.rule, name.site, what))
    return found if all(isinstance(text, str) for text in texts) else ()


def done_in(details: str) -> tuple[StepDone, ...]:
    """The same without their sites."""
    return tuple((name.rule, what) for name, what in steps_in(details))


def tried_from(context: RoundContext) -> set[tuple[StepDone, ...]]:
    """Ways from the parent that this run has tried."""
    return {
        done_in(attempt.plan.details)
        for attempt in context.history
        if attempt.plan is not None and not attempt.is_open and attempt.parent_id == context.parent.id
    }


def planned_from(context: RoundContext) -> set[tuple[StepDone, ...]]:
    """Those that are being tried side by side in this very round."""
    return {
        done_in(plan.details) for plan in context.planned if (plan.parent_id or context.parent.id) == context.parent.id
    }
