"""One kernel's verdict, and the menu of what may be done to it, for a person."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accelopt_core.evaluation import Gap, microseconds
from accelopt_core.model.menu import Blocked, Offer
from infra.terminal.wording import one_line


def print_verdict(
    console: Console, heading: str, said: str, *, right: bool, lines: Sequence[str], gaps: Sequence[Gap]
) -> None:
    """`lines`: what was verified, and what the verdict rests on."""
    console.print(Text(one_line(heading)), soft_wrap=True)
    console.print(Text(one_line(said), style="green" if right else "red"), soft_wrap=True)
    for line in lines:
        console.print(Text(f"  {one_line(line)}", style="dim"), soft_wrap=True)
    for gap in gaps:
        console.print(Text(f"  {gap.name}: {microseconds(gap.cost_us)}"), soft_wrap=True)


def print_menu(console: Console, heading: str, changes: Sequence[Offer], blocked: Sequence[Blocked], note: str) -> None:
    console.print(Text(one_line(heading)), soft_wrap=True)
    if note:
        console.print(Text(one_line(note), style="yellow"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 2), pad_edge=False)
    table.add_column("gain", justify="right", no_wrap=True)
    for name in ("tool", "site"):
        table.add_column(name, no_wrap=True)  # whole: `apply` is told them
    table.add_column("change")
    for offer in changes:
        gain = microseconds(offer.gain_us)
        table.add_row(f"{gain} (tie)" if offer.tie else gain, Text(offer.tool), Text(offer.site), Text(offer.change))
    if changes:
        console.print(table)
    for each in blocked:
        console.print(Text(one_line(each.gap)), soft_wrap=True)
        for reason in each.reasons:
            console.print(Text(f"  {one_line(reason)}", style="dim"), soft_wrap=True)
