"""A model without kernels of ours and with them, for a person; and what they would gain it, projected."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accelopt_core.evaluation import microseconds
from infra.model_benchmark.projection import Projected
from infra.terminal.wording import one_line

Row = tuple[str, float | None, float | None, float | None, str]
"""What it is, without the kernels, with them, the gain, and how a number is written."""


def print_benchmark(
    console: Console, heading: str, rows: list[Row], *, said: str, good: bool, notes: tuple[str, ...]
) -> None:
    """`said`: the verdict, in one line."""
    console.print(Text(one_line(heading)), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 2), pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    for name in ("as it is", "with the kernels", "gain"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, before, after, gain, written in rows:
        if before is not None or after is not None:
            table.add_row(name, _number(before, written), _number(after, written), _number(gain, ".3f"))
    console.print(table)
    console.print(Text(one_line(said), style="green" if good else "red"), soft_wrap=True)
    for note in notes:
        console.print(Text(f"  {one_line(note)}", style="dim"), soft_wrap=True)


def print_projection(
    console: Console, model: str, kernels: tuple[Projected, ...], *, said: str, machine: str, caveat: str
) -> None:
    console.print(Text(one_line(f"{model}: projected, on {machine}; no model was run")), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("kernel", overflow="fold")
    for name in ("calls", "of the step", "before, sim.", "after, sim.", "step saved"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in kernels:
        table.add_row(
            Text(f"{row.name}\n  {' '.join(row.shapes)}"), str(row.calls), f"{100 * row.share:.1f} %",
            microseconds(row.before_us), microseconds(row.after_us), f"{100 * row.saved:.1f} %",
        )  # fmt: skip
    console.print(table)
    console.print(Text(one_line(said), style="bold"), soft_wrap=True)
    if caveat:
        console.print(Text(one_line(caveat), style="yellow"), soft_wrap=True)


def _number(value: float | None, written: str) -> str:
    return "-" if value is None else format(value, written).replace("%", " %")
