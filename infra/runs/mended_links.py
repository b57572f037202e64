"""Links to hosts that dropped and came back while a run went on: nothing was lost but time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from infra.journal import JsonLines, utc_now
from infra.records import from_document, to_document

FILE = "links.jsonl"


@dataclass(frozen=True)
class MendedLink:
    host: str
    away_s: float
    """From when it was noticed until it was back."""
    at: str = ""
    """ISO time, UTC, when it was back."""


class MendedLinks:
    """Those of one run, in the folder where it keeps what is under way on hosts. Raises JournalError."""

    def __init__(self, folder: Path) -> None:
        self._lines = JsonLines(folder / FILE)

    def add(self, host: str, away_s: float) -> None:
        link = MendedLink(host, round(away_s, 1), utc_now().isoformat(timespec="seconds"))
        self._lines.append(to_document(link))

    def read(self) -> tuple[MendedLink, ...]:
        """Oldest first."""
        records = enumerate(self._lines.read(), 1)
        return tuple(from_document(MendedLink, each, f"{self._lines.path} line {number}") for number, each in records)


def in_words(links: Iterable[MendedLink]) -> list[str]:
    """A line for each host: `ubuntu@10.0.0.1:22 dropped 2 times, for 34 s in all, and was mended`."""
    away: dict[str, list[float]] = {}
    for link in links:
        away.setdefault(link.host, []).append(link.away_s)
    return [
        f"{host} dropped {'once' if len(times) == 1 else f'{len(times)} times'}, for {sum(times):.0f} s in all, "
        "and was mended: nothing was lost"
        for host, times in away.items()
    ]
