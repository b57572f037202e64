"""Why the gaps of a kernel are still there, gap by gap, and how that is said."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from accelopt_core.evaluation import HotLine, microseconds


class Verdict(str, Enum):
    """What came of a transform, the most useful to know first."""

    GAINS = "offered"
    REFUSED = "refused"
    NO_GAIN = "no gain predicted"
    NOT_PRICED = "not priced"
    TRIED = "tried"
    APPLIED = "applied already"
    ABSENT = "has no site of its kind"


@dataclass(frozen=True)
class Answer:
    """What one transform has to say of one gap."""

    transform: str
    """Several by commas, where they were applied or none of them has a site of its kind."""
    verdict: Verdict
    said: str
    """The change and what it gains, the rule that stands in its way, or when it was applied; empty without a site."""
    line: int | None = None
    gain_us: float | None = None
    """Predicted, of what is offered."""
    normalizing_helps: bool = False
    on_a_hot_line: bool = False
    more: int = 0
    """Further places with the same verdict."""


@dataclass(frozen=True)
class ExplainedGap:
    name: str
    cost_us: float
    percent: float
    """Of the latency."""
    remedy: str
    lines: tuple[HotLine, ...] = ()
    """Where it arises: those that keep its engine busy, or that the busiest engine waited for; the longest first."""
    answers: tuple[Answer, ...] = ()
    left_out: int = 0
    """Further answers."""
    unread: tuple[str, ...] = ()
    """Of those lines what the transforms do not read, one line each."""


@dataclass(frozen=True)
class Explanation:
    """Of one kernel, as it was measured."""

    kernel: str
    """Id of the candidate."""
    latency_us: float
    gaps: tuple[ExplainedGap, ...]
    """The most valuable first."""
    note: str = ""
    """What of it could not be explained, in one line."""


def heading(gap: ExplainedGap) -> str:
    """`DMA below its bandwidth: 34.1 µs (12.0 %), lines 31 and 35`"""
    lines = sorted({line.line for line in gap.lines})
    where = f", line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}" if lines else ""
    return f"{gap.name}: {microseconds(gap.cost_us)} ({gap.percent:.1f} %){where}"


def sentence(answer: Answer) -> str:
    """`widen-dma-rows refused, line 31: t is bound 2 times (lines 31 and 40); normalizing would help`"""
    if answer.verdict is Verdict.ABSENT:
        several = ", " in answer.transform
        return f"{answer.transform} {'have no sites of their' if several else 'has no site of its'} kind here"
    if answer.verdict is Verdict.APPLIED:
        return f"applied already: {answer.said}"
    at = f", line {answer.line}" if answer.line is not None else ""
    return f"{answer.transform} {answer.verdict.value}{at}: {details(answer)}"


def details(answer: Answer) -> str:
    helps = "; normalizing would help" if answer.normalizing_helps else ""
    more = f" (and {answer.more} more)" if answer.more else ""
    return f"{answer.said}{helps}{more}"


def reasons(gap: ExplainedGap) -> tuple[str, ...]:
    """Why it is still there, one line each; never none."""
    said = (*gap.unread, *(sentence(answer) for answer in gap.answers))
    return said or (f"no transform of the catalogue addresses it; what does: {gap.remedy}",)


def stops(gap: ExplainedGap) -> tuple[str, ...]:
    """Of `reasons` those that stand in the way; what is offered, or was done, does not."""
    in_the_way = [
        answer for answer in gap.answers if answer.verdict in (Verdict.REFUSED, Verdict.NO_GAIN, Verdict.ABSENT)
    ]
    offered = any(answer.verdict is Verdict.GAINS for answer in gap.answers)
    said = (*gap.unread, *(sentence(answer) for answer in in_the_way))
    return said if said or offered else reasons(gap)
