"""Transforms that do a run of neighbouring instructions part by part, so that transfers and engines overlap.

They differ in which instructions make a run, in what must hold of a part and in what they write instead. Finding runs
in every block, naming them, offering each number of parts and refusing are the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, Site, SiteGone
from accelopt_core.transforms.kernel_code import Block, KernelCode, Kind, Statement, read_kernel


class Run(Protocol):
    @property
    def instructions(self) -> Sequence[Statement]:
        """What is done part by part, in its order; a loop of nothing but instructions may be one of them."""
        ...

    @property
    def tile(self) -> str:
        """That it writes first: runs are known by it."""
        ...

    @property
    def lines(self) -> Sequence[int]:
        """All that the change concerns."""
        ...


AnyRun = TypeVar("AnyRun", bound=Run)


class PartByPart(ABC, Generic[AnyRun]):
    name: str
    addresses = frozenset({Cause.WAITING, Cause.START_UP, Cause.TAIL, Cause.DMA_BANDWIDTH})
    parts: tuple[int, ...]
    """Ascending: what does not come out in so many parts does not in more."""
    of: str
    """What there are parts of: `rows`."""
    said: Mapping[str, str] = MappingProxyType({"": ""})
    """What an offer adds to tell people of its way."""
    why_legal: str
    why_faster: str

    @abstractmethod
    def describe(self) -> str: ...

    @abstractmethod
    def runs(self, code: KernelCode, block: Block) -> Iterator[AnyRun]:
        """Every longest run of a block that could gain."""

    @abstractmethod
    def ways(self, code: KernelCode, run: AnyRun, parts: int) -> Sequence[str]:
        """In which so many parts can be done, by the word that tells each from the first, which has none.

        Raises IllegalSite.
        """

    @abstractmethod
    def rewritten(self, code: KernelCode, run: AnyRun, parts: int, way: str) -> cst.Module: ...

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for place, run in self._named(code):
            first, last = run.instructions[0].line, run.instructions[-1].line
            for parts in self.parts:
                key = f"{place}x{parts}"
                try:
                    ways = self.ways(code, run, parts)
                except IllegalSite as error:
                    context.refuse(self.name, key, first, error, run.lines)
                    break
                for way in ways:
                    found.append(
                        Site(
                            self.name,
                            f"{key}/{way}" if way else key,
                            f"do lines {first} to {last} on 1/{parts} of the {self.of} at a time{self.said[way]}",
                            first,
                            self.why_legal,
                            self.why_faster,
                        )
                    )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        whole, _, way = key.partition("/")
        place, _, parts = whole.rpartition("x")
        run = dict(self._named(code)).get(place)
        if run is None or not parts.isdecimal() or int(parts) < 2:
            raise SiteGone(f"{key}: the kernel has no such work that could be done part by part")
        if way not in self.ways(code, run, int(parts)):
            raise SiteGone(f"{key}: that cannot be done in this way")
        return self.rewritten(code, run, int(parts), way)

    def _named(self, code: KernelCode) -> Iterator[tuple[str, AnyRun]]:
        """The second run of a tile is `tile#2`."""
        seen: dict[str, int] = {}
        for block in _blocks(code):
            for run in self.runs(code, block):
                seen[run.tile] = times = seen.get(run.tile, 0) + 1
                yield (run.tile if times == 1 else f"{run.tile}#{times}"), run


def _blocks(code: KernelCode) -> Iterator[Block]:
    """The function's own and those of all loops, but none of a branch."""
    yield code.body
    yield from (s.body for s in code.statements() if s.kind is Kind.LOOP and s.body is not None)
