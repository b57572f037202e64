"""A whole way by prediction alone, from the input kernel down to where no step gains.

What a run does first shuts out what it might have done. So once it has no idea left, the way is gone again in another
order: first all that leaves less work and costs nothing, also where it gains nothing yet, then what gains most, two
steps at once where no single one gains. Where that ends no better than the best kernel, a second time with all that
leaves less work though a price is told for it: one instruction less may be predicted to cost, when the order of the
others is worse for it, and two less to gain. Only what ends ahead of the best kernel is a plan, with all its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accelopt_core.candidate import Candidate, source_hash
from accelopt_core.catalogue.look_ahead import Search, tried
from accelopt_core.catalogue.nodes import (
    LEAST_SUMMAND,
    Allowance,
    Idea,
    LookAhead,
    Node,
    idea_of,
    name_of_site,
    name_of_step,
)
from accelopt_core.catalogue.rewrites import Rewrite, SiteName, carried_out
from accelopt_core.proposer import RoundContext
from accelopt_core.transforms.base import Site, TransformError
from accelopt_core.transforms.registry import LESS_WORK

NEAREST = 12
"""Kernels a step away that two steps at once may begin with."""
NEARBY = 1.05
"""And by how much those may be slower."""
COSTS_NOTHING, COSTS_LITTLE = 1 + LEAST_SUMMAND, 1.15
"""What a step that leaves less work may make of the latency, the first time and the second."""


class Descent:
    """Remembers what it found: the same in every round of a run."""

    def __init__(self, search: Search, look_ahead: LookAhead) -> None:
        self._search = search
        self._look_ahead = look_ahead
        self._found: dict[str, Idea | None] = {}

    def another_way(self, context: RoundContext, best_us: float) -> Idea | None:
        """From the run's input kernel to a kernel that is predicted to beat the best one by more than a tie."""
        root = context.measured[0][0] if context.measured else context.parent
        if root.content_hash not in self._found:
            self._found[root.content_hash] = self._way(context.started_from(root.id), root, best_us)
        idea = self._found[root.content_hash]
        if idea is None or not self._search.beats(idea.after_us, best_us):
            return None
        return None if tried(context, root, source_hash(idea.source), idea.title) else idea

    def _way(self, context: RoundContext, root: Candidate, best_us: float) -> Idea | None:
        """The fastest end of those that were looked for."""
        root_us = self._search.price_us(root.source)
        if root_us is None:
            return None
        allowed = Allowance(self._look_ahead, context)
        fastest = Node(root, root_us, (), root.source, root_us)
        for at_most in (COSTS_NOTHING, COSTS_LITTLE):
            start = Node(root, root_us, (), root.source, root_us)
            clean = self._down(context, start, allowed, lambda step: step.site.transform in LESS_WORK, at_most)
            end = self._down(context, clean, allowed, lambda step: True, 1 - LEAST_SUMMAND)
            fastest = min(fastest, end, key=lambda node: node.us)
            if self._search.beats(fastest.us, best_us):
                break
        return idea_of(self._without_what_is_idle(context, fastest)) if fastest.path else None

    def _down(
        self, context: RoundContext, node: Node, allowed: Allowance, wanted: Callable[[Rewrite], bool], at_most: float
    ) -> Node:
        """The fastest wanted step, again and again, while that takes at most so much of the time before it."""
        seen = {node.source}
        while len(node.path) < self._look_ahead.longest_way and not allowed.is_over:
            around, known = self._around(context, node, allowed, wanted)
            ways = [child for child in around if child.source not in seen and child.us <= at_most * node.us]
            if not ways and at_most < 1:
                ways = self._two_steps(context, node, around, known, allowed, at_most)
            if not ways:
                break
            node = min(ways, key=lambda child: child.us)
            seen.add(node.source)
        return node

    def _around(
        self, context: RoundContext, node: Node, allowed: Allowance, wanted: Callable[[Rewrite], bool]
    ) -> tuple[list[Node], set[SiteName]]:
        """What the wanted steps lead to, from the kernel as it stands and from its normal forms; and their names."""
        around: list[Node] = []
        known: set[SiteName] = set()
        for start in self._search.forms(context, node):
            legal = [step for step in self._search.legal(start.source, context) if wanted(step)]
            around += self._search.priced(
                context, start, [step for step in legal if name_of_step(step) not in known], allowed
            )
            known |= {name_of_step(step) for step in legal}
        return around, known

    def _two_steps(
        self,
        context: RoundContext,
        node: Node,
        around: Sequence[Node],
        known: set[SiteName],
        allowed: Allowance,
        at_most: float,
    ) -> list[Node]:
        """What a first step opens, where the two gain: of the fastest first step that opens such."""
        near = [child for child in around if child.us <= NEARBY * node.us]
        for child in sorted(near, key=lambda each: each.us)[:NEAREST]:
            if allowed.is_over:
                break
            opened = [step for step in self._search.legal(child.source, context) if name_of_step(step) not in known]
            after = self._search.priced(context, child, opened, allowed)
            if ways := [each for each in after if each.us <= at_most * node.us]:
                return ways
        return []

    def _without_what_is_idle(self, context: RoundContext, end: Node) -> Node:
        """Without the steps that the end is as fast without: of kernels that tie the simpler one."""
        start = Node(end.root, end.root_us, (), end.root.source, end.root_us)
        slowest_us = (1 + LEAST_SUMMAND) * end.us
        left = list(end.path)
        for site in reversed(end.path):
            if (site.predicted_gain_us or 0.0) >= LEAST_SUMMAND * end.us:
                continue
            fewer = [each for each in left if each is not site]
            us = self._ends_at_us(context, end.root, fewer)
            if us is not None and us <= slowest_us:
                left = fewer
        node: Node | None = start
        for site in left if len(left) < len(end.path) else ():
            node = self._search.after(node, site, context) if node is not None else None
        return node if node is not None and node.path else end

    def _ends_at_us(self, context: RoundContext, root: Candidate, sites: Sequence[Site]) -> float | None:
        try:
            source = carried_out(root.source, [name_of_site(site) for site in sites], context.task.around)
        except TransformError:  # a later step rests on the one that is left out
            return None
        return self._search.price_us(source)
