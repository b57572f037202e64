"""The table of families as a document shows it: left-out figures first. The terminal has grids and more columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.timing_figures import Figures, by_family
from benchmarks.timing_rows import Outcome

BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"

_HEAD = (
    "| rows of | n | median | P90 | pairs in order | first choice | best of three | inside | median, fitted with "
    "| P90, fitted with |"
)


def shown(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 1) + 0.0:.1f}"  # no -0.0


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _line(name: str, apart: Figures | None, together: Figures | None) -> str:
    """apart: predicted without the family; together: as the model stands. Without the one, its cells stay empty."""
    some = apart or together
    assert some is not None
    rank = apart.rank if apart else None
    cells = [
        name,
        str(some.rows),
        shown(apart.median if apart else None),
        shown(apart.p90 if apart else None),
        f"{100 * rank.right / rank.pairs:.0f} % of {rank.pairs}" if rank is not None and rank.pairs else "–",
        shown(rank.top_1_percent if rank else None),
        shown(rank.top_3_percent if rank else None),
        percent(apart.coverage if apart else None),
        shown(together.median if together else None),
        shown(together.p90 if together else None),
    ]
    return f"| {' | '.join(cells)} |"


def table(
    left_out: Sequence[Outcome], together: Sequence[Outcome], across_grids: Mapping[str, Sequence[Outcome]]
) -> list[str]:
    """Lines of Markdown. `left_out`: the rows without single instructions, each predicted without its family.

    `across_grids`: by family, its rows as predicted by a fit to the other half of its grids.
    """
    apart = {family.name: family for family, _ in by_family(left_out)}
    lines = [_HEAD, "|" + "---|" * (_HEAD.count("|") - 1)]
    for family, _ in by_family(together):
        lines.append(_line(family.name, apart.get(family.name), family))
        if family.name in across_grids:
            [(halves, _)] = by_family(across_grids[family.name])
            lines.append(_line("... fitted on the other half of its grids alone", halves, None))
    return lines


def write(path: Path, lines: Sequence[str]) -> None:
    """Between the markers of the document. Raises ValueError when it has none."""
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"{path} has no {BEGIN} ... {END} to put the table between")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(before + "\n".join([BEGIN, *lines, END]) + after, encoding="utf-8")
