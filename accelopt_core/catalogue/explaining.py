"""Why the gaps of a kernel are still there: for each, what the rules offer at its lines, and what stops them.

A gap's price is measured, a step's gain is predicted, and why a step is refused is what the rule said of the data and
the hardware.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.catalogue.kernel_trees import KernelTrees, NoTree, PricedStep, SingleSteps, StepRefused, done_in
from accelopt_core.evaluation import Gap, HotLine, Measured, microseconds
from accelopt_core.explanation import Answer, ExplainedGap, Explanation, Verdict
from accelopt_core.languages.nki.gaps import Cause, cause_of
from nki_sim.timing.ties import LEAST_GAIN, worth_a_round

LIMIT_S = 20.0
"""For pricing what can be done to one kernel; what is not priced by then is left out, and said."""
LEAST_SHARE = 0.01
"""Of the latency: smaller gaps are left out."""
MOST_LINES = 5
"""Of the kernel, that a gap names."""
MOST_ANSWERS = 8
"""Of rules, to one gap."""


def explained(
    candidate: Candidate,
    result: Measured,
    trees: KernelTrees,
    history: Sequence[Attempt] = (),
    limit_s: float = LIMIT_S,
    tie: float = LEAST_GAIN,
) -> Explanation:
    """Priced afresh. `history`: the attempts of the run that the kernel comes from."""
    try:
        found = trees.single_steps(candidate.source, limit_s)
    except (NoTree, StepRefused) as error:
        gaps = tuple(_located(gap, result) for gap in _worth_telling(result))
        return Explanation(candidate.id, result.latency_us, gaps, f"the catalogue cannot read this kernel: {error}")
    return joined(candidate, result, found, history, tie)


def joined(
    candidate: Candidate, result: Measured, found: SingleSteps, history: Sequence[Attempt], tie: float
) -> Explanation:
    tried = {
        done: attempt
        for attempt in history
        if attempt.plan is not None and not attempt.is_open and attempt.parent_id == candidate.id
        for done in [done_in(attempt.plan.details)]
    }
    least_us = worth_a_round(tie) * found.latency_us
    answers = [*(_offered(step, least_us, tried.get((step.done,))) for step in found.steps), *_refused(found)]
    applied = _applied(candidate.id, history)
    gaps = []
    for gap in _worth_telling(result):
        located = _located(gap, result)
        hot = {line.line for line in located.lines}
        here = sorted((answer for lines, answer in answers if hot & set(lines)), key=_usefulness)
        told = list(_without_repeats(here))
        bounded = (*told[:MOST_ANSWERS], *applied)
        gaps.append(replace(located, answers=bounded, left_out=max(0, len(told) - MOST_ANSWERS)))
    notes = [] if result.profile.gaps else ["the profile names no gaps"]
    notes += [f"{found.not_priced} places were not priced in the time there was"] if found.not_priced else []
    return Explanation(candidate.id, result.latency_us, tuple(gaps), "; ".join(notes))


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


def _located(gap: Gap, result: Measured) -> ExplainedGap:
    profile, cause = result.profile, cause_of(gap)
    lines = _waited_for(result) if cause is Cause.WAITING else []
    if not lines:
        engine = gap.name.rpartition(" ")[2] if cause is Cause.ELEMENTWISE else _ENGINES.get(cause or Cause.TAIL)
        lines = [line for line in profile.hot_lines if line.engine == engine]
        if cause is Cause.TRANSPOSES:
            lines = [line for line in lines if "transpose" in line.text] or lines
        lines = lines or list(profile.hot_lines)
    percent = 100 * gap.cost_us / result.latency_us
    return ExplainedGap(gap.name, gap.cost_us, percent, gap.remedy, tuple(lines[:MOST_LINES]))


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


# --- what the rules say of it -------------------------------------------------------------------------

_Located = tuple[tuple[int, ...], Answer]
"""An answer with the lines that it concerns."""


def _offered(step: PricedStep, least_us: float, tried: Attempt | None) -> _Located:
    line = step.lines[0] if step.lines else None
    if tried is not None:
        came = f"{microseconds(tried.latency_us)}, " if tried.latency_us is not None else ""
        said = f"{step.what}: {came}{tried.outcome.value.replace('_', ' ')} in round {tried.round}"
        return step.lines, Answer(step.name.rule, Verdict.TRIED, said, line)
    if step.after_us is None:
        said = f"{step.what}: no engine does the result, or the memory does not hold it"
        return step.lines, Answer(step.name.rule, Verdict.NO_GAIN, said, line)
    gain_us = step.gain_us
    if gain_us >= least_us:
        said = f"{step.what}: predicted to gain {microseconds(gain_us)}"
        return step.lines, Answer(step.name.rule, Verdict.GAINS, said, line, gain_us)
    tells = "predicted to change nothing" if gain_us == 0 else f"predicted to cost {microseconds(-gain_us)}"
    if gain_us > 0:
        tells = f"predicted to gain {microseconds(gain_us)}, less than a prediction can tell from nothing"
    return step.lines, Answer(step.name.rule, Verdict.NO_GAIN, f"{step.what}: {tells}", line)


def _refused(found: SingleSteps) -> Iterator[_Located]:
    for each in found.refusals:
        line = each.lines[0] if each.lines else None
        yield each.lines, Answer(each.rule, Verdict.REFUSED, f"{each.what}: {each.why}", line)


_ORDER = tuple(Verdict)


def _usefulness(answer: Answer) -> tuple[float, int]:
    return -(answer.gain_us or 0.0), _ORDER.index(answer.verdict)


def _without_repeats(answers: Sequence[Answer]) -> Iterator[Answer]:
    """The first of each rule and verdict, with the number of the others."""
    alike: dict[tuple[str, Verdict], list[Answer]] = {}
    for answer in answers:
        alike.setdefault((answer.rule, answer.verdict), []).append(answer)
    for first, *others in alike.values():
        yield replace(first, more=len(others))


def _applied(candidate_id: str, history: Sequence[Attempt]) -> tuple[Answer, ...]:
    """What was done on the way from the input kernel to this one, as one answer."""
    by_id = {attempt.candidate.id: attempt for attempt in history if attempt.candidate is not None}
    way: list[Attempt] = []
    while candidate_id in by_id and by_id[candidate_id] not in way:
        way.append(by_id[candidate_id])
        candidate_id = way[-1].parent_id
    names: dict[str, int] = {}
    for attempt in reversed(way):
        if attempt.plan is not None:
            for rule in [rule for rule, _ in done_in(attempt.plan.details)] or [attempt.plan.technique]:
                names[rule] = attempt.round
    said = ", ".join(f"{name} in round {number}" for name, number in names.items())
    return (Answer(", ".join(names), Verdict.APPLIED, said),) if names else ()
