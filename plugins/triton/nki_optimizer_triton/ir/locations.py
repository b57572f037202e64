"""Which line of the candidate's file an operation comes from, by the locations at its end."""

from __future__ import annotations

import re

_ALIAS = re.compile(r"^#(loc\w*) = loc\((.*)\)\s*$")
_PLACE = re.compile(r'^"((?:[^"\\]|\\.)*)":(\d+):\d+')
_NAMED = re.compile(r'^"(?:[^"\\]|\\.)*"\((.*)\)$')
_DEEP = 64
"""Calls inside each other; deeper ones have no line."""


class Locations:
    """Of one module's text."""

    def __init__(self, text: str, file_name: str) -> None:
        """`file_name`: how the path of the candidate's own file ends."""
        self._file = file_name
        self._aliases = {found.group(1): found.group(2) for line in text.splitlines() if (found := _ALIAS.match(line))}
        self._known: dict[str, int | None] = {}

    def line(self, location: str) -> int | None:
        """Of what stands in `loc(...)`: the innermost line of the candidate's file, or None."""
        return self._line(location.strip(), 0)

    def _line(self, text: str, depth: int) -> int | None:
        if depth > _DEEP:
            return None
        if text.startswith("#"):
            name = text[1:]
            if name not in self._known:
                self._known[name] = None
                self._known[name] = self._line(self._aliases.get(name, "unknown"), depth + 1)
            return self._known[name]
        place = _PLACE.match(text)
        if place is not None:
            inside = place.group(1).rsplit("/", 1)[-1] == self._file
            return int(place.group(2)) if inside else None
        named = _NAMED.match(text)
        if named is not None:
            return self._line(named.group(1).strip(), depth + 1)
        if text.startswith("callsite(") and text.endswith(")"):
            callee, _, caller = text[len("callsite(") : -1].rpartition(" at ")
            inner = self._line(callee.strip(), depth + 1)
            return inner if inner is not None else self._line(caller.strip(), depth + 1)
        return None


def without_location(line: str) -> tuple[str, str]:
    """(what stands before, the location) of a line that may end in `loc(...)`."""
    at = line.rfind(" loc(")
    if at < 0 or not line.endswith(")"):
        return line, ""
    start, depth = at, 0
    while start >= 0:  # the outermost one that closes at the line's end
        depth = 0
        for number, letter in enumerate(line[start + 4 :]):
            depth += (letter == "(") - (letter == ")")
            if depth == 0:
                if start + 4 + number == len(line) - 1:
                    return line[:start].rstrip(), line[start + 5 : -1]
                break
        start = line.rfind(" loc(", 0, start)
    return line, ""
