"""Applying a model's edits to the kernel it was shown: search/replace blocks and unified diffs.

Line numbers in a model's diff are guesses, so only its context decides where a hunk goes, and context
must fit in exactly one place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SEARCH = re.compile(r"^<{5,9} ?SEARCH.*$", re.M | re.I)
_EDIT = re.compile(
    r"^<{5,9} ?SEARCH[^\n]*\n(?P<old>.*?)^={5,9}[ \t]*\n(?P<new>.*?)^>{5,9} ?REPLACE[^\n]*$", re.M | re.S | re.I
)
_HUNK = re.compile(r"^@@.*$", re.M)


class EditFailed(Exception):
    """An edit does not fit the text it is meant for; the line says which and why."""


@dataclass(frozen=True)
class _Change:
    old: tuple[str, ...]
    new: tuple[str, ...]


def looks_like_search_replace(text: str) -> bool:
    return _SEARCH.search(text) is not None


def looks_like_diff(text: str) -> bool:
    if not _HUNK.search(text):
        return False
    return any(line.startswith(("+", "-")) and not line.startswith(("+++", "---")) for line in text.split("\n"))


def apply_search_replace(text: str, base: str) -> str:
    """Raises EditFailed when a block is malformed, or its search text is not there exactly once."""
    edits = [_Change(_lines(match["old"]), _lines(match["new"])) for match in _EDIT.finditer(text)]
    if len(edits) != len(_SEARCH.findall(text)):
        raise EditFailed(f"{len(_SEARCH.findall(text))} SEARCH markers but {len(edits)} complete SEARCH/REPLACE blocks")
    return _apply(edits, base, "SEARCH block")


def apply_diff(text: str, base: str) -> str:
    """Raises EditFailed when a hunk has no context or does not fit exactly one place."""
    hunks: list[_Change] = []
    old: list[str] = []
    new: list[str] = []
    inside = False

    def close() -> None:
        if inside and old != new:
            hunks.append(_Change(tuple(old), tuple(new)))
        old.clear()
        new.clear()

    for line in text.split("\n"):
        if line.startswith("@@"):
            close()
            inside = True
        elif line.startswith(("--- ", "+++ ", "diff --git", "index ")):
            close()
            inside = False
        elif not inside or line.startswith("\\"):
            continue
        elif line.startswith("+"):
            new.append(line[1:])
        elif line.startswith("-"):
            old.append(line[1:])
        elif line.startswith(" ") or not line:
            old.append(line[1:])
            new.append(line[1:])
        else:
            close()
            inside = False
    close()
    hunks = [_without_blank_ends(hunk) for hunk in hunks]
    if not hunks:
        raise EditFailed("the diff changes nothing")
    return _apply(hunks, base, "hunk")


def _apply(changes: list[_Change], base: str, what: str) -> str:
    lines = base.split("\n")
    for number, change in enumerate(changes, 1):
        if not any(line.strip() for line in change.old):
            raise EditFailed(f"{what} {number} has nothing to search for")
        places = _places(lines, change.old)
        if len(places) != 1:
            first = next(line.strip() for line in change.old if line.strip())
            found = "is not in the kernel" if not places else f"fits {len(places)} places"
            raise EditFailed(f"{what} {number} {found} (it begins with `{first[:80]}`)")
        at = places[0]
        lines[at : at + len(change.old)] = change.new
    return "\n".join(lines)


def _places(lines: list[str], wanted: tuple[str, ...]) -> list[int]:
    """Where the wanted lines stand, ignoring blanks at line ends."""
    have = [line.rstrip() for line in lines]
    want = [line.rstrip() for line in wanted]
    return [at for at in range(len(have) - len(want) + 1) if have[at : at + len(want)] == want]


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")[:-1]) if text.endswith("\n") else tuple(text.split("\n")) if text else ()


def _without_blank_ends(hunk: _Change) -> _Change:
    """Blank context lines around a hunk are usually the reply's layout, not the kernel's."""
    old, new = list(hunk.old), list(hunk.new)
    while old and new and not old[-1].strip() and not new[-1].strip():
        old.pop()
        new.pop()
    while old and new and not old[0].strip() and not new[0].strip():
        old.pop(0)
        new.pop(0)
    return _Change(tuple(old), tuple(new))
