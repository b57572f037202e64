"""The lineage of a run's kernels, drawn: one line while it goes on, a small tree when it is looked at afterwards."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from infra.runs.lineage import INPUT, Lineage, Relative
from infra.terminal import wording


def path_line(lineage: Lineage, parent_id: str, width: int, *, ascii_only: bool = False) -> Text:
    """`input → r001t1 → r004t1*`, and where the round under way comes from, if from elsewhere."""
    arrow, dots = (" > ", "...") if ascii_only else (" → ", "…")
    path = list(lineage.path())
    ending = "" if len(path) == 1 else "*"
    elsewhere = f"; now from {parent_id}" if parent_id != path[-1] else ""
    gone = sorted(lineage.dropped)
    elsewhere += f"; dropped {', '.join(gone)}" if gone else ""

    def said(names: Iterable[str]) -> str:
        return arrow.join(names) + ending

    shown = path
    while len(shown) > 3 and len(said(shown) + elsewhere) > width:  # the two ends say most
        shown = [path[0], dots, *shown[-(len(shown) - 3 if shown[1] == dots else len(shown) - 2) :]]
    text = Text(wording.one_line(said(shown), width, ascii_only=ascii_only), style="green" if ending else "")
    rest = wording.one_line(elsewhere, max(0, width - len(text)), ascii_only=ascii_only)
    return text.append(rest, style="yellow" if gone else "dim")


def tree_lines(lineage: Lineage, *, ascii_only: bool = False) -> list[Text]:
    """One line per kernel that mattered, below its parent."""
    return [_line(relative, ascii_only) for relative in lineage.tree()]


def _line(relative: Relative, ascii_only: bool) -> Text:
    fork, corner, stem = ("|- ", "`- ", "|  ") if ascii_only else ("├─ ", "└─ ", "│  ")
    text = Text("".join("   " if last else stem for last in relative.under), style="dim")
    if relative.depth:
        text.append(corner if relative.last else fork, style="dim")
    text.append(relative.id, style="bold green" if relative.best and relative.id != INPUT else "bold")
    text.append(f"  {wording.latency(relative.latency_us)}")
    if relative.dropped:
        text.append("  dropped: failed its last check", style="red")
    elif relative.best:
        text.append("  * best", style="green")
    elif relative.outcome:
        words = wording.outcome_words(relative.outcome)
        text.append(f"  {words.label}", style=words.style)
    if relative.others:
        noun = "try" if relative.others == 1 else "tries"
        text.append(f"   ({relative.others} more {noun} from here led nowhere)", style="dim")
    return text
