"""What a run shows of each expression: which tile, indexed how, under which mask."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from nki_sim.beta1.indices import Grid, Mask
from nki_sim.beta1.symbols import Atom, Symbolic, written
from nki_sim.beta1.tiles import Tile
from nki_sim.dtypes import as_dtype


@dataclass(frozen=True)
class Sum:
    """An integer by its value in one visit and its text in all of them."""

    value: int
    text: str
    terms: tuple[tuple[Atom, int], ...] = ()

    @staticmethod
    def of(value: int) -> Sum:
        value = value.current() if isinstance(value, Symbolic) else value
        terms = tuple(value.terms.items()) if isinstance(value, Symbolic) else ()
        return Sum(int(value), written(value), terms)

    @property
    def fixed(self) -> bool:
        return not self.terms

    def symbol(self) -> int:
        """The integer again, to compute with."""
        known = self.value - sum(atom.value * factor for atom, factor in self.terms)
        return Symbolic.of(self.value, dict(self.terms), known) if self.terms else self.value

    def seen_from(self, function: str) -> Sum:
        """As it is written in that function: names of functions that do not enclose it are their values there."""
        if all(_visible(atom, function) for atom, _ in self.terms):
            return self
        kept = {atom: factor for atom, factor in self.terms if _visible(atom, function)}
        known = self.value - sum(atom.value * factor for atom, factor in kept.items())
        return Sum.of(Symbolic.of(self.value, kept, known))

    def key(self) -> Any:
        return self.text if self.terms else self.value


def _visible(atom: Atom, function: str) -> bool:
    return not atom.function or f"{function}.".startswith(f"{atom.function}.")


@dataclass(frozen=True)
class IndexFact:
    """One dimension's index: base + sum of factors * position, and the dimension's size."""

    base: Sum
    steps: tuple[Sum, ...]
    size: Sum

    @property
    def factors(self) -> tuple[int, ...]:
        return tuple(step.value for step in self.steps)


@dataclass(frozen=True)
class TileFact:
    """A tile as one expression gave it."""

    shape: tuple[Sum, ...]
    dtype: str
    memory: str
    site: int
    """The expression that allocated its buffer."""
    index: tuple[IndexFact, ...] | None
    """How the expression indexed its tensor; None for what is no subscript."""
    root: bool
    """The whole of a tensor, not a view."""
    partition: int
    """Which dimension lies across partitions, of a whole tensor."""
    made: str
    kept: tuple[int, ...] | None = None
    """Which dimensions of its tensor a view of some blocks has left."""
    kind: str = "tile"

    def sizes(self) -> tuple[int, ...]:
        return tuple(each.value for each in self.shape)

    def seen_from(self, function: str) -> TileFact:
        """As the expressions of that function would write it."""
        index = self.index and tuple(
            IndexFact(
                d.base.seen_from(function),
                tuple(step.seen_from(function) for step in d.steps),
                d.size.seen_from(function),
            )
            for d in self.index
        )
        return replace(self, shape=tuple(size.seen_from(function) for size in self.shape), index=index)


@dataclass(frozen=True)
class GridFact:
    """An index grid, or a mask: a conjunction of grids that are not negative."""

    kind: str
    shape: tuple[Sum, ...] = ()
    steps: tuple[Sum, ...] = ()
    base: Sum | None = None
    forms: tuple[GridFact, ...] = ()
    """Of a mask, one for each condition; their base is the first count that is too many."""
    never: bool = False

    @property
    def factors(self) -> tuple[int, ...]:
        return tuple(step.value for step in self.steps)

    def seen_from(self, function: str) -> GridFact:
        """As the expressions of that function would write it."""
        return replace(
            self,
            shape=tuple(size.seen_from(function) for size in self.shape),
            steps=tuple(step.seen_from(function) for step in self.steps),
            base=self.base and self.base.seen_from(function),
            forms=tuple(form.seen_from(function) for form in self.forms),
        )


@dataclass
class Seen:
    """All that one expression gave, in the order of first sight."""

    kinds: dict[Any, Any] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    """For masks: how many of each axis are cut off at most, as a negative number."""
    box: bool = True
    """For masks: every visit let a box through."""
    empty: bool = False
    """For masks: some visit let nothing through."""
    overwrites: bool = False

    def only(self) -> Any:
        """The fact, where all visits agree; else None."""
        return next(iter(self.kinds.values())) if len(self.kinds) == 1 else None

    def any(self) -> Any:
        return next(iter(self.kinds.values()), None)


def describe(value: Any) -> tuple[Any, Any]:
    """(key, fact) of a tile, a grid or a mask: equal keys say the same at every visit."""
    if isinstance(value, Tile):
        fact = _tile(value)
        index = (
            None
            if fact.index is None
            else tuple((d.base.key(), tuple(s.key() for s in d.steps), d.size.key()) for d in fact.index)
        )
        return (
            (tuple(s.key() for s in fact.shape), fact.dtype, fact.memory, fact.site, index, fact.root, fact.kept),
            fact,
        )
    if isinstance(value, Grid):
        grid = _grid(value)
        return ("grid", *_key(grid)), grid
    if isinstance(value, Mask):
        forms = tuple(_grid(form + 1) for form in value.forms)
        return ("mask", tuple(map(_key, forms)), value.never), GridFact("mask", forms=forms, never=value.never)
    return None, None


def _tile(tile: Tile) -> TileFact:
    index = None
    if tile.dims is not None:
        index = tuple(IndexFact(Sum.of(d.base), tuple(Sum.of(f) for f in d.factors), Sum.of(d.size)) for d in tile.dims)
    partition = tile.buffer.partition if tile.dims is None and len(tile.shape) == len(tile.buffer.shape) else 0
    if tile.kept is not None:
        partition = tile.kept.index(tile.buffer.partition)
    return TileFact(
        tuple(Sum.of(n) for n in tile.shape),
        str(as_dtype(tile.numpy)),
        tile.memory,
        tile.buffer.site,
        index,
        tile.dims is None,
        partition,
        tile.made,
        tile.kept,
    )


def _grid(grid: Grid) -> GridFact:
    return GridFact("grid", tuple(map(Sum.of, grid.shape)), tuple(map(Sum.of, grid.factors)), Sum.of(grid.base))


def _key(grid: GridFact) -> tuple[Any, ...]:
    return tuple(s.key() for s in grid.shape), tuple(s.key() for s in grid.steps), grid.base and grid.base.key()
