"""What the page of one run says, from what its folder says: the same summary that `show` and `--json` are made of.

Nothing here draws or writes HTML; texts are plain, and escaped where they are written.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from html import escape

from accelopt_core.candidate import Attempt
from accelopt_core.evaluation import Bounds, Measured, Proof, between, own_faults
from accelopt_core.explanation import heading, reasons
from infra.documents.run_document import RunDocument, run_document
from infra.report.roofline import NoRoofline, Roofline, roofline
from infra.runs.lineage import INPUT
from infra.terminal import wording
from infra.terminal.report import RunSummary, simulator_line
from infra.terminal.wording import printable
from ka_extensions.attempt_history import last_of_rounds
from ka_extensions.outcome import Outcome

MOST_TRIES = 300
"""In the table and the picture: the newest, and those from which the best came."""
MOST_LINKS = 100
"""Of the way to the best: the last."""
LONGEST_TEXT, LONGEST_CELL = 1_200, 240
"""Bytes of HTML of a plan's own words or any message, and of what stands in a table."""
MOST_GAPS = 10
REASONS = 3
"""Of each gap that is left."""


@dataclass(frozen=True)
class KernelRow:
    """The input, or the best: one line of the result."""

    name: str
    latency: str
    likely: str
    """Where a device's latency would lie; empty where a device took it."""
    speedup: str
    percent: str
    """Of the bound."""
    bound_by: str
    verified: str


@dataclass(frozen=True)
class Try:
    """One kernel that was tried, or a plan that came to none."""

    round: int
    id: str
    parent_id: str
    outcome: Outcome
    label: str
    latency_us: float | None
    latency: str
    expected: str
    title: str
    message: str
    """What became of it, in one line."""
    dropped: bool
    """It was the best, and failed its last check."""
    on_path: bool
    """The best came of it, or is it."""


@dataclass(frozen=True)
class Link:
    """One step on the way from the input to the best: what was planned, expected and measured, and the change."""

    id: str
    parent_id: str
    round: int
    title: str
    technique: str
    rationale: str
    expected: str
    measured: str
    decision: str
    lesson: str
    diff: Diff


@dataclass(frozen=True)
class GapBar:
    name: str
    before_us: float | None
    """None: the input kernel has no such gap, or none worth naming."""
    after_us: float | None
    remedy: str
    """Of the best kernel's; of the input's where that is closed."""
    why: tuple[str, ...]
    """Why it is still there, as far as the run found out."""


@dataclass(frozen=True)
class Fact:
    name: str
    text: str


@dataclass(frozen=True)
class RunPage:
    """One run. Where `document.baseline` is None the input kernel was never measured, and most of it is empty."""

    document: RunDocument
    status: str
    simulated: str
    """What must be said of every latency; empty where a device took them."""
    result: tuple[KernelRow, ...]
    remarks: tuple[str, ...]
    """Below the result: what must be explained."""
    tries: tuple[Try, ...]
    tries_left_out: int
    tally: str
    chain: tuple[Link, ...]
    links_left_out: int
    """The first of them."""
    whole: Diff | None
    """From the input to the best."""
    gaps: tuple[GapBar, ...]
    gaps_are_of_two: bool
    """The best is another kernel than the input."""
    roofline: Roofline | None
    no_roofline: str
    """Why there is none."""
    sure: tuple[str, ...]
    """How far the simulator, and the verdict, are to be trusted: one line each."""
    cost: tuple[Fact, ...]
    environment: tuple[Fact, ...]


def run_page(summary: RunSummary) -> RunPage:
    document = run_document(summary)
    baseline = summary.baseline.result if summary.baseline is not None else None
    best = summary.best.result if summary.best is not None else None
    path = summary.lineage.path() if summary.lineage is not None else ()
    tries = _tries(summary.attempts, path)
    shown = _shown(tries)
    budget = DiffBudget(min(len(path), MOST_LINKS + 1))  # of each step, and of all together
    chain = _chain(summary, path, budget)
    found, why = _roofline(summary)
    return RunPage(
        document,
        _text(summary.status),
        _simulated(summary),
        _result(summary),
        _remarks(summary),
        shown,
        len(tries) - len(shown),
        wording.tally(summary.attempts),
        chain,
        max(0, len(path) - 1 - len(chain)),
        _whole(summary, budget),
        _gaps(summary, baseline, best),
        summary.improved,
        found,
        why,
        _sure(summary, baseline, best),
        _cost(summary),
        _environment(summary),
    )


def _text(text: str, most: int = LONGEST_TEXT) -> str:
    """On one line, and no longer than `most` once it is escaped."""
    flat = wording.one_line(text)
    took = len(escape(flat).encode("utf-8", "replace"))
    return flat if took <= most else wording.one_line(flat, most * len(flat) // took)


# --- the result -----------------------------------------------------------------------------------


def _simulated(summary: RunSummary) -> str:
    """Of the measurement where there is one: it knows its machine; else of the target."""
    target = summary.manifest.target
    result = summary.baseline.result if summary.baseline is not None else None
    if not (result.simulated if result is not None else target.simulated):
        return ""
    caveat = result.caveat if result is not None else target.caveat
    said = f"Simulated: no device took these latencies, {target.name} did."
    return f"{said} {caveat[:1].upper()}{caveat[1:]}." if caveat else said


def _result(summary: RunSummary) -> tuple[KernelRow, ...]:
    if summary.baseline is None or summary.best is None:
        return ()
    before = summary.baseline.result
    bounds = wording.bounds_of([before, summary.best.result])
    rows = [_row("input", before, before.latency_us, bounds)]
    if summary.improved:
        name = f"best, {summary.best.candidate.id}"
        rows.append(_row(name, summary.best.result, summary.speedup_basis_us, bounds))
    if (other := summary.counterpart) is not None:
        said = wording.counterpart_row(other.result, other.candidate.id, before)
        rows.append(_row(f"{said.name}, {said.remark}", other.result, before.latency_us, bounds))
    return tuple(rows)


def _row(name: str, result: Measured, basis_us: float, bounds: Bounds) -> KernelRow:
    percent = bounds.percent_of_peak(result.latency_us)
    limits = result.profile.busy_shares
    busiest = max(limits, key=lambda engine: limits[engine], default="")
    bound_by = f"{busiest}, {100 * limits[busiest]:.0f} % busy" if busiest else "not known"
    return KernelRow(
        name,
        wording.latency(result.latency_us),
        f"{between(result.likely)} µs" if result.likely is not None else "",
        wording.speedup(basis_us, result.latency_us),
        f"{percent:.1f} %",
        bound_by,
        "; ".join(result.checks) or "only timed",
    )


def _remarks(summary: RunSummary) -> tuple[str, ...]:
    if summary.baseline is None:
        return ("The input kernel was not measured, so there is nothing to compare.",)
    found = "was found" if summary.counterpart is None else "rests on no contested fact"
    said = [] if summary.improved else [f"Nothing faster than the input kernel {found}."]
    before = summary.baseline.result
    if summary.improved and summary.speedup_basis_us != before.latency_us:
        said.append(
            f"The speed-up is over the input kernel as it was timed beside the best one, at "
            f"{wording.latency(summary.speedup_basis_us)}."
        )
    if summary.tied:
        said.append(f"Predictions do not tell the best from {', '.join(summary.tied)}: they differ by less than a tie.")
    if before.profile.bounds.source == "trace":
        said.append("The bound is derived from what the kernel itself computes and moves, the best or the input.")
    faults = summary.best.result.shared_faults if summary.best is not None else ()
    said += [_text(own_faults(faults))] if faults else []
    return tuple(said)


# --- what was tried -------------------------------------------------------------------------------


def _tries(attempts: Sequence[Attempt], path: Sequence[str]) -> tuple[Try, ...]:
    """Of each lane of each round its last attempt, and what the best came of."""
    last = {attempt.id for lanes in last_of_rounds(attempts) for attempt in lanes}
    return tuple(_try(attempt, attempt.id in path) for attempt in attempts if attempt.id in last or attempt.id in path)


def _try(attempt: Attempt, on_path: bool) -> Try:
    expected = wording.latency(attempt.plan.expected_gain_us) if attempt.plan is not None else "-"
    dropped = attempt.last_check is not None
    return Try(
        attempt.round,
        _text(attempt.id, LONGEST_CELL),
        _text(attempt.parent_id, LONGEST_CELL),
        attempt.outcome,
        "dropped: failed its last check" if dropped else wording.outcome_words(attempt.outcome).label,
        attempt.latency_us,
        wording.latency(attempt.latency_us),
        expected,
        _text(attempt.title or attempt.summary, LONGEST_CELL),
        _text(attempt.summary, LONGEST_CELL),
        dropped,
        on_path,
    )


def _shown(tries: tuple[Try, ...]) -> tuple[Try, ...]:
    on_path = [each for each in tries if each.on_path][-MOST_LINKS:]
    wanted = {id(each) for each in (*on_path, *tries[-MOST_TRIES:])}
    return tuple(each for each in tries if id(each) in wanted)


def _chain(summary: RunSummary, path: Sequence[str], budget: DiffBudget) -> tuple[Link, ...]:
    if summary.baseline is None:
        return ()
    attempts = {attempt.id: attempt for attempt in summary.attempts}
    sources = {
        INPUT: summary.baseline.candidate.source,
        summary.baseline.candidate.id: summary.baseline.candidate.source,
    }
    latencies: dict[str, float | None] = {INPUT: summary.baseline.result.latency_us}
    for name, attempt in attempts.items():
        if attempt.candidate is not None:
            sources[name], latencies[name] = attempt.candidate.source, attempt.latency_us
    steps = [attempts[name] for name in path if name in attempts][-MOST_LINKS:]
    return tuple(_link(attempt, sources, latencies.get(attempt.parent_id), budget) for attempt in steps)


def _link(attempt: Attempt, sources: dict[str, str], parent_us: float | None, budget: DiffBudget) -> Link:
    plan, reflexion = attempt.plan, attempt.reflexion
    gained = "-"
    if attempt.latency_us is not None and parent_us is not None:
        taken = parent_us - attempt.latency_us
        gained = wording.latency(taken) if taken >= 0 else f"{wording.latency(-taken)} lost"
        gained += f": {wording.latency(parent_us)} to {wording.latency(attempt.latency_us)}"
    before, after = sources.get(attempt.parent_id, ""), sources.get(attempt.id, "")
    return Link(
        _text(attempt.id),
        _text(attempt.parent_id),
        attempt.round,
        _text(attempt.title or attempt.summary),
        _text(attempt.technique),
        _text(plan.rationale) if plan is not None else "",
        wording.latency(plan.expected_gain_us) if plan is not None else "no plan on file",
        gained,
        _text(attempt.decision.reason) if attempt.decision is not None else "",
        _text(reflexion.lesson) if reflexion is not None else "",
        budget.diff(before, after, (f"{attempt.parent_id}.py", f"{attempt.id}.py")),
    )


def _whole(summary: RunSummary, budget: DiffBudget) -> Diff | None:
    if not summary.improved or summary.baseline is None or summary.best is None:
        return None
    names = ("input_kernel.py", "best_kernel.py")
    return budget.diff(summary.baseline.candidate.source, summary.best.candidate.source, names)


# --- where the time goes --------------------------------------------------------------------------


def _gaps(summary: RunSummary, baseline: Measured | None, best: Measured | None) -> tuple[GapBar, ...]:
    if baseline is None or best is None:
        return ()
    before = {gap.name: gap for gap in baseline.profile.gaps}
    after = {gap.name: gap for gap in best.profile.gaps} if summary.improved else {}
    explanation = summary.explanation
    is_of_best = (
        explanation is not None and summary.best is not None and explanation.kernel == summary.best.candidate.id
    )
    told = {gap.name: gap for gap in explanation.gaps} if explanation is not None and is_of_best else {}
    bars = []
    for name in dict.fromkeys([*after, *before]):
        newest = after.get(name) or before[name]
        why = tuple(_text(reason) for reason in reasons(told[name])[:REASONS]) if name in told else ()
        bars.append(
            GapBar(
                _text(name),
                before[name].cost_us if name in before else None,
                after[name].cost_us if name in after else None,
                _text(newest.remedy),
                ((_text(heading(told[name])), *why) if why else ()),
            )
        )
    bars.sort(key=lambda bar: -max(bar.before_us or 0.0, bar.after_us or 0.0))
    return tuple(bars[:MOST_GAPS])


def _roofline(summary: RunSummary) -> tuple[Roofline | None, str]:
    if summary.baseline is None or summary.best is None:
        return None, "no kernel was measured"
    kernels = [("input", summary.baseline.result)]
    if summary.improved:
        kernels.append(("best", summary.best.result))
    target = summary.manifest.target
    try:
        return roofline(kernels, target.machine, target.calibration), ""
    except NoRoofline as why:
        return None, str(why)


# --- how sure, at what cost, with what ------------------------------------------------------------


def _sure(summary: RunSummary, baseline: Measured | None, best: Measured | None) -> tuple[str, ...]:
    if baseline is None or best is None:
        return ()
    lines = []
    for name, result in (("input", baseline), *((("best", best),) if summary.improved else ())):
        if result.likely is not None:
            lines.append(f"{name}: on a device {between(result.likely)} µs, {_text(result.likely.sure)}")
        elif result.simulated:
            lines.append(f"{name}: simulated by a release that did not say where a device's latency would lie")
    calibration = summary.manifest.target.calibration
    if calibration is not None:
        lines.append(_text(calibration.line))
    if guide := simulator_line(summary.attempts):
        lines.append(guide)
    lines.append(f"the best kernel is right because {best.rests_on}" if best.proofs else f"verified: {_checks(best)}")
    return (*lines, *map(_proof, best.proofs))


def _checks(result: Measured) -> str:
    return _text("; ".join(result.checks)) or "nothing is on file"


def _proof(proof: Proof) -> str:
    return f"{proof.property.value} {proof.finding.value}: {_text(proof.reason)}"


def _cost(summary: RunSummary) -> tuple[Fact, ...]:
    calls = summary.model_calls
    facts = [Fact("time at work", wording.duration(summary.seconds))]
    if not calls.calls:
        return (*facts, Fact("models", f"none was asked ({_text(summary.manifest.proposer)})"))
    facts += [
        Fact("models", wording.cost(calls.cost_usd, calls.unpriced_calls)),
        Fact("calls", f"{calls.calls}, of which {calls.failed} brought no reply"),
        Fact("tokens", wording.tokens(calls.usage)),
    ]
    for (whose, model), roles in summary.calls.items():
        for role, total in roles.items():
            name = f"{model} ({whose})" if whose and model not in whose else model
            said = f"{total.calls} calls, {wording.cost(total.cost_usd, total.unpriced_calls)}"
            facts.append(Fact(_text(f"{name}, {role.value}"), said))
    return tuple(facts)


def _environment(summary: RunSummary) -> tuple[Fact, ...]:
    manifest, target = summary.manifest, summary.manifest.target
    facts = [
        Fact("run", manifest.run_id),
        Fact("task", f"{manifest.task}, {manifest.shape}"),
        Fact("kernel", manifest.kernel),
        Fact("evaluated on", target.name),
        Fact("machine", target.machine),
        Fact("fingerprint", target.fingerprint),
        Fact("proposer", manifest.proposer),
        Fact("begun", manifest.created),
        Fact("last change", manifest.updated),
        Fact("rounds", f"at most {manifest.rounds}"),
    ]
    installed = target.installed
    facts += [Fact(f"device {name}", text) for name, text in vars(installed).items() if text]
    facts += [Fact(name, text) for name, text in manifest.versions.items()]
    return tuple(Fact(_text(fact.name), _text(fact.text)) for fact in facts if fact.text)


MOST_BYTES = 600_000
"""Of all differences on one page, as HTML; a page of them is read by nobody, and still has to open."""
MOST_LINES = 600
"""Of one difference."""
LONGEST_LINE = 400
"""Characters."""
_AROUND = 40
"""Bytes of markup for each line."""


class Side(str, Enum):
    """What a line of a difference is, and how it is coloured."""

    HEAD = "head"
    ADDED = "added"
    REMOVED = "removed"
    PLACE = "place"
    BOTH = "both"


@dataclass(frozen=True)
class DiffLine:
    side: Side
    text: str


@dataclass(frozen=True)
class Diff:
    """Unified. `added` and `removed` count all lines, also those that are left out."""

    lines: tuple[DiffLine, ...]
    added: int
    removed: int
    left_out: int
    """Lines that are not shown."""


class DiffBudget:
    """What the differences of one page may take together: of what is left each has an equal share."""

    def __init__(self, diffs: int, most_bytes: int = MOST_BYTES) -> None:
        """`diffs`: how many there will be."""
        self._diffs, self._left = diffs, most_bytes

    def diff(self, before: str, after: str, names: tuple[str, str]) -> Diff:
        """`before` and `after`: the two texts."""
        told = list(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm=""))
        sides = [_side(line, number) for number, line in enumerate(told)]
        share, shown = self._left // max(1, self._diffs), list[DiffLine]()
        self._diffs -= 1
        for line, side in zip(told[:MOST_LINES], sides):
            text = _cut(printable(line))
            took = len(escape(text).encode("utf-8", "replace")) + _AROUND
            if took > share:
                break
            share -= took
            self._left -= took
            shown.append(DiffLine(side, text))
        return Diff(tuple(shown), sides.count(Side.ADDED), sides.count(Side.REMOVED), len(told) - len(shown))


def _side(line: str, number: int) -> Side:
    """The first two lines are names; later ones may begin with the same signs and be code."""
    if number < 2:
        return Side.HEAD
    return {"+": Side.ADDED, "-": Side.REMOVED, "@": Side.PLACE}.get(line[:1], Side.BOTH)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}… ({len(line):,} characters)"
