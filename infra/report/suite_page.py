"""What the page of a suite says: its table, as `--suite` prints it and `--json` gives it."""

from __future__ import annotations

from dataclasses import dataclass

from accelopt_core.evaluation import between
from infra.documents.run_document import SuiteDocument
from infra.runs.suite import Ranking, SuiteRow
from infra.terminal import wording
from infra.terminal.suite_table import other_name, other_said


@dataclass(frozen=True)
class SuiteLine:
    """One task."""

    task: str
    shape: str
    before: str
    now: str
    likely: str
    """Where a device's latency would lie, now; empty where a device took it."""
    speedup: str
    before_percent: float
    after_percent: float | None
    """None: nothing was faster than the input kernel."""
    other_percent: float | None
    """Of what stands beside the best kernel; None where nothing does."""
    limiter: str
    verified: str
    note: str
    """Where its run stands, if it has not ended; empty where it has."""

    @property
    def now_percent(self) -> float:
        return self.before_percent if self.after_percent is None else self.after_percent


@dataclass(frozen=True)
class SuitePage:
    document: SuiteDocument
    simulated: str
    """What must be said of every latency; empty where a device took them."""
    lines: tuple[SuiteLine, ...]
    above_peak: bool
    """Some kernel is above 100 %, which must be explained."""
    time: str
    other: str
    """The column of what stands beside the best kernels ..."""
    other_said: str
    """... and what it says."""

    @property
    def says_likely(self) -> bool:
        return any(line.likely for line in self.lines)


def suite_page(document: SuiteDocument) -> SuitePage:
    lines = tuple(map(_line, document.rows))
    caveat = f" {document.caveat[:1].upper()}{document.caveat[1:]}." if document.caveat else ""
    simulated = (
        f"Simulated: no device took these latencies, {document.machine} did.{caveat}" if document.simulated else ""
    )
    above = any(line.now_percent > 100 for line in lines)
    said = other_said(document.simulated)
    return SuitePage(
        document, simulated, lines, above, wording.duration(document.seconds), other_name(document.simulated),
        f"{said[0].upper()}{said[1:]}.",
    )  # fmt: skip


def _line(row: SuiteRow) -> SuiteLine:
    now: Ranking = row.after or row.before
    return SuiteLine(
        wording.one_line(row.task),
        wording.one_line(row.shape),
        wording.latency(row.before.latency_us),
        wording.latency(now.latency_us),
        f"{between(now.likely)} µs" if now.likely is not None else "",
        wording.speedup(row.before.latency_us, now.latency_us),
        row.before.percent_of_peak,
        row.after.percent_of_peak if row.after is not None else None,
        row.counterpart.percent_of_peak if row.counterpart is not None else None,
        row.limiter,
        " + ".join(now.verified) or "no",
        row.note,
    )
