"""Which definitions reach a use, in code made of blocks, loops and branches.

What counts as a variable, a definition and a use is the caller's affair: a name and what binds it, or a tile and
what fills all of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

Key = Hashable
"""Where something is defined or used."""


@dataclass(frozen=True)
class Define:
    variable: str
    key: Key


@dataclass(frozen=True)
class Use:
    variable: str
    key: Key


@dataclass(frozen=True)
class Repeat:
    """Runs any number of times, also not at all."""

    body: Flow


@dataclass(frozen=True)
class Either:
    """Exactly one of these runs."""

    ways: tuple[Flow, ...]


@dataclass(frozen=True)
class Leave:
    """`break` and `continue` go to the loop around, `return` and `raise` nowhere."""

    how: str


Flow = Sequence[Union[Define, Use, Repeat, Either, Leave]]
_State = Mapping[str, frozenset[Key]]


@dataclass
class Reaching:
    """By use, the definitions whose value it may see."""

    of: dict[tuple[str, Key], frozenset[Key]] = field(default_factory=dict)

    def webs(self, variable: str, definitions: Iterable[Key]) -> list[frozenset[Key]]:
        """The variable's definitions, those together that a use may see both of; in the order of the first of each.

        A use that is a definition as well, as in `x -= 1`, is of one web with what it sees.
        """
        web_of: dict[Key, set[Key]] = {key: {key} for key in definitions}
        for (name, use), reaching in self.of.items():
            if name == variable:
                seen = {*reaching, use} if use in web_of else reaching
                joined: set[Key] = set().union(*(web_of.get(key, {key}) for key in seen))
                for key in joined:
                    web_of[key] = joined
        found: list[frozenset[Key]] = []
        for key in web_of:
            web = frozenset(web_of[key])
            if web not in found:
                found.append(web)
        return found


@dataclass
class _Loop:
    breaks: list[_State] = field(default_factory=list)
    continues: list[_State] = field(default_factory=list)


class _Analysis:
    def __init__(self) -> None:
        self.reaching = Reaching()

    def run(self, flow: Flow, state: _State | None, loop: _Loop | None) -> _State | None:
        """The state after it; None where nothing gets there."""
        for item in flow:
            if state is None:
                return None
            if isinstance(item, Use):
                place = (item.variable, item.key)
                seen = state.get(item.variable, frozenset())
                self.reaching.of[place] = self.reaching.of.get(place, frozenset()) | seen
            elif isinstance(item, Define):
                state = {**state, item.variable: frozenset({item.key})}
            elif isinstance(item, Either):
                state = _join([self.run(way, state, loop) for way in item.ways])
            elif isinstance(item, Repeat):
                state = self._repeat(item, state)
            else:
                if loop is not None and item.how == "break":
                    loop.breaks.append(state)
                elif loop is not None and item.how == "continue":
                    loop.continues.append(state)
                return None
        return state

    def _repeat(self, item: Repeat, before: _State) -> _State:
        head = before
        while True:
            loop = _Loop()
            after = self.run(item.body, head, loop)
            joined = _join([before, after, *loop.continues])
            assert joined is not None
            if joined == head:
                left = _join([head, *loop.breaks])
                assert left is not None
                return left
            head = joined


def _join(states: Sequence[_State | None]) -> _State | None:
    reached = [state for state in states if state is not None]
    if not reached:
        return None
    names = {name for state in reached for name in state}
    return {name: frozenset().union(*(state.get(name, frozenset()) for state in reached)) for name in names}


def reaching_definitions(flow: Flow) -> Reaching:
    analysis = _Analysis()
    analysis.run(flow, {}, None)
    return analysis.reaching


def definitions_of(flow: Flow) -> Iterator[Define]:
    for item in flow:
        if isinstance(item, Define):
            yield item
        elif isinstance(item, Repeat):
            yield from definitions_of(item.body)
        elif isinstance(item, Either):
            for way in item.ways:
                yield from definitions_of(way)
