"""What `clean` found, line by line: what goes, and what is kept for which reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.text import Text

from infra.terminal import wording

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
