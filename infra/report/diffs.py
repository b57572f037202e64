"""Differences between kernels as a page shows them: line by line, with a bound on all of them together."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import Enum
from html import escape

from infra.terminal.wording import printable

MOST_BYTES = 600_000
"""Of all differences on one page, as HTML; a page of them is read by nobody, and still has to open."""
MOST_LINES = 600
"""Of one difference."""
LONGEST_LINE = 400
"""Characters."""
_AROUND = 40
"""Bytes of markup for each line."""


class Side(str, Enum):
    """What a line of a difference is, and how it is coloured."""

    HEAD = "head"
    ADDED = "added"
    REMOVED = "removed"
    PLACE = "place"
    BOTH = "both"


@dataclass(frozen=True)
class DiffLine:
    side: Side
    text: str


@dataclass(frozen=True)
class Diff:
    """Unified. `added` and `removed` count all lines, also those that are left out."""

    lines: tuple[DiffLine, ...]
    added: int
    removed: int
    left_out: int
    """Lines that are not shown."""


class DiffBudget:
    """What the differences of one page may take together: of what is left each has an equal share."""

    def __init__(self, diffs: int, most_bytes: int = MOST_BYTES) -> None:
        """`diffs`: how many there will be."""
        self._diffs, self._left = diffs, most_bytes

    def diff(self, before: str, after: str, names: tuple[str, str]) -> Diff:
        """`before` and `after`: the two texts."""
        told = list(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm=""))
        sides = [_side(line, number) for number, line in enumerate(told)]
        share, shown = self._left // max(1, self._diffs), list[DiffLine]()
        self._diffs -= 1
        for line, side in zip(told[:MOST_LINES], sides):
            text = _cut(printable(line))
            took = len(escape(text).encode("utf-8", "replace")) + _AROUND
            if took > share:
                break
            share -= took
            self._left -= took
            shown.append(DiffLine(side, text))
        return Diff(tuple(shown), sides.count(Side.ADDED), sides.count(Side.REMOVED), len(told) - len(shown))


def _side(line: str, number: int) -> Side:
    """The first two lines are names; later ones may begin with the same signs and be code."""
    if number < 2:
        return Side.HEAD
    return {"+": Side.ADDED, "-": Side.REMOVED, "@": Side.PLACE}.get(line[:1], Side.BOTH)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}… ({len(line):,} characters)"
