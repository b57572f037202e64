"""What a calibration says to a person: each kernel as it comes, then what changed, how true it is now, what to do."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import combinations

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from infra.calibration.calibrating import Calibrated
from infra.calibration.constants import CONSTANTS, NOT_MEASURED
from infra.calibration.file import CalibrationRecord, KernelRecord
from infra.calibration.rows import Row
from infra.terminal.report import shown_path
from infra.terminal.started_as import started_as
from infra.terminal.wording import duration, one_line, printable
from nki_sim.machine import machine
from nki_sim.timing.calibration import constant_of

APART = 0.02
"""Two kernels of a grid closer than this on the device are in no order."""


class ConsoleView:
    """A line for each kernel; on a terminal also what goes on now."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._budget_s = 0.0

    def begins(self, target: str, left: int, kernels: int, used_s: float, budget_s: float) -> None:
        self._budget_s = budget_s
        done = f", {kernels - left} of {kernels} are measured already" if left < kernels else ""
        self._say(f"{target}: {left} kernels to measure{done}; {duration(used_s)} of {duration(budget_s)} used")

    def row(self, number: int, kernels: int, row: Row, shipped_us: float, used_s: float) -> None:
        if row.latency_us is None:
            said = f"no time: {one_line(row.said, 90)}"
        else:
            said = f"{row.latency_us:9.1f} µs   {_percent(shipped_us / row.latency_us - 1)} by the shipped model"
        self._say(
            f"{number:3}/{kernels}  {row.kernel:18} {said}   {row.device_s:.0f} s, {duration(used_s)} of "
            f"{duration(self._budget_s)}"
        )

    def step(self, text: str) -> None:
        shown = one_line(text, max(20, self._console.width - 4))
        if not self._console.is_terminal:
            return
        if self._status is None:
            self._status = self._console.status(shown)
            self._status.start()
        self._status.update(shown)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _say(self, text: str) -> None:
        self._console.print(Text(printable(text)), soft_wrap=True)


def print_outcome(console: Console, outcome: Calibrated, host: str) -> None:
    record = outcome.record
    console.print()
    console.print(_constants(record))
    console.print()
    console.print(_kernels(record))
    for line in _findings(outcome):
        console.print(Text(printable(line), style="yellow"), soft_wrap=True)
    console.print()
    for line in _conclusion(outcome, host):
        console.print(Text(printable(line)), soft_wrap=True)


# --- tables -----------------------------------------------------------------------------------------


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name, justify in columns:
        table.add_column(name, justify="right" if justify == "right" else "left", no_wrap=name != "remark")
    return table


def _constants(record: CalibrationRecord) -> Table:
    """What is shipped and what this device shows; the undecided ones dim and last, with those that no kernel tells."""
    what = {each.name: each.what for each in CONSTANTS}
    table = _table(("constant", ""), ("shipped", "right"), ("here", "right"), ("change", "right"), ("±", "right"),
                   ("remark", ""))  # fmt: skip
    for each in sorted(record.constants, key=lambda each: not each.decided):
        spread = "" if each.spread is None else f"{100 * max(each.spread, 0.01):.0f} %"
        if each.decided:
            cells = [_number(each.value), _percent(each.value / each.shipped - 1), spread, each.why]
        else:
            cells = ["as shipped", "", "", each.why]
        style = "" if each.decided else "dim"
        table.add_row(
            *(Text(cell, style=style) for cell in (what.get(each.name, each.name), _number(each.shipped), *cells))
        )
    for name, why in NOT_MEASURED.items():
        shipped = _number(constant_of(machine(record.machine), name))
        table.add_row(*(Text(cell, style="dim") for cell in (name, shipped, "as shipped", "", "", f"not told: {why}")))
    return table


def _kernels(record: CalibrationRecord) -> Table:
    """Those that were not fitted: measured, and what each model says of them."""
    table = _table(("kernel, not fitted", ""), ("measured", "right"), ("shipped model", "right"), ("", "right"),
                   ("calibrated", "right"), ("", "right"))  # fmt: skip
    unfitted = [each for each in record.kernels if each.held_out]
    for each in unfitted:
        if each.measured_us is None:
            table.add_row(each.name, Text("no time", style="dim"))
            continue
        before, after = each.shipped_us / each.measured_us - 1, each.calibrated_us / each.measured_us - 1
        table.add_row(
            each.name, f"{each.measured_us:,.1f} µs", f"{each.shipped_us:,.1f} µs", _percent(before),
            f"{each.calibrated_us:,.1f} µs",
            Text(_percent(after), style="green" if abs(after) <= abs(before) else "red"),
        )  # fmt: skip
    known = [each for each in unfitted if each.measured_us is not None]
    if known:
        before, after = (
            statistics.median(abs(us / (each.measured_us or 1.0) - 1) for each, us in zip(known, predicted))
            for predicted in ([each.shipped_us for each in known], [each.calibrated_us for each in known])
        )
        table.add_row(
            Text("median error", style="bold"), "", "", Text(f"{100 * before:.1f} %", style="bold"), "",
            Text(f"{100 * after:.1f} %", style="bold"),
        )  # fmt: skip
        order = _order(known)
        if order is not None:
            pairs, shipped, calibrated = order
            table.add_row("pairs in order", "", "", f"{shipped} of {pairs}", "", f"{calibrated} of {pairs}")
    return table


def _order(kernels: list[KernelRecord]) -> tuple[int, int, int] | None:
    """(pairs of one grid that differ on the device, how many each model has the right way round)."""
    pairs = shipped = calibrated = 0
    for one, other in combinations(kernels, 2):
        first, second = one.measured_us or 0.0, other.measured_us or 0.0
        if one.held_out != other.held_out or abs(first - second) <= APART * min(first, second):
            continue
        pairs += 1
        shipped += (one.shipped_us < other.shipped_us) == (first < second)
        calibrated += (one.calibrated_us < other.calibrated_us) == (first < second)
    return (pairs, shipped, calibrated) if pairs else None


def _findings(outcome: Calibrated) -> Iterator[str]:
    for each in outcome.record.kernels:
        if each.measured_us is None:
            yield f"{each.name} could not be measured: {each.said}"
        elif each.distrusted:
            yield (
                f"{each.name} is left out of account: {each.measured_us:,.1f} µs, which no constants explain "
                f"({each.calibrated_us:,.1f} µs)"
            )


# --- what it comes to -------------------------------------------------------------------------------


def _conclusion(outcome: Calibrated, host: str) -> Iterator[str]:
    record, truth = outcome.record, outcome.truth
    decided = sum(each.decided for each in record.constants)
    used = f"{duration(record.device_s)} of device time"
    yield f"{decided} of {len(record.constants)} constants refitted from {len(record.kernels)} kernels, {used}."
    if outcome.left:
        more = max(1, round(record.device_s / 60 * (1 + len(outcome.left) / max(1, len(record.kernels)))) + 1)
        yield (
            f"Time ran out with {len(outcome.left)} kernels left ({', '.join(outcome.left[:4])}"
            f"{', ...' if len(outcome.left) > 4 else ''}): the same command with --calibrate-minutes {more} measures "
            "them as well, and nothing twice."
        )
    if outcome.path is not None:
        kept = shown_path(outcome.path)
        yield f"Kept: {kept}"
        yield f"  from now on predictions, bounds and gaps of runs on {host} are of these constants"
        yield f"  to simulate this machine without it: --machine {record.machine} --calibration {kept}"
        yield started_as("  to send the measurements back: orchestrator.py calibrate --export rows.csv")
    elif not truth.kernels:
        yield "Not kept: no kernel was measured that was not fitted, so nobody knows how true it is."
    else:
        yield (
            f"Not kept: on {truth.kernels} kernels that were not fitted it is off by {100 * truth.calibrated:.1f} %, "
            f"the shipped model by {100 * truth.shipped:.1f} %. The shipped one stays in use."
        )
        yield f"  was {host} shared or throttled? to measure all anew: calibrate {host} --calibrate-again"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:+.1f} %"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
