"""Why the gaps of a kernel are still there, for people: each with its lines and answers, or the largest in short."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accelopt_core.evaluation import Measured, explain
from accelopt_core.explanation import Answer, ExplainedGap, Explanation, Verdict, details, heading, reasons
from infra.terminal.started_as import started_as
from infra.terminal.wording import latency, one_line

GAPS_IN_SHORT = 3
REASONS_IN_SHORT = 2

_STYLES = {Verdict.GAINS: "green", Verdict.REFUSED: "yellow"}


def print_explanation(console: Console, title: str, result: Measured, explanation: Explanation) -> None:
    """All of it."""
    console.print()
    console.print(Text(one_line(title), style="bold"), soft_wrap=True)
    console.print(Text(one_line(explain(result))), soft_wrap=True)
    if explanation.note:
        console.print(Text(one_line(explanation.note), style="yellow"), soft_wrap=True)
    said: set[Answer] = set()
    for gap in explanation.gaps:
        _print_gap(console, gap, said)
        said.update(gap.answers)
    console.print()
    if explanation.gaps:
        overlap = "A gap's price is what closing it alone could gain; gaps share causes, so prices do not add up."
        console.print(Text(overlap, style="dim"), soft_wrap=True)
    else:
        console.print(Text("no gap of 1 % of the latency or more", style="dim"))


def _print_gap(console: Console, gap: ExplainedGap, said: set[Answer]) -> None:
    """What was `said` of an earlier gap is only named."""
    console.print()
    price = f"{latency(gap.cost_us)}  {gap.percent:.1f} %"
    console.print(Text.assemble((price, "bold"), "  ", (one_line(gap.name), "bold")), soft_wrap=True)
    ascii_only = console.options.ascii_only
    for line in gap.lines:
        spent = f"{'waits' if not line.instructions else line.engine} {latency(line.active_us)}"
        text = one_line(line.text, max(20, console.width - 36), ascii_only=ascii_only)
        console.print(Text(f"  line {line.line:<5}{spent:>22}  {text}", style="dim"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 2), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for answer in gap.answers:
        if answer not in said and answer.verdict is not Verdict.APPLIED:
            table.add_row(
                Text(answer.verdict.value, style=_STYLES.get(answer.verdict, "dim")), Text(one_line(_told(answer)))
            )
    told = [each for each in gap.answers if each in said and each.verdict is not Verdict.APPLIED]
    again = [f"{each.rule} {each.verdict.value}" for each in told]
    if again:
        table.add_row(Text("as above", style="dim"), Text("; ".join(again), style="dim"))
    for answer in gap.answers:
        if answer.verdict is Verdict.APPLIED:
            table.add_row(Text(answer.verdict.value, style="cyan"), Text(answer.said))
    if gap.left_out:
        table.add_row("", Text(f"answers left out, which say less: {gap.left_out}", style="dim"))
    if table.row_count:
        console.print(table)
    else:
        console.print(Text(f"  {one_line(reasons(gap)[0])}"), soft_wrap=True)


def _told(answer: Answer) -> str:
    at = f", line {answer.line}" if answer.line is not None else ""
    return f"{answer.rule}{at}: {details(answer)}"


def print_what_is_left(console: Console, explanation: Explanation, run_id: str) -> None:
    """The largest gaps with the reasons that say most, and where the rest is to be had."""
    if explanation.note:
        console.print(Text(one_line(explanation.note), style="yellow"), soft_wrap=True)
    if not explanation.gaps:
        return
    console.print(Text("what is left, and what stands in the way", style="dim"))
    for gap in explanation.gaps[:GAPS_IN_SHORT]:
        console.print(Text(f"  {one_line(heading(gap))}"), soft_wrap=True)
        for reason in reasons(gap)[:REASONS_IN_SHORT]:
            console.print(Text(f"    {one_line(reason)}", style="dim"), soft_wrap=True)
    how = started_as(f"python3 orchestrator.py explain {run_id}")
    console.print(Text(f"all of it: {how}", style="dim"), soft_wrap=True)
