"""Answers of commands as a person reads them: a kernel's verdict, menu and gaps, a model's benchmark, leftovers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accelopt_core.evaluation import Gap, Measured, explain, microseconds
from accelopt_core.explanation import Answer, ExplainedGap, Explanation, Verdict, details, in_short, reasons
from accelopt_core.model.menu import Blocked, Offer
from infra.model_benchmark.projection import Projected
from infra.terminal import wording
from infra.terminal.started_as import started_as
from infra.terminal.wording import latency, one_line


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


def print_menu(
    console: Console, heading: str, changes: Sequence[Offer], blocked: Sequence[Blocked], notes: Sequence[str]
) -> None:
    """`notes`: why there is no menu, or what is not on it."""
    console.print(Text(one_line(heading)), soft_wrap=True)
    for note in filter(None, notes):
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


SHOWN_ALONE = 20
"""Of one kind and fate; more of them are told together."""


class FoundThing(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def kept(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def age_s(self) -> float: ...


def print_found(console: Console, where: str, found: Sequence[FoundThing], *, removed: bool) -> None:
    """`where`: a host, or words for this machine. `removed`: what is not kept is gone already."""
    together: dict[tuple[str, str], list[FoundThing]] = {}
    for each in found:
        together.setdefault((each.kind, each.kept), []).append(each)
    for (kind, kept), things in together.items():
        fate = f"kept: {kept}" if kept else "removed" if removed else "would be removed"
        style = "dim" if kept else ""
        if len(things) > SHOWN_ALONE:
            names = [(f"{len(things)} of {kind}", sum(each.bytes for each in things), max(e.age_s for e in things))]
        else:
            names = [(each.path, each.bytes, each.age_s) for each in things]
        for name, size, age_s in names:
            line = f"{fate:<18} {_size(size):>9}  {wording.duration(age_s):>8}  {name}"
            console.print(Text(wording.printable(line), style=style), soft_wrap=True)
    gone = [each for each in found if not each.kept]
    total = _size(sum(each.bytes for each in gone))
    verb = "removed" if removed else "would be removed"
    console.print(Text(f"{where}: {len(gone)} {verb} ({total}), {len(found) - len(gone)} kept"), soft_wrap=True)


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


_STYLES = {Verdict.GAINS: "green", Verdict.REFUSED: "yellow"}


def print_explanation(
    console: Console, title: str, result: Measured, explanation: Explanation, everything: bool
) -> None:
    """In three sentences, or `everything`."""
    console.print()
    console.print(Text(one_line(title), style="bold"), soft_wrap=True)
    console.print(Text(one_line(explain(result))), soft_wrap=True)
    if not everything:
        print_what_is_left(console, explanation, "the same command with --all")
        return
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


def print_what_is_left(console: Console, explanation: Explanation, how: str) -> None:
    """What is worth doing, or what stands in the way, in three sentences. `how`: the rest is to be had."""
    if explanation.note:
        console.print(Text(one_line(explanation.note), style="yellow"), soft_wrap=True)
    sentences = in_short(explanation)
    for number, sentence in enumerate(sentences, 1):
        console.print(Text(f"{number}. {one_line(sentence)}"), soft_wrap=True)
    if sentences:
        console.print(Text(f"every gap and every answer: {started_as(how)}", style="dim"), soft_wrap=True)
    else:
        console.print(Text("no gap of 1 % of the latency or more", style="dim"))
