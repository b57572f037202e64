"""The kernels that a search may go on from: of each kind the fastest.

A kind is what limits a kernel, and which techniques led to it. Where one way ends, what other ways came to is still
there to go on from; and nothing but a faster kernel of its own kind takes a kernel's place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from accelopt_core.evaluation import Bottleneck

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """Kernels of one kind."""

    bottleneck: Bottleneck
    techniques: frozenset[str]
    """By which a kernel differs from the one that the search began with."""


@dataclass(frozen=True)
class Elite(Generic[T]):
    """The fastest of its cell."""

    item: T
    latency_us: float
    fruitless: int = 0
    """How often the search went on from it in vain."""


class Archive(Generic[T]):
    """Changed by `offer`, `went_on_from` and `drop` alone, so that the same calls make the same archive."""

    def __init__(self, explore_within: float = 0.5, restart_after: int = 2) -> None:
        """`explore_within`: what is slower than the best by more than this fraction is kept, and not gone on from.
        `restart_after`: an elite from which the search went on in vain so often gives way to the others."""
        self._explore_within = explore_within
        self._restart_after = restart_after
        self._cells: dict[Cell, Elite[T]] = {}

    @property
    def cells(self) -> dict[Cell, Elite[T]]:
        return dict(self._cells)

    def offer(self, cell: Cell, item: T, latency_us: float) -> bool:
        """Whether it is the fastest of its cell now."""
        known = self._cells.get(cell)
        if known is not None and known.latency_us <= latency_us:
            return False
        self._cells[cell] = Elite(item, latency_us)
        return True

    def went_on_from(self, item: T, gained: bool) -> None:
        """`gained`: something faster than it was made of it. Of what is no elite (any more) nothing is noted."""
        for cell, elite in self._cells.items():
            if elite.item == item:
                self._cells[cell] = replace(elite, fruitless=0 if gained else elite.fruitless + 1)

    def drop(self, item: T, others: Iterable[tuple[Cell, T, float]] = ()) -> None:
        """It was taken for right or fast and is not; `others`: (cell, item, latency in µs) of all that still count."""
        self._cells = {cell: elite for cell, elite in self._cells.items() if elite.item != item}
        for cell, other, latency_us in others:
            self.offer(cell, other, latency_us)

    def draw(self, count: int = 1) -> tuple[T, ...]:
        """The elites to go on from, at most `count`: the fastest of those that are not worn out, then of those that are
        worn out once, and so on. Several always hold the fastest of all. Empty where nothing was offered."""
        if not self._cells:
            return ()
        elites = sorted(self._cells.values(), key=lambda elite: elite.latency_us)
        best = elites[0]
        near = [elite for elite in elites if elite.latency_us <= (1 + self._explore_within) * best.latency_us]
        order = sorted(near, key=lambda elite: (elite.fruitless // self._restart_after, elite.latency_us))
        drawn = order[:count]
        if count > 1 and best not in drawn:
            drawn[-1] = best
        return tuple(elite.item for elite in drawn)
