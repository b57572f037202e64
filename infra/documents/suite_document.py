"""A suite as a document: the table that a person sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.runs.suite import SuiteRow, SuiteTable


@dataclass(frozen=True)
class SuiteDocument:
    """One line for each task that was measured. Percentages are of the core's peak rates."""

    suite_id: str
    """What `--resume` goes on with."""
    machine: str
    simulated: bool
    caveat: str
    """What must be said wherever a latency is shown; empty where nothing must."""
    peaks: str
    """The rates that percent of peak refers to."""
    before_percent: float
    """Geometric mean over the tasks, each counted with 100 at most."""
    after_percent: float
    """The same of the best kernels: of simulated latencies those that rest on no contested fact."""
    counterpart_percent: float
    """The same, each task with its counterpart where it has one: of simulated latencies the fastest of all kernels."""
    rows: tuple[SuiteRow, ...]
    """`after` is null where nothing was faster than the input kernel."""
    missing: dict[str, str]
    """Tasks without a row, with the reason."""
    seconds: float
    """Of all runs together."""
    schema: Literal["nki-optimizer/suite/1"] = "nki-optimizer/suite/1"


def suite_document(suite_id: str, table: SuiteTable) -> SuiteDocument:
    return SuiteDocument(
        suite_id, table.machine, table.simulated, table.caveat, table.peaks, table.before_percent, table.after_percent,
        table.counterpart_percent, table.rows, table.missing, table.seconds,
    )  # fmt: skip
