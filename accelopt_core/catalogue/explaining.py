"""Why the gaps of a kernel are still there: for each, what the transforms that address it did, or what stopped them.

A gap's price is measured, a step's gain is predicted, and why a step is refused is what the transform said while it
looked for sites. Nothing is tried here.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from accelopt_core.candidate import Attempt, Candidate, parsed
from accelopt_core.catalogue.rewrites import NotRewrites, Predict, Rewrite, every_rewrite, rewrites_in, without_repeats
from accelopt_core.evaluation import Gap, HotLine, Measured, microseconds
from accelopt_core.explanation import Answer, ExplainedGap, Explanation, Verdict
from accelopt_core.languages.nki.gaps import Cause, cause_of
from accelopt_core.task import Surroundings
from accelopt_core.transforms.base import AnalysisContext, KernelModule, NotAKernel, Refusal, Transform, parse_kernel
from accelopt_core.transforms.kernel_code import KernelCode, Kind, read_kernel
from accelopt_core.transforms.registry import STEPS
from nki_sim.ties import LEAST_GAIN, worth_a_round

LIMIT_S = 20.0
"""For pricing what can be done to one kernel; what is not priced by then is listed as such."""
LEAST_SHARE = 0.01
"""Of the latency: smaller gaps are left out."""
MOST_LINES = 5
"""Of the kernel, that a gap names."""
MOST_ANSWERS = 12
"""Of transforms, to one gap, beside one for all that were applied and one for all that have no site of their kind."""


@dataclass(frozen=True)
class Analysis:
    """What the transforms found in a kernel."""

    module: KernelModule
    sites: tuple[Rewrite, ...]
    """Every one: of several transforms some may lead to the same kernel."""
    refusals: tuple[Refusal, ...]

    @property
    def steps(self) -> tuple[Rewrite, ...]:
        """To different kernels."""
        return without_repeats(self.sites)


def analyzed(candidate: Candidate, result: Measured, around: Surroundings, transforms: Sequence[Transform]) -> Analysis:
    """Raises NotAKernel."""
    refusals: list[Refusal] = []
    context = AnalysisContext(result.bottleneck, result.profile.fields, told=refusals.append)
    module = parse_kernel(candidate.source, around.entry_points, around)
    sites = every_rewrite(module, context, transforms)
    return Analysis(module, sites, tuple(dict.fromkeys(refusals)))


def explained(
    candidate: Candidate,
    result: Measured,
    around: Surroundings,
    predict: Predict,
    history: Sequence[Attempt] = (),
    limit_s: float = LIMIT_S,
    transforms: Sequence[Transform] = STEPS,
    tie: float = LEAST_GAIN,
) -> Explanation:
    """Analyzed and priced afresh; with `limit_s` 0 nothing is priced.

    `history`: the attempts of the run that the kernel comes from.
    """
    try:
        found = analyzed(candidate, result, around, transforms)
    except NotAKernel as error:
        note = f"the catalogue cannot read this kernel: {error}"
        gaps = tuple(replace(_located(gap, result, {}), unread=(note,)) for gap in _worth_telling(result))
        return Explanation(candidate.id, result.latency_us, gaps, note)
    if limit_s <= 0:
        made = joined(candidate, result, found, {}, history, transforms, tie)
        return replace(made, note="; ".join(filter(None, (made.note, "nothing was priced"))))
    before_us = predict([candidate.source])[candidate.source]
    by_source = predict([step.source for step in found.steps], limit_s) if before_us is not None else {}
    prices: dict[str, float | None] = {candidate.content_hash: before_us}
    prices.update((s.content_hash, by_source[s.source]) for s in found.steps if s.source in by_source)
    made = joined(candidate, result, found, prices, history, transforms, tie)
    unpriced = "" if before_us is not None else "the simulated machine cannot compile this kernel: nothing is priced"
    return replace(made, note="; ".join(filter(None, (made.note, unpriced))))


def joined(
    candidate: Candidate,
    result: Measured,
    found: Analysis,
    prices: Mapping[str, float | None],
    history: Sequence[Attempt],
    transforms: Sequence[Transform],
    tie: float,
) -> Explanation:
    """`prices`: by content hash, the kernel's own among them; None of what does not compile."""
    places = _Places(candidate.source, read_kernel(found.module))
    answers = _Answers(candidate, found, prices, history, tie)
    gaps: list[ExplainedGap] = []
    for gap in _worth_telling(result):
        located = _located(gap, result, places.starts)
        hot = {line.line for line in located.lines}
        cause = cause_of(gap)
        told = [a for t in transforms if cause in t.addresses for a in answers.of(t.name, hot)]
        unread = tuple(said for line in located.lines if (said := places.unread(line)))
        bounded, left_out = _bounded(told)
        gaps.append(replace(located, answers=bounded, left_out=left_out, unread=unread))
    note = "" if result.profile.gaps else "the profile names no gaps"
    return Explanation(candidate.id, result.latency_us, tuple(gaps), note)


# --- where a gap arises -----------------------------------------------------------------------------

_ENGINES = {
    Cause.HBM_TRAFFIC: "dma",
    Cause.DMA_BANDWIDTH: "dma",
    Cause.DMA_ISSUING: "dma",
    Cause.TABLE_SWITCHES: "scalar",
    Cause.TRANSPOSES: "tensor",
    Cause.THROTTLED: "tensor",
    Cause.MATMUL: "tensor",
}
"""Whose lines a cause concerns; of elementwise work the gap's name says it."""


def _worth_telling(result: Measured) -> list[Gap]:
    return [gap for gap in result.profile.gaps if gap.cost_us >= LEAST_SHARE * result.latency_us]


def _located(gap: Gap, result: Measured, starts: Mapping[int, int]) -> ExplainedGap:
    """`starts`: by line, the first one of its statement."""
    profile, cause = result.profile, cause_of(gap)
    lines = _waited_for(result) if cause is Cause.WAITING else []
    if not lines:
        engine = gap.name.rpartition(" ")[2] if cause is Cause.ELEMENTWISE else _ENGINES.get(cause or Cause.TAIL)
        lines = [line for line in profile.hot_lines if line.engine == engine]
        if cause is Cause.TRANSPOSES:
            lines = [line for line in lines if "transpose" in line.text] or lines
        lines = lines or list(profile.hot_lines)
    shown = [HotLine(starts.get(x.line, x.line), x.engine, x.active_us, x.instructions, x.text) for x in lines]
    percent = 100 * gap.cost_us / result.latency_us
    return ExplainedGap(gap.name, gap.cost_us, percent, gap.remedy, tuple(shown[:MOST_LINES]))


def _waited_for(result: Measured) -> list[HotLine]:
    """Lines at either end of the stretches in which the busiest compute engine stood still, the longest together first.

    What keeps it waiting comes before what waits.
    """
    texts = {line.line: line for line in result.profile.hot_lines}
    waited: dict[int, float] = {}
    for stretch in result.profile.idle:
        for line in filter(None, (stretch.waiting_on_line, stretch.line)):
            waited[line] = waited.get(line, 0.0) + stretch.end_us - stretch.begin_us
    found = []
    for line, us in sorted(waited.items(), key=lambda pair: -pair[1]):
        known = texts.get(line)
        found.append(HotLine(line, known.engine if known else "", us, 0, known.text if known else ""))
    return found


class _Places:
    """Which lines of a file belong to which statement of its kernel, and which the transforms do not read."""

    def __init__(self, source: str, code: KernelCode) -> None:
        self._statements = {statement.line: statement for statement in code.statements()}
        name = code.function.name.value
        functions = [node for node in parsed(source).body if isinstance(node, ast.FunctionDef)]
        kernel = next(node for node in functions if node.name == name)
        begins = sorted(self._statements)
        inside = range(min(begins, default=1), (kernel.end_lineno or kernel.lineno) + 1)
        self.starts = {line: begins[bisect_right(begins, line) - 1] for line in inside}
        self._others = {
            line: node.name for node in functions if node is not kernel
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }  # fmt: skip

    def unread(self, line: HotLine) -> str:
        """Why no transform reads it; empty where they do."""
        if line.line in self._others:
            return f"line {line.line} stands in {self._others[line.line]}(): the catalogue changes the kernel alone"
        statement = self._statements.get(line.line)
        if statement is not None and statement.kind is Kind.OPAQUE:
            return f"line {line.line} is not understood by the transforms: {line.text or 'see there'}"
        return ""


# --- what the transforms say of it --------------------------------------------------------------------


class _Answers:
    """By transform, what is known of it on one kernel."""

    def __init__(
        self,
        candidate: Candidate,
        found: Analysis,
        prices: Mapping[str, float | None],
        history: Sequence[Attempt],
        tie: float,
    ) -> None:
        self._found = found
        self._prices = prices
        self._before_us = prices.get(candidate.content_hash)
        self._least_us = worth_a_round(tie) * (self._before_us or 0.0)
        self._applied = dict(_applied(candidate.id, history))
        self._tried = {
            attempt.content_hash: attempt
            for attempt in history
            if attempt.candidate is not None and attempt.candidate.id != candidate.id and not attempt.is_open
        }

    def of(self, transform: str, hot: set[int]) -> Iterator[Answer]:
        """At most one of each kind: what it offers, what it refuses, what it did; or that there is nothing for it."""
        offers = sorted(self._offers(transform), key=lambda pair: (_ORDER.index(pair[1].verdict), -pair[0]))
        refusals = sorted(
            (refusal for refusal in self._found.refusals if refusal.transform == transform),
            key=lambda refusal: (not refusal.lines & hot, not refusal.normalizing_helps, len(refusal.lines)),
        )
        if offers:
            best = offers[0][1]
            alike = sum(answer.verdict is best.verdict for _, answer in offers)
            yield replace(best, more=alike - 1)
        if refusals:
            first = refusals[0]
            on_hot = bool(first.lines & hot)
            more = len({(refusal.line, refusal.why) for refusal in refusals}) - 1
            helps = first.normalizing_helps
            yield Answer(transform, Verdict.REFUSED, first.why, first.line, None, helps, on_hot, more)
        if transform in self._applied:
            yield Answer(transform, Verdict.APPLIED, self._applied[transform])
        elif not offers and not refusals:
            yield Answer(transform, Verdict.ABSENT, "")

    def _offers(self, transform: str) -> Iterator[tuple[float, Answer]]:
        """With the gain of each."""
        for step in self._found.sites:
            site = step.site
            if site.transform != transform:
                continue
            attempt = self._tried.get(step.content_hash)
            if attempt is not None:
                came = f"{microseconds(attempt.latency_us)}, " if attempt.latency_us is not None else ""
                said = f"{site.what}: {came}{attempt.outcome.value.replace('_', ' ')} in round {attempt.round}"
                yield 0.0, Answer(transform, Verdict.TRIED, said, site.line)
            elif self._before_us is None or step.content_hash not in self._prices:
                yield 0.0, Answer(transform, Verdict.NOT_PRICED, f"{site.what}: not priced", site.line)
            else:
                yield self._priced(step, self._before_us)

    def _priced(self, step: Rewrite, before_us: float) -> tuple[float, Answer]:
        site, us = step.site, self._prices[step.content_hash]
        if us is None:
            said = f"{site.what}: the result does not compile at this shape"
            return 0.0, Answer(site.transform, Verdict.NO_GAIN, said, site.line)
        gain_us = before_us - us
        if gain_us >= self._least_us:
            said = f"{site.what}: predicted to gain {microseconds(gain_us)}"
            return gain_us, Answer(site.transform, Verdict.GAINS, said, site.line, gain_us)
        tells = "predicted to change nothing" if gain_us == 0 else f"predicted to cost {microseconds(-gain_us)}"
        if gain_us > 0:
            tells = f"predicted to gain {microseconds(gain_us)}, less than a prediction can tell from nothing"
        return gain_us, Answer(site.transform, Verdict.NO_GAIN, f"{site.what}: {tells}", site.line)


_ORDER = tuple(Verdict)


def _applied(candidate_id: str, history: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    """Transforms on the way from the input kernel to this one, each with when it last was."""
    by_id = {attempt.candidate.id: attempt for attempt in history if attempt.candidate is not None}
    way: list[Attempt] = []
    while candidate_id in by_id and by_id[candidate_id] not in way:
        way.append(by_id[candidate_id])
        candidate_id = way[-1].parent_id
    for attempt in reversed(way):
        if attempt.plan is None:
            continue
        try:
            names = [name.transform for name in rewrites_in(attempt.plan.details)]
        except NotRewrites:  # a model described it
            names = [attempt.plan.technique]
        for name in names:
            yield name, f"{name} in round {attempt.round}"


def _bounded(answers: Sequence[Answer]) -> tuple[tuple[Answer, ...], int]:
    """What could still be done first, then what stands on the gap's own lines; and how many are left out.

    What was applied, and what has no site, is one answer each.
    """
    ends = []
    for verdict in (Verdict.APPLIED, Verdict.ABSENT):
        alike = [answer for answer in answers if answer.verdict is verdict]
        if alike:
            names = ", ".join(answer.transform for answer in alike)
            ends.append(Answer(names, verdict, ", ".join(filter(None, (answer.said for answer in alike)))))
    rest = sorted(
        (answer for answer in answers if answer.verdict not in (Verdict.APPLIED, Verdict.ABSENT)),
        key=lambda answer: (
            -(answer.gain_us or 0.0),
            answer.verdict is Verdict.REFUSED and not answer.on_a_hot_line,
            not answer.normalizing_helps,
            _ORDER.index(answer.verdict),
        ),
    )
    return (*rest[:MOST_ANSWERS], *ends), max(0, len(rest) - MOST_ANSWERS)


# --- in words ---------------------------------------------------------------------------------------
