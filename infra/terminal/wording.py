"""How numbers and outcomes are said to a person, the same in every view: short, with a unit, never a bare zero."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from accelopt_core.candidate import Attempt
from accelopt_core.evaluation import Bounds, Finding, Measured, between, own_faults
from accelopt_core.ports import Usage
from ka_extensions.attempt_history import last_of_rounds
from ka_extensions.outcome import Outcome


@dataclass(frozen=True)
class OutcomeWords:
    label: str
    style: str
    mark: str
    plain_mark: str


OUTCOMES = {
    Outcome.IMPROVED: OutcomeWords("improved", "green", "✓", "+"),
    Outcome.KEPT: OutcomeWords("kept, no best", "cyan", "→", ">"),
    Outcome.NO_IMPROVEMENT: OutcomeWords("no improvement", "dim", "·", "."),
    Outcome.REVERTED: OutcomeWords("reverted", "yellow", "↩", "<"),
    Outcome.COMPILE_FAILED: OutcomeWords("does not compile", "red", "✗", "x"),
    Outcome.INCORRECT: OutcomeWords("wrong", "red", "✗", "x"),
    Outcome.IMPLAUSIBLE: OutcomeWords("implausible", "red", "✗", "x"),
    Outcome.TIMED_OUT: OutcomeWords("timed out", "red", "✗", "x"),
    Outcome.CRASHED: OutcomeWords("crashed", "red", "✗", "x"),
    Outcome.DUPLICATE: OutcomeWords("duplicate", "dim", "=", "="),
    Outcome.UNTIMED: OutcomeWords("right, not timed", "yellow", "?", "?"),
    Outcome.OUTRANKED: OutcomeWords("not sent", "dim", "-", "-"),
    Outcome.MEASURED: OutcomeWords("not decided", "dim", "?", "?"),
    Outcome.NO_KERNEL: OutcomeWords("no kernel", "red", "✗", "x"),
    Outcome.MODEL_FAILED: OutcomeWords("model failed", "red", "✗", "x"),
    Outcome.NO_PLAN: OutcomeWords("no plan", "red", "✗", "x"),
}
"""Of every outcome; a test holds that none is missing."""


def outcome_words(outcome: Outcome) -> OutcomeWords:
    return OUTCOMES[outcome]


def latency(us: float | None) -> str:
    return "-" if us is None else f"{us:,.1f} µs"


def speedup(baseline_us: float, us: float | None) -> str:
    return "-" if us is None else f"{baseline_us / us:.2f}x"


def duration(seconds: float) -> str:
    """`0:07`, `12:34`, `1:02:03`."""
    whole = max(0, int(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def roughly(seconds: float) -> str:
    """For an estimate: `under a minute`, `6 min`, `2.5 h`."""
    if seconds < 60:
        return "under a minute"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def no_more_than(seconds: float) -> str:
    """`under a minute`, `at most 6 min`."""
    words = roughly(seconds)
    return words if words.startswith("under") else f"at most {words}"


def cost(cost_usd: float, unpriced_calls: int) -> str:
    """Unknown is said, never shown as zero."""
    if not unpriced_calls:
        return f"${cost_usd:.2f}"
    calls = f"{unpriced_calls} call{'' if unpriced_calls == 1 else 's'} of unknown price"
    return f"${cost_usd:.2f} + {calls}" if cost_usd else f"unknown ({calls})"


def tokens(usage: Usage) -> str:
    read = usage.input_tokens + usage.cached_input_tokens + usage.cache_write_tokens
    cached = f" ({usage.cached_input_tokens:,} from cache)" if usage.cached_input_tokens else ""
    return f"{read:,} in{cached}, {usage.output_tokens:,} out"


def tally(attempts: Iterable[Attempt]) -> str:
    """`3 improved, 2 no improvement, 1 wrong`: the rounds, or their lanes, by what came of them."""
    ended = [attempt for lanes in last_of_rounds(attempts) for attempt in lanes]
    counted = Counter(outcome_words(attempt.outcome).label for attempt in ended)
    return ", ".join(f"{count} {label}" for label, count in counted.most_common()) or "none"


def printable(text: str) -> str:
    """Kernels, compilers and models write what they like; none of it may steer the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text)


def one_line(text: str, width: int | None = None, *, ascii_only: bool = False) -> str:
    flat = printable(" ".join(text.split()))
    if width is None:
        return flat
    if len(flat) <= width:
        return flat
    dots = "..." if ascii_only else "…"
    return flat[: max(0, width - len(dots))].rstrip() + dots


@dataclass(frozen=True)
class LatencyRow:
    name: str
    result: Measured | None
    remark: str = ""
    style: str = ""
    basis_us: float | None = None
    """What its speed-up is over, where that is not the baseline's first latency."""


def bounds_of(results: Iterable[Measured]) -> Bounds:
    """The least of theirs: they differ where a task declares no work, and each kernel is held to its own."""
    return min((each.profile.bounds for each in results), key=lambda bounds: bounds.peak_us)


def latency_table(rows: Iterable[LatencyRow], baseline: Measured, width: int, *, ascii_only: bool = False) -> Table:
    """Latency, speed-up and percent of the bound; says so when latencies are simulated or the bound is derived."""
    rows = list(rows)
    bounds = bounds_of([baseline, *(row.result for row in rows if row.result is not None)])
    columns = max(6, width - 52)  # for remarks, beside the numbers: those are never cut
    derived = baseline.profile.bounds.source == "trace"
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=False)
    table.add_column("", min_width=7, no_wrap=True)
    table.add_column(f"{baseline.label}latency", justify="right", no_wrap=True)
    table.add_column("speed-up", justify="right", no_wrap=True)
    table.add_column("% of bound*" if derived else "% of bound", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, style="dim")
    for row in rows:
        us = row.result.latency_us if row.result else None
        percent = f"{bounds.percent_of_peak(us):.1f} %" if us is not None else "-"
        table.add_row(
            Text(row.name, style=row.style), Text(latency(us), style=row.style),
            Text(speedup(row.basis_us or baseline.latency_us, us), style=row.style), Text(percent, style=row.style),
            one_line(row.remark, columns, ascii_only=ascii_only),
        )  # fmt: skip
    return table


MUCH_PERCENT = 20
"""Of a latency: so much that rests on guesses is said beside the result."""


def notes(baseline: Measured, best: Measured | None = None) -> list[str]:
    """For below a latency table, a line each: what it does not say by itself, and what limits it."""
    return explained(baseline, best) + warnings(baseline, best)


def explained(baseline: Measured, best: Measured | None = None) -> list[str]:
    """Where the bound comes from, how sure a simulated latency is, what a verdict rests on."""
    derived = baseline.profile.bounds.source == "trace"
    bound = ["* bound derived from what the kernel itself computes and moves, the best or the input"] if derived else []
    return bound + _likely(baseline, best or baseline) + _rests_on(best or baseline)


def warnings(baseline: Measured, best: Measured | None = None) -> list[str]:
    """What a number must not be read without."""
    caveat = [baseline.caveat] if baseline.caveat else []
    faults = best.shared_faults if best is not None else ()
    shared = [one_line(own_faults(faults))] if faults else []
    likely = best.likely if best is not None else None
    guesses = [line for line in (likely.rests_on if likely is not None else ()) if _is_much(line)]
    return caveat + _input_rests_on(baseline) + shared + guesses


def _is_much(line: str) -> bool:
    """Of what an interval rests on: is it a guess for a good part of the time?"""
    share = re.match(r"(\d+) % of this time", line)
    return share is not None and int(share[1]) >= MUCH_PERCENT


def _input_rests_on(baseline: Measured) -> list[str]:
    facts = ", ".join(baseline.contested)
    return [f"the input kernel itself rests on {facts}, which is contested: so does the speed-up"] if facts else []


def counterpart_row(counterpart: Measured, name: str, baseline: Measured) -> LatencyRow:
    """The kernel that stands beside the best: the fastest of all, which rests on a contested fact, or one that rests on
    none. `name`: its id."""
    facts = counterpart.contested_beside(baseline)
    if not facts:
        return LatencyRow("other", counterpart, f"{name}, which rests on no contested fact")
    return LatencyRow("fastest", counterpart, f"{name}, which rests on {', '.join(facts)}: contested")


def _rests_on(result: Measured) -> list[str]:
    """What its verdict rests on, where something was proved or could have been; and why it was not."""
    unproved = [proof for proof in result.proofs if proof.finding is not Finding.HELD]
    said = [f"{proof.property.value} {proof.finding.value}: {one_line(proof.reason)}" for proof in unproved]
    return [f"right because {result.rests_on}", *said] if result.proofs else []


def _likely(baseline: Measured, best: Measured) -> list[str]:
    if best.likely is None:
        return []
    now = between(best.likely)
    before = f"{between(baseline.likely)} µs, now " if baseline.likely not in (None, best.likely) else ""
    return [f"on a device {before}{now} µs, {best.likely.sure}"]
