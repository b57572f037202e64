"""A graph of kernels to search: which changes lead from one to the next, what each is predicted to take, and what a
verified evaluation comes to. A strategy sees no more of it than it has asked for, and every question has its price.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from accelopt_core.evaluation import Bottleneck

T = TypeVar("T")


class Asked(NamedTuple, Generic[T]):
    """An answer, and the seconds that it takes whoever asks first."""

    answer: T
    seconds: float


@dataclass(frozen=True)
class Change:
    """One change to a kernel."""

    technique: str
    site: str
    child: str
    """The kernel that it leads to, by content."""


@dataclass(frozen=True)
class Timed:
    """A kernel that is right."""

    us: float
    bottleneck: Bottleneck


class Graph(Protocol):
    """Kernels by the hash of their content. The same question has the same answer, also in another process."""

    @property
    def start(self) -> str:
        """The input kernel."""
        ...

    def steps(self, kernel: str) -> Asked[tuple[Change, ...]]:
        """Every change that is offered there, of those to the same kernel the first."""
        ...

    def price_us(self, kernel: str) -> Asked[float | None]:
        """What it is predicted to take; None where it does not compile."""
        ...

    def timed(self, kernel: str) -> Asked[Timed | None]:
        """None where it is wrong or does not compile."""
        ...


class Spent(Exception):
    """No evaluation is left, or no kernel more may be looked at."""


@dataclass(frozen=True)
class Point:
    """How a run stands after one evaluation."""

    seconds: float
    """Of the evaluator, prices and looking for changes included."""
    us: float
    """The fastest right kernel so far."""


class Search:
    """One run on a graph: what it has learnt, and what that took. What was asked before costs nothing."""

    def __init__(self, graph: Graph, most: int, looked_at: int) -> None:
        """`most`: evaluations beside the input kernel's; `looked_at`: kernels whose changes are listed."""
        self._graph = graph
        self._most = most
        self._looked_at = looked_at
        self._steps: dict[str, tuple[Change, ...]] = {}
        self._prices: dict[str, float | None] = {}
        self._seconds = 0.0
        self.start = graph.start
        first = graph.timed(self.start).answer
        assert first is not None, "a search begins with a kernel that is right"
        self._timed: dict[str, Timed | None] = {self.start: first}
        self.points = [Point(0.0, first.us)]
        """After each evaluation; first the input kernel."""
        self.best = self.start

    @property
    def evaluations(self) -> int:
        return len(self.points) - 1

    @property
    def measured(self) -> tuple[tuple[str, Timed], ...]:
        """Every right kernel, in the order of their evaluation."""
        return tuple((kernel, timed) for kernel, timed in self._timed.items() if timed is not None)

    def untried(self, kernel: str) -> tuple[Change, ...]:
        """Changes to kernels that were not evaluated. Raises Spent."""
        return tuple(step for step in self.steps(kernel) if step.child not in self._timed)

    def steps(self, kernel: str) -> tuple[Change, ...]:
        """Raises Spent."""
        if kernel not in self._steps:
            if len(self._steps) >= self._looked_at:
                raise Spent
            self._steps[kernel], seconds = self._graph.steps(kernel)
            self._seconds += seconds
        return self._steps[kernel]

    def price_us(self, kernel: str) -> float | None:
        """Of a right kernel that was evaluated what it took."""
        if (timed := self._timed.get(kernel)) is not None:
            return timed.us
        if kernel not in self._prices:
            self._prices[kernel], seconds = self._graph.price_us(kernel)
            self._seconds += seconds
        return self._prices[kernel]

    def time(self, kernel: str) -> Timed | None:
        """Verified and timed; None where it is wrong, which costs as much. Raises Spent."""
        if kernel not in self._timed:
            if self.evaluations >= self._most:
                raise Spent
            timed, seconds = self._graph.timed(kernel)
            self._seconds += seconds
            self._timed[kernel] = timed
            best_us = self.points[-1].us
            if timed is not None and timed.us < best_us:
                self.best, best_us = kernel, timed.us
            self.points.append(Point(self._seconds, best_us))
        return self._timed[kernel]
