"""Why the gaps of a kernel are still there, gap by gap, and how that is said."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from accelopt_core.evaluation import HotLine, microseconds


class Verdict(str, Enum):
    """What came of a rule, the most useful to know first."""

    GAINS = "offered"
    REFUSED = "refused"
    NO_GAIN = "no gain predicted"
    TRIED = "tried"
    APPLIED = "applied already"


@dataclass(frozen=True)
class Answer:
    """What one rule has to say of one gap."""

    rule: str
    verdict: Verdict
    said: str
    """The change and what it gains, what stands in its way, or when it was applied."""
    line: int | None = None
    gain_us: float | None = None
    """Predicted, of what is offered."""
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


MOST_SENTENCES = 3


def in_short(explanation: Explanation) -> tuple[str, ...]:
    """At most three sentences, the most valuable first: the changes that gain most, one for each line, and beside them
    the largest gaps for which nothing is offered, with what would close them."""
    of = f" of {explanation.latency_us:,.1f}"
    busy = {line.line: line for gap in explanation.gaps for line in reversed(gap.lines) if line.instructions}
    offers: dict[int | None, Answer] = {}
    for gap in explanation.gaps:
        for each in gap.answers:
            best = offers.get(each.line)
            if each.verdict is Verdict.GAINS and each.gain_us and (best is None or each.gain_us > (best.gain_us or 0)):
                offers[each.line] = each
    said = []
    for line, offer in sorted(offers.items(), key=lambda item: -(item[1].gain_us or 0.0)):
        where = f"line {line}: " if line is not None else ""
        if (spent := busy.get(line) if line is not None else None) is not None:
            times = "once" if spent.instructions == 1 else f"{spent.instructions:,} times"
            where = f"line {line}, {times}, keeps {spent.engine} busy for {spent.active_us:,.1f}{of} µs: "
        what = offer.said.partition(": predicted")[0]
        said.append(f"{where}{what} gains {microseconds(offer.gain_us or 0.0)} ({offer.rule})")
    for gap in explanation.gaps:
        if not any(each.verdict is Verdict.GAINS for each in gap.answers):
            said.append(f"{heading(gap)}: {gap.remedy}")
    return tuple(said[:MOST_SENTENCES])


def heading(gap: ExplainedGap) -> str:
    """`DMA below its bandwidth: 34.1 µs (12.0 %), lines 31 and 35`"""
    lines = sorted({line.line for line in gap.lines})
    where = f", line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}" if lines else ""
    return f"{gap.name}: {microseconds(gap.cost_us)} ({gap.percent:.1f} %){where}"


def sentence(answer: Answer) -> str:
    """`merge-iterations refused, line 31: the passes write one element`"""
    if answer.verdict is Verdict.APPLIED:
        return f"applied already: {answer.said}"
    at = f", line {answer.line}" if answer.line is not None else ""
    return f"{answer.rule} {answer.verdict.value}{at}: {details(answer)}"


def details(answer: Answer) -> str:
    more = f" (and {answer.more} more)" if answer.more else ""
    return f"{answer.said}{more}"


def reasons(gap: ExplainedGap) -> tuple[str, ...]:
    """Why it is still there, one line each; never none."""
    said = tuple(sentence(answer) for answer in gap.answers)
    return said or (f"no rule of the catalogue has a place at its lines; what does: {gap.remedy}",)


def stops(gap: ExplainedGap) -> tuple[str, ...]:
    """Of `reasons` those that stand in the way; what is offered, or was done, does not."""
    said = tuple(sentence(each) for each in gap.answers if each.verdict in (Verdict.REFUSED, Verdict.NO_GAIN))
    offered = any(answer.verdict is Verdict.GAINS for answer in gap.answers)
    return said if said or offered else reasons(gap)
