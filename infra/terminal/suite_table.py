"""What a suite came to, for people: a table on the terminal, and the one of the README."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accelopt_core.evaluation import latency_label, timed
from infra.runs.suite import SuiteRow, SuiteTable
from infra.terminal import wording
from infra.terminal.started_as import started_as


def print_suite(console: Console, table: SuiteTable) -> None:
    console.print()
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    shown.add_column("task", no_wrap=True)
    label = latency_label(table.simulated, table.caveat)
    other = other_name(table.simulated)
    for name in (f"{label}input", "best", "speed-up", "% of peak", "now", other):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("bound", no_wrap=True)
    shown.add_column("verified", no_wrap=True)
    for row in table.rows:
        now = row.after or row.before
        shown.add_row(
            row.task, wording.latency(row.before.latency_us), timed(now),
            wording.speedup(row.before.latency_us, now.latency_us), f"{row.before.percent_of_peak:.1f}",
            Text(f"{now.percent_of_peak:.1f}", style="bold green" if row.after else "bold"),
            f"{row.counterpart.percent_of_peak:.1f}" if row.counterpart else "", row.limiter,
            " + ".join(now.verified) or "no",
        )  # fmt: skip
    shown.width = console.measure(shown, options=console.options.update(width=1000)).maximum
    console.print(shown, crop=False)
    for task, reason in table.missing.items():
        console.print(Text(f"{task}: {reason}", style="yellow"), soft_wrap=True)
    total = len(table.rows) + len(table.missing)
    over = f"{total} tasks" if not table.missing else f"{len(table.rows)} of {total} tasks"
    console.print(
        f"geometric mean of percent of peak over {over}: {table.before_percent:.1f} % before, "
        f"{table.after_percent:.1f} % now, {table.counterpart_percent:.1f} % {other}; "
        f"{wording.duration(table.seconds)}",
        soft_wrap=True,
    )
    console.print(Text(other_said(table.simulated), style="dim"), soft_wrap=True)
    console.print(Text(table.peaks, style="dim"), soft_wrap=True)
    if ranges := _ranges(table):
        console.print(Text(ranges, style="dim"), soft_wrap=True)
    if table.caveat:
        console.print(Text(table.caveat, style="yellow"), soft_wrap=True)


def other_name(simulated: bool) -> str:
    """The column of what stands beside the best kernels."""
    return "if contested facts hold" if simulated else "without contested facts"


def other_said(simulated: bool) -> str:
    """What that column says."""
    if simulated:
        return "best rests on no contested fact of the machine; the fastest of all is given where it rests on one"
    return "best is the fastest; where it rests on a contested fact, the fastest that rests on none is given too"


def markdown(table: SuiteTable) -> str:
    """The table as the README shows it."""
    label = f"{latency_label(table.simulated, table.caveat)}µs"
    lines = [
        f"| task | shape | input, {label} | best, {label} | % of peak | now | {other_name(table.simulated)} "
        "| bound by | verified at |",
        "|---|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for row in table.rows:
        best = f"{row.after.latency_us:,.0f}" if row.after else row.note or "-"
        if row.after is not None and row.after.likely is not None:
            best += f" ({row.after.likely.low_us:,.0f} to {row.after.likely.high_us:,.0f})"
        now = row.after or row.before
        lines.append(
            f"| {row.task} | {row.shape} | {row.before.latency_us:,.0f} | {best} | "
            f"{row.before.percent_of_peak:.1f} | {now.percent_of_peak:.1f} | {_other(row)} | {row.limiter} | "
            f"{' + '.join(now.verified) or 'not verified'} |"
        )
    lines.append(
        f"| **geometric mean** | {len(table.rows)} tasks | | | **{table.before_percent:.1f}** | "
        f"**{table.after_percent:.1f}** | **{table.counterpart_percent:.1f}** | | |"
    )
    unrun = sum(row.after is None and bool(row.note) for row in table.rows)
    if unrun:
        lines += [
            "",
            f"{unrun} of the {len(table.rows)} tasks have no optimized kernel yet and count with their input.",
        ]
    if any((row.after or row.before).percent_of_peak > 100 for row in table.rows):
        fused = "Above 100 %: fused elementwise operators (docs/nkibench.md); in the mean they count as 100."
        lines += ["", started_as(fused)]
    lines += [""] + [f"No result for {task}: {reason}." for task, reason in table.missing.items()]
    said = other_said(table.simulated)
    lines += [f"{said[0].upper()}{said[1:]}.", ""]
    if ranges := _ranges(table):
        lines += [f"{ranges}.", ""]
    lines.append(f"{table.machine}; {table.peaks}." + (f" {table.caveat}." if table.caveat else ""))
    return "\n".join(lines)


def _other(row: SuiteRow) -> str:
    """Percent of peak, and the facts that it rests on."""
    if row.counterpart is None:
        return ""
    facts = ", ".join(row.counterpart.contested)
    return f"{row.counterpart.percent_of_peak:.1f}" + (f" ({facts})" if facts else "")


def _ranges(table: SuiteTable) -> str:
    """What the parentheses say; empty where there are none. What each rests on, `show` tells of its run."""
    shown = {each.likely.level for row in table.rows if (each := row.after or row.before).likely is not None}
    if not shown:
        return ""
    sure = f", {100 * max(shown):.0f} % sure" if min(shown) else ", a choice"
    return f"in parentheses where a device's latency would lie{sure}"
