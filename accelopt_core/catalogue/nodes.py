"""Kernels on the way from a measured one: what was priced, what is found at the end, and what may still be priced."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from accelopt_core.candidate import Candidate
from accelopt_core.catalogue.rewrites import Rewrite, SiteName
from accelopt_core.evaluation import Measured
from accelopt_core.proposer import RoundContext
from accelopt_core.transforms.base import Site


@dataclass(frozen=True)
class LookAhead:
    """How far the search goes once the nearest kernels hold nothing."""

    most_kernels: int = 60
    """Two steps away, priced for one plan; what was priced once is remembered."""
    most_work: int = 20_000_000
    """For one plan, in instructions of the kernels that are priced; that a kernel is looked at counts as some of them
    (LOOKING, STARTING). Not in seconds: what is found depends neither on how fast a machine is nor on how busy."""
    roots: int = 3
    """Measured kernels to start from, the fastest first."""
    explore_within: float = 1.5
    """Kernels slower than the best by more than this factor, measured or one step away, are not gone on from."""
    least_headroom: float = 0.05
    """Of the best latency, above the floor that no kernel can beat: for less, two steps away is not looked at."""
    longest_sum: int = 6
    """Steps whose gains are added up."""
    longest_way: int = 40
    """Steps from the input kernel, when it is gone on from in another order; 0: it is not."""
    most_together: int = 8
    """Sites of one transform that one plan takes."""


LOOKING = 30_000
"""Instructions that could be priced in the time it takes to find the steps from one kernel, about."""
STARTING = 8_000
"""The same of a process that compiles a kernel."""

LEAST_SUMMAND = 0.002
"""Of the latency: a step that gains less is not worth its lines, also as one of several."""


MOST_TOLD = 10
"""Steps that a title tells one by one."""


@dataclass(frozen=True)
class Idea:
    """A path from a measured kernel to one that is predicted to be faster than the best."""

    root: Candidate
    path: tuple[Site, ...]
    """Each priced: what it gains over the kernel before it, which may be less than nothing."""
    root_us: float
    after_us: float
    source: str
    """The kernel at its end."""

    @property
    def gain_us(self) -> float:
        """Over the root."""
        return self.root_us - self.after_us

    @property
    def title(self) -> str:
        if len(self.path) <= MOST_TOLD:
            return ", then ".join(site.what for site in self.path)
        times = Counter(site.transform for site in self.path)
        names = (f"{name} x{times[name]}" if times[name] > 1 else name for name in times)
        return f"{len(self.path)} steps from {self.root.id} at once: {', '.join(names)}"

    @property
    def technique(self) -> str:
        """Of a long way the transform that gains most along it."""
        if len(self.path) <= MOST_TOLD:
            return self.path[-1].transform
        gains: dict[str, float] = {}
        for site in self.path:
            gains[site.transform] = gains.get(site.transform, 0.0) + (site.predicted_gain_us or 0.0)
        return max(gains, key=lambda name: gains[name])

    @property
    def names(self) -> tuple[SiteName, ...]:
        return tuple(SiteName(site.transform, site.key) for site in self.path)


@dataclass(frozen=True)
class Node:
    """A kernel that was priced on the way."""

    root: Candidate
    root_us: float
    path: tuple[Site, ...]
    source: str
    us: float


def node_after(node: Node, step: Rewrite, us: float) -> Node:
    return Node(node.root, node.root_us, (*node.path, step.site.priced(node.us - us)), step.source, us)


def name_of_step(step: Rewrite) -> SiteName:
    return name_of_site(step.site)


def name_of_site(site: Site) -> SiteName:
    return SiteName(site.transform, site.key)


def idea_of(node: Node) -> Idea:
    return Idea(node.root, node.path, node.root_us, node.us, node.source)


def left_s(context: RoundContext) -> float:
    return max(0.0, context.until - time.monotonic())


class Allowance:
    """What is left of the work and of the number of kernels that one plan may price."""

    def __init__(self, look_ahead: LookAhead, context: RoundContext) -> None:
        self._context = context
        self._work = look_ahead.most_work
        self._looked_at: set[str] = set()
        self._each = STARTING + _instructions_of(context.parent_result)
        self.left = look_ahead.most_kernels
        self.priced = 0
        self.gone_through: set[str] = set()
        """Kernels one step away, by source: two measured ones may lead to the same."""

    @property
    def is_over(self) -> bool:
        return self._work < self._each or not self.left or left_s(self._context) <= 0

    def affordable(self, source: str, kernels: int) -> int:
        """How many of the steps from a kernel are priced. What is known already counts too: what is found does not
        depend on what earlier rounds asked for."""
        if source not in self._looked_at:
            self._looked_at.add(source)
            self._work -= LOOKING
        kernels = max(0, min(kernels, self._work // self._each))
        self._work -= kernels * self._each
        return kernels


def _instructions_of(result: Measured) -> int:
    """Of a measured kernel, transfers among them; 0 where its profile does not tell."""
    return int(sum(n for name, n in result.profile.fields.items() if name in _COUNTS))


_ENGINES = ("tensor", "vector", "scalar", "gpsimd")
_COUNTS = frozenset({"dma_transfer_count", *(f"{engine}_engine_instruction_count" for engine in _ENGINES)})
