"""The built-in catalogue where no machine is simulated: other values of what a kernel itself declares tunable.

Nobody prices them: each is compiled, verified and timed. From the best kernel one value is changed at a time, in the
order of the declaration; what was tried is not tried again.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from accelopt_core.candidate import Plan, source_hash
from accelopt_core.languages.tunables import Declared, Tunable, declared_tunables, with_value
from accelopt_core.learning.by_numbers import NumbersReflector, NumbersSummarizer
from accelopt_core.proposer import CannotRepair, Feedback, NothingToPlan, Proposer, RoundContext, UnusableReply

TECHNIQUE = "sweep-tunable"


def sweeping_proposer(today: Callable[[], datetime.date]) -> Proposer:
    return Proposer("catalogue", SweepPlanner(), SweepExecutor(), NumbersSummarizer(today), NumbersReflector())


@dataclass(frozen=True)
class Change:
    tunable: Tunable
    value: int

    @property
    def title(self) -> str:
        return f"change {self.tunable.name} from {self.tunable.value} to {self.value}"


class SweepPlanner:
    def plan(self, context: RoundContext) -> Plan:
        """Raises NothingToPlan when no declared value is left, or none is declared."""
        source = context.parent.source
        declared = declared_tunables(source)
        tried = {attempt.content_hash for attempt in context.history if not attempt.is_open}
        tried |= {candidate.content_hash for candidate, _ in context.measured}
        planned = {plan.title for plan in context.planned}
        changes = list(_changes(declared))
        for change in changes:
            fresh = source_hash(with_value(source, change.tunable, change.value)) not in tried
            if fresh and change.title not in planned:
                return Plan(
                    id=f"r{context.round:03d}-{change.tunable.name}-{change.value}",
                    title=change.title,
                    technique=TECHNIQUE,
                    bottleneck=context.parent_result.bottleneck,
                    expected_gain_us=0.0,
                    rationale=f"{change.value} is among the values that TUNABLES declares legal for "
                    f"{change.tunable.name}; what it gains only a measurement shows",
                    details=json.dumps({"name": change.tunable.name, "value": change.value}),
                    parent_id=context.parent.id,
                    by_tool=True,
                )
        raise NothingToPlan(_why_not(declared, len(changes)))


class SweepExecutor:
    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        """Raises UnusableReply when the value cannot be set any more, CannotRepair when the kernel was refused."""
        if feedback:
            raise CannotRepair(f"a value has no second version: {feedback[-1].message}")
        try:
            wanted = json.loads(plan.details)
            name, value = str(wanted["name"]), int(wanted["value"])
        except (ValueError, KeyError, TypeError) as error:
            raise UnusableReply(f"plan {plan.id} was not made by the catalogue: {error}") from error
        for tunable in declared_tunables(context.parent.source).tunables:
            if tunable.name == name and value in tunable.legal:
                return with_value(context.parent.source, tunable, value)
        raise UnusableReply(f"the kernel declares no tunable {name} that may be {value}")


def _changes(declared: Declared) -> Iterator[Change]:
    """The nearest values of each tunable first, so that a good one is found before all are through."""
    for tunable in declared.tunables:
        others = sorted(set(tunable.legal) - {tunable.value}, key=lambda value: (abs(value - tunable.value), value))
        yield from (Change(tunable, value) for value in others)


def _why_not(declared: Declared, changes: int) -> str:
    if changes:
        return f"all {changes} single changes of what the kernel declares tunable were tried from here"
    if declared.unusable:
        return f"no declared tunable can be changed: {declared.unusable[0]}"
    return (
        'the kernel declares nothing tunable: `TUNABLES = {"BLOCK": (64, 128, 256)}` at module level names constants '
        "and their legal values; or let a language model propose changes"
    )
