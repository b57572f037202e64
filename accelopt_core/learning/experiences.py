"""What a measured attempt comes to, in numbers alone: experiences for memory, gains and outcomes for reflexion."""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from accelopt_core.candidate import Attempt, Candidate, Plan
from accelopt_core.evaluation import Evaluation, Measured, microseconds
from accelopt_core.language import Language
from accelopt_core.optimization_memory import CLEAR_WIN, Experience
from accelopt_core.proposer import RoundContext
from ka_extensions.divergence_guard import Decision
from ka_extensions.outcome import Outcome
from ka_extensions.plain_text import one_line

LONGEST_CAUSE = 300
"""Characters of what a failed try is remembered by."""
_LONGEST_SNIPPET = 80
"""Lines of each side of a rewrite that memory keeps."""


def measured_experience(
    context: RoundContext,
    plan: Plan,
    candidate: Candidate,
    result: Measured,
    *,
    title: str,
    summary: str,
    today: datetime.date,
) -> Experience:
    """An experience whose numbers, snippets and provenance come from the measurement, whoever wrote the words."""
    slow, fast = differing_lines(context.parent.source, candidate.source)
    machine, toolchain = machine_and_toolchain(result.machine)
    summary = " ".join(filter(None, (summary, repaired(context))))
    operators = {o for each in (context.parent, candidate) for o in context.language.operators(each.source)}
    return Experience(
        title=title,
        summary=summary,
        technique=plan.technique,
        bottleneck=plan.bottleneck.value,
        operators=tuple(sorted(operators)),
        slow=slow,
        fast=fast,
        speedup=context.parent_result.latency_us / result.latency_us,
        kernel=context.task.name,
        machine=machine,
        toolchain=toolchain,
        date=today.isoformat(),
    )


def measured_rejection(
    context: RoundContext,
    plan: Plan,
    candidate: Candidate,
    result: Measured,
    decision: Decision,
    today: datetime.date,
    *,
    rejected: bool = True,
) -> Experience:
    """A right kernel that is no new best, in numbers alone.

    `rejected` is false where it is faster than the kernel it changed, on an exploration step: the change is a win.
    """
    summary = factual_summary(context, plan, result, decision)
    filed = measured_experience(context, plan, candidate, result, title=plan.title, summary=summary, today=today)
    return replace(filed, rejected=rejected)


def way_experience(
    task: str, language: Language, source: str, baseline: Measured, way: Sequence[Attempt], today: datetime.date
) -> Experience | None:
    """What several changes came to together, one after the other, from a run's input `source` to the last of `way`.

    None where that says no more than its single changes do: fewer than two techniques, or no clear gain.
    """
    last = way[-1] if way else None
    techniques = list(dict.fromkeys(attempt.technique for attempt in way if attempt.technique))
    if last is None or last.candidate is None or last.measured is None or len(techniques) < 2:
        return None
    speedup = baseline.latency_us / last.measured.latency_us
    if speedup < CLEAR_WIN:
        return None
    slow, fast = differing_lines(source, last.candidate.source)
    machine, toolchain = machine_and_toolchain(last.measured.machine)
    before = baseline.latency_us
    steps = []
    for attempt in way:
        after = attempt.latency_us or before
        steps.append(f"{attempt.title} ({microseconds(before)} to {microseconds(after)})")
        before = after
    return Experience(
        title=f"{', then '.join(techniques)}: {len(way)} changes, one after the other",
        summary=f"Together {speedup:.2f}x: {'; then '.join(steps)}.",
        technique=" + ".join(techniques),
        bottleneck=baseline.bottleneck.value,
        operators=tuple(sorted({*language.operators(source), *language.operators(last.candidate.source)})),
        slow=slow,
        fast=fast,
        speedup=speedup,
        kernel=task,
        machine=machine,
        toolchain=toolchain,
        date=today.isoformat(),
    )


def refutation(
    task: str,
    language: Language,
    plan: Plan,
    candidate: Candidate,
    parent_us: float,
    result: Measured,
    summary: str,
    today: datetime.date,
) -> tuple[Experience, Experience]:
    """What a winner that failed its last check was taken for, and what memory is to hold against it."""
    machine, toolchain = machine_and_toolchain(result.machine)
    taken_for = Experience(
        title=plan.title,
        summary=summary,
        technique=plan.technique,
        bottleneck=plan.bottleneck.value,
        operators=language.operators(candidate.source),
        speedup=parent_us / result.latency_us,
        kernel=task,
        machine=machine,
        toolchain=toolchain,
        date=today.isoformat(),
    )
    return taken_for, replace(taken_for, rejected=True)


def factual_summary(context: RoundContext, plan: Plan, result: Measured, decision: Decision) -> str:
    before_us, after_us = context.parent_result.latency_us, result.latency_us
    return (
        f"{plan.title}: {microseconds(before_us)} became {microseconds(after_us)} ({before_us / after_us:.3f}x), "
        f"against {plan.bottleneck.value}, on shape {context.task.full.describe()}; "
        f"{'kept' if decision.improved else 'not kept'}: {decision.reason}."
    )


def repaired(context: RoundContext) -> str:
    """What failed on the way to the kernel at hand: `Try 1 failed: nisa.x has no y.`; empty where nothing did."""
    said = [one_line(each.message, LONGEST_CAUSE) for each in context.failed]
    return " ".join(f"Try {number} failed: {cause}." for number, cause in enumerate(said, 1))


def actual_gain_us(context: RoundContext, result: Evaluation | None) -> float | None:
    """Microseconds off the parent, negative when slower; None without a latency."""
    return context.parent_result.latency_us - result.latency_us if isinstance(result, Measured) else None


def outcome_of(result: Evaluation | None, decision: Decision) -> Outcome:
    if isinstance(result, Measured):
        return Outcome(decision.verdict.value)
    return Outcome(result.kind) if result is not None else Outcome.NO_KERNEL


def kernel_diff(before: str, after: str) -> str:
    """Unified, three lines of context, without the file names."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    return "\n".join(line for line in lines if not line.startswith(("--- ", "+++ ")))


def differing_lines(before: str, after: str) -> tuple[str, str]:
    """The lines that only one of two kernels has; a gap between them is marked with `...`."""
    old, new = before.splitlines(), after.splitlines()
    slow: list[str] = []
    fast: list[str] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        for side, chunk in ((slow, old[a:b]), (fast, new[c:d])):
            if chunk:
                side.extend(["...", *chunk] if side else chunk)
    return "\n".join(_capped(slow)), "\n".join(_capped(fast))


def _capped(lines: list[str]) -> list[str]:
    if len(lines) <= _LONGEST_SNIPPET:
        return lines
    return [*lines[:_LONGEST_SNIPPET], f"... ({len(lines) - _LONGEST_SNIPPET} more lines)"]


def machine_and_toolchain(machine: str) -> tuple[str, str]:
    """`simulated trn2 (nki_sim 0.1)` -> its two halves; a text of another form is all machine."""
    match = re.fullmatch(r"(.+?) \((.+)\)", machine)
    return (match.group(1), match.group(2)) if match else (machine, "")


@dataclass(frozen=True)
class Use:
    """One experience in one run."""

    experience: Experience
    used: int
    """Candidates whose plan went by it."""
    helped: int
    """Of them, those that came to what it says: to a new best after a win, to none after a rejection."""


def uses_of(attempts: Iterable[Attempt], shown: Iterable[Experience]) -> tuple[list[Use], int]:
    """Those that were followed, most often first; and how many more were shown. `shown`: of all rounds."""
    known = {each.key: each for each in shown}
    counts: dict[str, tuple[int, int]] = {}
    for attempt in attempts:
        if attempt.plan is None or attempt.decision is None or attempt.outcome is Outcome.MODEL_FAILED:
            continue
        for key in attempt.plan.follows:
            if key in known:
                used, helped = counts.get(key, (0, 0))
                won = attempt.decision.improved and attempt.last_check is None
                agreed = won == known[key].is_win
                counts[key] = used + 1, helped + agreed
    uses = [Use(known[key], used, helped) for key, (used, helped) in counts.items()]
    return sorted(uses, key=lambda use: (-use.used, -use.helped)), len(known) - len(uses)
