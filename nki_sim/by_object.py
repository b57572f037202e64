"""Results kept by the very objects that they were made of, for pure functions of large immutable ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

MOST_KEPT = 1 << 13
Result = TypeVar("Result")


class by_object(Generic[Result]):
    """Calls a function once for the same objects; equal ones are others: to compare a program's instructions by what
    they say takes as long as most of what is asked about them."""

    def __init__(self, function: Callable[..., Result]) -> None:
        self.afresh = function
        """Keeps nothing."""
        self._known: dict[tuple[int, ...], tuple[tuple[object, ...], Result]] = {}

    def __call__(self, *given: object) -> Result:
        key = tuple(map(id, given))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            found = self._known[key] = given, self.afresh(*given)
        return found[1]
