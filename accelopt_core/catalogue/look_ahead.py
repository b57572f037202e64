"""Best-first search over the graph of kernels: nodes are kernels, edges are legal steps, prices are predictions.

Nodes that were measured are the roots. From the kernel a round starts with, one of the steps that gain is taken. When
none gains more than a tie, small gains are added up, one after the other, until they do together. When that fails too,
the search goes on from the measured kernels, the best first, one step further: a step that gains nothing by itself may
open another that does. A kernel's normal form is where steps may begin, as well as at the kernel as it stands. Nothing
is compiled for real here; what is found is only planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Protocol

from accelopt_core.candidate import Candidate
from accelopt_core.catalogue.nodes import (
    LEAST_SUMMAND,
    Allowance,
    Idea,
    LookAhead,
    Node,
    idea_of,
    left_s,
    name_of_site,
    name_of_step,
    node_after,
)
from accelopt_core.catalogue.rewrites import Predict, Rewrite, SiteName, legal_rewrites
from accelopt_core.evaluation import Measured
from accelopt_core.proposer import RoundContext
from accelopt_core.toolchain import ArgumentSpec
from accelopt_core.transforms.base import AnalysisContext, KernelModule, NotAKernel, Site, Transform, parse_kernel
from accelopt_core.transforms.normalize import NORMALIZE
from nki_sim.ties import LEAST_GAIN, worth_a_round


class Gainless(Protocol):
    """Sites of a measured kernel at which there was nothing to gain, by its content; kept where a run is."""

    def of(self, kernel: str) -> frozenset[SiteName]: ...

    def add(self, kernel: str, sites: Iterable[SiteName]) -> None: ...


class GainlessHere:
    """For as long as this process works."""

    def __init__(self) -> None:
        self._known: dict[str, frozenset[SiteName]] = {}

    def of(self, kernel: str) -> frozenset[SiteName]:
        return self._known.get(kernel, frozenset())

    def add(self, kernel: str, sites: Iterable[SiteName]) -> None:
        self._known[kernel] = self.of(kernel) | frozenset(sites)


class Search:
    def __init__(
        self,
        predict: Predict,
        transforms: tuple[Transform, ...],
        look_ahead: LookAhead,
        tie: float = LEAST_GAIN,
        arguments: Callable[[], tuple[tuple[ArgumentSpec, ...], ...]] = tuple,
        gainless: Gainless | None = None,
    ) -> None:
        """`tie`: from which difference on, of the latency, predictions are in the right order. `arguments`: of the
        kernel, as `AnalysisContext` has them."""
        self._arguments = arguments
        self._predict = predict
        self._transforms = tuple(each for each in transforms if each is not NORMALIZE)
        self._begins_normal = NORMALIZE in transforms
        self._look_ahead = look_ahead
        self._worth = worth_a_round(tie)
        self._steps: dict[str, tuple[Rewrite, ...]] = {}
        """Of kernels that no profile is known of, by source: the same in every round."""
        self._gainless = gainless if gainless is not None else GainlessHere()
        self._normal: dict[str, tuple[Rewrite, ...]] = {}
        """Normal forms by source; none for a kernel that is in it."""

    def priced_by(self, predict: Predict) -> Search:
        """The same search by other prices: it knows the steps and the sites without gain that this one finds."""
        other = copy(self)
        other._predict = predict
        return other

    def price_us(self, source: str) -> float | None:
        return self._predict([source])[source]

    def beats(self, us: float, best_us: float) -> bool:
        """By so much that predictions can tell?"""
        return us <= (1 - self._worth) * best_us

    def is_tie(self, idea: Idea) -> bool:
        """Does it gain too little for predictions to tell it from the kernel it starts from?"""
        return idea.gain_us < self._worth * idea.root_us

    def single_steps(self, context: RoundContext) -> tuple[int, list[Idea]]:
        """How many untried sites of the parent were priced, and those that promise a gain, were it a tie.

        Sites at which the kernel that the parent was made from had nothing to gain wait until no other one promises
        more than a tie: most of them still have nothing. Raises NotAKernel.
        """
        parent = context.parent
        before_us = self.price_us(parent.source)
        if before_us is None:
            return 0, []
        starts = self._starts(context, parent, before_us)
        made_from = next((other.content_hash for other, _ in context.measured if other.id == parent.parent_id), "")
        waiting = self._gainless.of(made_from)
        count, ideas = self._steps_from(context, starts, before_us, lambda name: name not in waiting)
        if not waiting:
            return count, ideas
        if not all(self.is_tie(idea) for idea in ideas):
            self._gainless.add(parent.content_hash, waiting)
            return count, ideas
        more, others = self._steps_from(context, starts, before_us, lambda name: name in waiting)
        known = {idea.source for idea in ideas}
        return count + more, ideas + [idea for idea in others if idea.source not in known]

    def _steps_from(
        self, context: RoundContext, starts: Sequence[Node], before_us: float, wanted: Callable[[SiteName], bool]
    ) -> tuple[int, list[Idea]]:
        result = context.parent_result
        analysis = AnalysisContext(result.bottleneck, result.profile.fields)
        count, ideas = 0, []
        known: set[SiteName] = set()
        for start in starts:
            legal = legal_rewrites(_parsed(start.source, context), analysis, self._transforms, wanted)
            steps = _untried(context, start, [step for step in legal if name_of_step(step) not in known])
            known |= {name_of_step(step) for step in legal}
            prices = self._predict([step.source for step in steps], left_s(context))
            count += len(steps)
            nodes = [node_after(start, step, us) for step in steps if (us := prices.get(step.source)) is not None]
            gaining = {name_of_site(node.path[-1]) for node in nodes if node.us <= (1 - LEAST_SUMMAND) * start.us}
            gainless = {name_of_step(step) for step in steps if step.source in prices} - gaining
            self._gainless.add(context.parent.content_hash, gainless)
            nodes += [start] if start.path else []
            ideas += _ideas(nodes, (1 - LEAST_SUMMAND) * before_us)
        return count, ideas

    def summed(self, context: RoundContext, ties: Sequence[Idea]) -> list[Idea]:
        """From steps that are ties with their kernel: the first chain of such that is none; at most one.

        Each chain takes the step that gains most, and the greatest first step is begun with.
        """
        allowed = Allowance(self._look_ahead, context)
        for first in sorted(ties, key=lambda idea: idea.after_us):
            node = Node(first.root, first.root_us, first.path, first.source, first.after_us)
            while len(node.path) < self._look_ahead.longest_sum:
                allowed.left = (
                    self._look_ahead.most_kernels
                )  # of every kernel on the way: the next rounds need them too
                children = self._children(context, node, self.legal(node.source, context), allowed)
                gaining = [child for child in children if child.us <= (1 - LEAST_SUMMAND) * node.us]
                if not gaining:
                    break
                node = min(gaining, key=lambda child: child.us)
                idea = idea_of(node)
                if not self.is_tie(idea):
                    return [idea]
            if allowed.is_over:
                break
        return []

    def together(self, idea: Idea, others: Sequence[Idea], context: RoundContext) -> Idea:
        """A local idea, and with it others that do the same elsewhere, as far as each gains beside those before it.

        At least half of what it gains alone: what one move makes up for, another need not.
        """
        *before, last = idea.path
        alike = [o for o in others if o.root is idea.root and [*o.path[:-1]] == before and _does_as(o, last)]
        node = Node(idea.root, idea.root_us, idea.path, idea.source, idea.after_us)
        for other in sorted(alike, key=lambda each: each.after_us)[: 2 * self._look_ahead.most_together]:
            if left_s(context) <= 0:
                break
            wanted = other.path[-1]
            after = self.after(node, wanted, context)
            gains_us = wanted.predicted_gain_us or 0.0
            if after is None or node.us - after.us < max(gains_us / 2, LEAST_SUMMAND * node.us):
                continue
            node = after
            if len(node.path) - len(before) == self._look_ahead.most_together:
                break
        return idea_of(node)

    def preceded(self, idea: Idea, others: Sequence[Idea], context: RoundContext) -> Idea:
        """The idea, and in front of it those others, each a tie by itself, that it gains more with.

        For a step that regroups iterations, which shuts most others out: `others` are what leaves less work, and are
        taken in front as long as the whole gains. What no longer has its place after them goes alone. What was found
        at the kernel as it stands is looked for in the normal form that the idea begins with.
        """
        found = idea
        front = self._start_of(idea, context)
        steps = idea.path[len(front.path) :]
        begins = ((), front.path)
        alike = [o for o in others if o.root is idea.root and o.source != idea.source and o.path[:-1] in begins]
        for other in sorted(alike, key=lambda each: each.after_us)[: self._look_ahead.longest_sum]:
            if left_s(context) <= 0:
                break
            whole = first = self.after(front, other.path[-1], context)
            for step in steps:
                whole = self.after(whole, step, context) if whole is not None else None
            if first is None or whole is None or whole.us > found.after_us - LEAST_SUMMAND * idea.after_us:
                continue
            front, found = first, idea_of(whole)
        return found

    def _start_of(self, idea: Idea, context: RoundContext) -> Node:
        """The form of its kernel that it begins at."""
        as_is, *forms = self._starts(context, idea.root, idea.root_us)
        return next((form for form in forms if form.path == idea.path[:1]), as_is)

    def after(self, node: Node, site: Site, context: RoundContext) -> Node | None:
        """After one more step, where that is still legal; priced."""
        legal = {step.site.key: step for step in self._of_kind(node.source, context, site.transform)}
        step = legal.get(site.key)
        us = self.price_us(step.source) if step is not None else None
        return None if step is None or us is None else node_after(node, step, us)

    def further(self, context: RoundContext) -> tuple[int, list[Idea]]:
        """How many kernels were priced, and the ideas of the first place that promises a gain over the best."""
        allowed = Allowance(self._look_ahead, context)
        best_us = self.price_us(context.best.source)
        if best_us is None:
            return 0, []
        for root, _ in self._roots(context):
            ideas = self._within_two_steps(context, root, best_us, allowed)
            if ideas or allowed.is_over:
                return allowed.priced, ideas
        return allowed.priced, []

    def _within_two_steps(
        self, context: RoundContext, root: Candidate, best_us: float, allowed: Allowance
    ) -> list[Idea]:
        """To the end, before the next kernel is begun: the best, which comes first, gets most of the time."""
        enough_us, too_slow_us = (1 - self._worth) * best_us, self._look_ahead.explore_within * best_us
        root_us = self.price_us(root.source)
        if root_us is None or root_us > too_slow_us:
            return []
        start = self._starts(context, root, root_us)[-1]  # more is legal from the normal form
        legal = self.legal(start.source, context)
        children = self._children(context, start, legal, allowed)
        if ideas := _ideas(children, enough_us):
            return ideas
        nodes = [node for node in children if node.us <= too_slow_us and node.source not in allowed.gone_through]
        allowed.gone_through |= {node.source for node in nodes}
        before = {name_of_step(step) for step in legal}
        # What a first step opens comes before what could have been done without it.
        for opened in (True, False):
            for node in sorted(nodes, key=lambda node: node.us):
                if allowed.is_over:
                    return []
                steps = [
                    step for step in self.legal(node.source, context) if (name_of_step(step) not in before) is opened
                ]
                if ideas := _ideas(self._children(context, node, steps, allowed), enough_us):
                    return ideas
        return []

    def _of_kind(self, source: str, context: RoundContext, transform: str) -> tuple[Rewrite, ...]:
        only = tuple(each for each in self._transforms if each.name == transform)
        return legal_rewrites(_parsed(source, context), AnalysisContext(), only)

    def _roots(self, context: RoundContext) -> list[tuple[Candidate, Measured]]:
        measured = context.measured or ((context.parent, context.parent_result),)
        return sorted(measured, key=lambda pair: pair[1].latency_us)[: self._look_ahead.roots]

    def _starts(self, context: RoundContext, root: Candidate, root_us: float) -> list[Node]:
        return self.forms(context, Node(root, root_us, (), root.source, root_us))

    def forms(self, context: RoundContext, node: Node) -> list[Node]:
        """The kernel as it stands, and its normal forms where those are others."""
        forms = [node]
        for form in self._normal_forms(node.source, context) if self._begins_normal else ():
            us = self.price_us(form.source)
            if us is not None:
                forms.append(node_after(node, form, us))
        return forms

    def _normal_forms(self, source: str, context: RoundContext) -> tuple[Rewrite, ...]:
        if source not in self._normal:
            try:
                known = AnalysisContext(arguments=self._arguments())
                found = legal_rewrites(_parsed(source, context), known, (NORMALIZE,))
            except NotAKernel:  # a model's kernel, among those measured
                found = ()
            self._normal[source] = found
        return self._normal[source]

    def _children(self, context: RoundContext, node: Node, legal: Sequence[Rewrite], allowed: Allowance) -> list[Node]:
        steps = _untried(context, node, legal)
        if any(site.transform != NORMALIZE.name for site in node.path):
            steps = steps[: allowed.left]
            allowed.left -= len(steps)
        return self.priced(context, node, steps, allowed)

    def priced(self, context: RoundContext, node: Node, steps: Sequence[Rewrite], allowed: Allowance) -> list[Node]:
        """The kernels after each of these steps, as far as the work is allowed; without those that do not compile."""
        steps = steps[: allowed.affordable(node.source, len(steps))]
        if not steps or left_s(context) <= 0:
            return []
        prices = self._predict([step.source for step in steps], left_s(context))
        allowed.priced += len(prices)
        made = []
        for step in steps:
            us = prices.get(step.source)
            if us is not None:
                made.append(node_after(node, step, us))
        return made

    def legal(self, source: str, context: RoundContext) -> tuple[Rewrite, ...]:
        """Every step from a kernel that no profile is known of; none from what the transforms cannot read."""
        if source not in self._steps:
            try:
                self._steps[source] = legal_rewrites(_parsed(source, context), AnalysisContext(), self._transforms)
            except NotAKernel:  # a model's kernel, among those measured
                self._steps[source] = ()
        return self._steps[source]


def _parsed(source: str, context: RoundContext) -> KernelModule:
    return parse_kernel(source, context.task.around.entry_points, context.task.around)


def tried(context: RoundContext, root: Candidate, content_hash: str, title: str) -> bool:
    """Whether this run has seen the kernel, or a change of this name to the same kernel, or is trying it right now."""
    if any((plan.parent_id or context.parent.id, plan.title) == (root.id, title) for plan in context.planned):
        return True
    return content_hash == root.content_hash or any(
        attempt.content_hash == content_hash or (attempt.parent_id == root.id and attempt.title == title)
        for attempt in context.history
        if not attempt.is_open
    )


def _untried(context: RoundContext, node: Node, steps: Sequence[Rewrite]) -> tuple[Rewrite, ...]:
    before = [site.what for site in node.path]
    return tuple(
        step
        for step in steps
        if not tried(context, node.root, step.content_hash, ", then ".join([*before, step.site.what]))
    )


def _does_as(idea: Idea, site: Site) -> bool:
    return idea.path[-1].transform == site.transform and idea.path[-1].key != site.key


def _ideas(nodes: Sequence[Node], enough_us: float) -> list[Idea]:
    return [idea_of(node) for node in nodes if node.us <= enough_us]
