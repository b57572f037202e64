"""What a set of shapes came to, for people: a table on the terminal, and the one of docs/shapes.md."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accelopt_core.dispatch.weights import Counting
from accelopt_core.evaluation import between, latency_label
from infra.runs.shape_set import SetRow, SetTable
from infra.terminal import wording


def print_set(console: Console, table: SetTable) -> None:
    console.print()
    if table.rows:
        _print_rows(console, table)
    for name, reason in table.missing.items():
        console.print(Text(f"{name}: {reason}", style="yellow"), soft_wrap=True)
    for line in said(table):
        console.print(Text(line, style="dim"), soft_wrap=True)
    for note in table.notes:
        console.print(Text(note, style="yellow"), soft_wrap=True)
    if table.caveat:
        console.print(Text(table.caveat, style="yellow"), soft_wrap=True)


def _print_rows(console: Console, table: SetTable) -> None:
    label = latency_label(table.simulated, table.caveat)
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    shown.add_column("shape", no_wrap=True)
    for name in (table.counting.value, f"{label}input", "tuned alone", "in one kernel", "speed-up"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("takes", no_wrap=True)
    for row in table.rows:
        after = f"{wording.latency(row.after_us)}{_likely(row)}" if row.after_us is not None else "not made yet"
        shown.add_row(
            row.name, _weight(table.counting, row), wording.latency(row.input_us), wording.latency(row.alone_us), after,
            Text(_speedup(row), style="bold green" if _faster(row) else "bold"), _takes(row),
        )  # fmt: skip
    now = wording.speedup(table.before_us, table.after_us) if table.is_complete else ""
    alone = wording.speedup(table.before_us, table.alone_us)
    shown.add_row("weighted", "", "1.00x", alone, "", Text(now, style="bold"), "", style="bold")
    shown.width = console.measure(shown, options=console.options.update(width=1000)).maximum
    console.print(shown, crop=False)


def said(table: SetTable) -> list[str]:
    """What a reader must know beside the numbers, a line each."""
    lines = []
    if table.rows and table.is_complete:
        kept = table.kept_percent
        saved = f", {kept:.1f} % of the weighted time that tuning each alone saves" if kept is not None else ""
        lines.append(f"variants beside the input kernel: {table.variants}{saved}; {wording.duration(table.seconds)}")
    for row in table.between:
        lines.append(f"at {row.shape}, which is not of the set: {row.takes}")
    if likely := next((row.likely for row in table.rows if row.likely is not None), None):
        sure = f", {100 * likely.level:.0f} % sure" if likely.level else ", a choice"
        lines.append(f"in parentheses where a device's latency would lie{sure}")
    return lines


def markdown(table: SetTable) -> str:
    label = f"{latency_label(table.simulated, table.caveat)}µs"
    lines = [
        f"| shape | {table.counting.value} | input, {label} | tuned alone | in one kernel | speed-up | takes |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in table.rows:
        now = f"{row.now_us:,.1f}{_likely(row)}"
        lines.append(
            f"| {row.shape} | {_weight(table.counting, row)} | {row.input_us:,.1f} | {row.alone_us:,.1f} | {now} | "
            f"{wording.speedup(row.input_us, row.now_us)} | {_takes(row)} |"
        )
    alone, now = (wording.speedup(table.before_us, us) for us in (table.alone_us, table.after_us))
    lines.append(f"| **weighted** | | | {alone} | | **{now}** | {table.variants} variants |")
    return "\n".join(lines)


def _weight(counting: Counting, row: SetRow) -> str:
    return f"{100 * row.weight:.0f} %" if counting is Counting.SHARE else f"{row.weight:g}"


def _speedup(row: SetRow) -> str:
    return wording.speedup(row.input_us, row.after_us) if row.after_us is not None else ""


def _takes(row: SetRow) -> str:
    if row.after_us is None:
        return ""
    return f"variant {row.variant}" if row.variant else "the input kernel"


def _faster(row: SetRow) -> bool:
    return row.now_us < row.input_us


def _likely(row: SetRow) -> str:
    return f" ({between(row.likely)})" if row.likely is not None and row.after_us is not None else ""
