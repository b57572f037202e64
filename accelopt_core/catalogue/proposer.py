"""The four roles played by the built-in catalogue: no language model, the same round.

The planner lists every legal site of every transform, prices each by simulating the result, and takes
the one that gains most, weighed by what memory says of it, or the simplest of those that tie with it (`ties.py`);
what leaves less work and the loops as they are comes before what regroups them. When there is none, it looks further
(`look_ahead.py`). Kernels that rest on a contested fact of the machine are planned last, when no other one is left.
All else follows from the numbers.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from accelopt_core.candidate import Plan, source_hash
from accelopt_core.catalogue.contested import RestsOn, WithoutContested, nothing_contested
from accelopt_core.catalogue.descent import Descent
from accelopt_core.catalogue.look_ahead import Gainless, Search, tried
from accelopt_core.catalogue.nodes import Idea, LookAhead
from accelopt_core.catalogue.rewrites import NotRewrites, Predict, as_details, carried_out, rewrites_in
from accelopt_core.evaluation import Bottleneck, Measured
from accelopt_core.learning.by_numbers import NumbersReflector, NumbersSummarizer
from accelopt_core.optimization_memory import Experience
from accelopt_core.proposer import (
    CannotRepair,
    Feedback,
    NothingToPlan,
    Proposer,
    RoundContext,
    UnusableReply,
)
from accelopt_core.toolchain import ArgumentSpec
from accelopt_core.transforms.base import NotAKernel, Transform, TransformError
from accelopt_core.transforms.registry import LESS_WORK, LOCAL, STEPS
from nki_sim.ties import LEAST_GAIN, best_first, lines_of_code, worth_a_round


def catalogue_proposer(
    predict: Predict,
    today: Callable[[], datetime.date],
    transforms: tuple[Transform, ...] = STEPS,
    look_ahead: LookAhead | None = None,
    tie: float = LEAST_GAIN,
    arguments: Callable[[], tuple[tuple[ArgumentSpec, ...], ...]] = tuple,
    gainless: Gainless | None = None,
    rests_on: RestsOn = nothing_contested,
) -> Proposer:
    """`tie`: from which difference on, of the latency, predictions are in the right order (`nki_sim.ties`).
    `arguments`: of the kernel, as `AnalysisContext` has them. `gainless`: None keeps it for this process alone.
    `rests_on`: see `WithoutContested`."""
    return Proposer(
        "catalogue",
        CataloguePlanner(predict, transforms, look_ahead or LookAhead(), tie, arguments, gainless, rests_on),
        CatalogueExecutor(),
        NumbersSummarizer(today),
        NumbersReflector(),
    )


@dataclass(frozen=True)
class _Weighed:
    idea: Idea
    weight: float
    memory: str
    """What memory says of it, as a sentence; may be empty."""
    follows: tuple[str, ...] = ()
    """The keys of what says it."""

    @property
    def gain_us(self) -> float:
        return self.weight * self.idea.gain_us

    @property
    def simpler(self) -> tuple[float, int, int]:
        """Of ties the least comes first. What was measured before counts before what only looks simpler."""
        return -self.weight, len(self.idea.path), lines_of_code(self.idea.source)


NEAR_THE_BOUND = 0.02
"""Of the latency: with less left than twice the noise, the pricing costs more than it can find."""


class CataloguePlanner:
    def __init__(
        self,
        predict: Predict,
        transforms: tuple[Transform, ...],
        look_ahead: LookAhead,
        tie: float,
        arguments: Callable[[], tuple[tuple[ArgumentSpec, ...], ...]],
        gainless: Gainless | None = None,
        rests_on: RestsOn = nothing_contested,
    ) -> None:
        self._look_ahead = look_ahead
        self._tie = tie
        self._uncontested = WithoutContested(predict, rests_on)
        self._search = Search(self._uncontested, transforms, look_ahead, tie, arguments, gainless)
        """Without kernels that rest on a contested fact which neither input nor parent rests on."""
        self._of_all = self._search.priced_by(predict)
        self._descent = Descent(self._search, look_ahead)

    def plan(self, context: RoundContext) -> Plan:
        """Raises NothingToPlan when no untried way promises a gain worth a round."""
        self._uncontested.allow(context.parent_result, *(result for _, result in context.measured[:1]))
        try:
            return self._planned(context, self._search)
        except NothingToPlan as nothing:
            if not self._uncontested.left_out:
                raise
            said = nothing
        measured = context.measured or ((context.parent, context.parent_result),)
        fastest, result = min(measured, key=lambda pair: pair[1].latency_us)
        start = replace(context.started_from(fastest.id), best=fastest, best_result=result)
        try:
            plan = self._planned(start, self._of_all)
        except NothingToPlan:
            raise said from None
        parent_id = plan.parent_id or fastest.id
        return replace(plan, parent_id=None if parent_id == context.parent.id else parent_id)

    def _planned(self, context: RoundContext, search: Search) -> Plan:
        """What rests on a contested fact is looked for no further than one step, or small ones added up."""
        headroom = _headroom(context.best_result)
        if headroom < NEAR_THE_BOUND:
            raise NothingToPlan(f"the best kernel is within {100 * headroom:.1f} % of the bound")
        try:
            if search.price_us(context.parent.source) is None:
                raise NothingToPlan(
                    "the catalogue prices its ideas on the simulated machine, which cannot compile this kernel; "
                    "use a language model instead"
                )
            sites, steps = search.single_steps(context)
        except NotAKernel as error:
            raise NothingToPlan(
                f"the catalogue cannot read this kernel: {error}; use a language model instead"
            ) from error
        ideas = [idea for idea in steps if not search.is_tie(idea)]
        seen = f"of {sites} untried sites"
        least = f"none with a predicted gain of {100 * worth_a_round(self._tie):g} %"
        if not ideas:
            ideas = search.summed(context, steps)
            seen = f"none of {sites} untried sites gains more than a tie; added up"
        if not ideas and search is self._of_all:
            raise NothingToPlan(f"none of {sites} untried sites gains, whether it rests on a contested fact or not")
        if not ideas and headroom < self._look_ahead.least_headroom:
            raise NothingToPlan(
                f"the catalogue has no idea left: {sites} untried sites, {least}, "
                f"and the bound is only {100 * headroom:.1f} % away"
            )
        if not ideas:
            kernels, ideas = search.further(context)
            seen = f"none of {sites} untried sites gains by itself; of {kernels} kernels further on"
        if not ideas:
            ideas = self._other_ways(context)
            seen = f"none of {sites} untried sites gains, and none of {kernels} kernels further on; of other ways"
        if not ideas:
            raise NothingToPlan(
                f"the catalogue has no idea left: {sites} untried sites, {least}, "
                f"and none of {kernels} kernels further on either{_out_of_reach(sites, context)}"
            )
        bottleneck = context.parent_result.bottleneck
        weighed = [_Weighed(idea, *_weigh(idea, bottleneck, context)) for idea in ideas]
        weighed.sort(key=lambda each: each.idea.title)
        tie_us = self._tie * min(idea.after_us for idea in ideas)
        order = _in_order(weighed, tie_us)
        first = order[0]
        refuted = {each.idea.source for each in weighed if each.weight < 1}
        others = [idea for idea in (*(each.idea for each in order[1:]), *steps) if idea.source not in refuted]
        technique = first.idea.path[-1].transform
        if technique in LOCAL:
            together = search.together(first.idea, others, context)
        elif technique not in LESS_WORK:
            less = [idea for idea in others if idea.path[-1].transform in LESS_WORK]
            together = search.preceded(first.idea, less, context)
        else:
            together = first.idea
        if not tried(context, together.root, source_hash(together.source), together.title):
            order[0] = replace(first, idea=together)
        return _plan(context, order, bottleneck, seen)

    def _other_ways(self, context: RoundContext) -> list[Idea]:
        best_us = self._search.price_us(context.best.source)
        idea = self._descent.another_way(context, best_us) if best_us is not None else None
        return [] if idea is None else [idea]


def _in_order(ideas: list[_Weighed], tie_us: float) -> list[_Weighed]:
    """What leaves less work and the loops as they are comes first, also where something else gains more: once
    iterations are regrouped, most of it is refused. What memory speaks against waits its turn."""
    first = [each for each in ideas if each.idea.path[-1].transform in LESS_WORK and each.weight >= 1]
    rest = [each for each in ideas if each not in first]
    return [
        each
        for part in (first, rest)
        for each in best_first(part, lambda each: each.gain_us, tie_us, lambda each: each.simpler)
    ]


def _out_of_reach(sites: int, context: RoundContext) -> str:
    """A kernel of a library is often a few calls of other functions."""
    if sites or not context.task.around.neighbours:
        return ""
    return "; it changes the kernel's own function and none that this calls: a language model can"


def _headroom(best: Measured) -> float:
    """What could still be gained at the very most, of the latency; 1 where no bound is declared."""
    bounds = best.profile.bounds
    return 1 - bounds.floor_us / best.latency_us if bounds.source == "declared" else 1.0


def _plan(context: RoundContext, ideas: list[_Weighed], bottleneck: Bottleneck, seen: str) -> Plan:
    idea = ideas[0].idea
    rationale = _steps_explained(idea)
    if ideas[0].memory:
        rationale.append(ideas[0].memory)
    ranked = "; ".join(f"{other.idea.title}: {other.idea.gain_us:,.1f} µs" for other in ideas[1:4])
    rationale.append(
        f"{seen[0].upper()}{seen[1:]}, {len(ideas)} promise a gain{f'; next: {ranked}' if ranked else ''}."
    )
    return Plan(
        id=f"plan-{context.round:03d}",
        title=idea.title,
        technique=idea.technique,
        bottleneck=bottleneck,
        expected_gain_us=max(0.0, idea.gain_us),
        rationale=" ".join(rationale),
        details=as_details(idea.names),
        parent_id=None if idea.root.id == context.parent.id else idea.root.id,
        by_tool=True,
        follows=ideas[0].follows,
    )


def _steps_explained(idea: Idea) -> list[str]:
    """A sentence for each step: why it is legal, which cost it takes away, and what that comes to."""
    sentences = []
    before_us = idea.root_us
    for number, site in enumerate(idea.path, 1):
        assert site.predicted_gain_us is not None
        after_us = before_us - site.predicted_gain_us
        which = f"Step {number}, {site.what}: legal" if len(idea.path) > 1 else "Legal"
        adds_up = site.predicted_gain_us > 0
        by_itself = "a tie; the next step adds to it" if adds_up else "this does not pay; it opens the next step"
        opens = f" (by itself {by_itself})" if number < len(idea.path) else ""
        sentences.append(
            f"{which} because {site.why_legal}. Faster because {site.why_faster}: simulated at the full shape, "
            f"{before_us:,.1f} µs become {after_us:,.1f} µs{opens}."
        )
        before_us = after_us
    return sentences


def _weigh(idea: Idea, bottleneck: Bottleneck, context: RoundContext) -> tuple[float, str, tuple[str, ...]]:
    """How much more (or less) than its predicted gain an idea counts, after what was measured before; why; and the keys
    of what says so. What misled where it was followed counts less, either way."""
    weight, memory, by = _weighed_by(idea, bottleneck, context)
    if by is None:
        return weight, memory, ()
    return 1 + (weight - 1) * min(1.0, by.usefulness), memory, (by.key,)


def _weighed_by(idea: Idea, bottleneck: Bottleneck, context: RoundContext) -> tuple[float, str, Experience | None]:
    technique = idea.technique
    same = [e for e in context.experiences if e.technique == technique]
    here = [e for e in same if e.kernel == context.task.name]
    for experience in here:
        if experience.title == idea.title:
            if experience.is_win:
                return 2.0, f"Memory: this very change won on this task before ({_strength(experience)}).", experience
            refused = f"Memory: this very change did not pay on this task before ({_strength(experience)})."
            return 0.1, refused, experience
    for experience in here:
        if experience.is_win:
            return 1.5, f"Memory: {technique} won on this task before ({_strength(experience)}).", experience
    on_bottleneck = [e for e in same if e.bottleneck == bottleneck.value]
    wins = [e for e in on_bottleneck if e.is_win]
    losses = [e for e in on_bottleneck if not e.is_win]
    if _trust(wins) > _trust(losses):
        won = f"Memory: {technique} won on {bottleneck.value} kernels before ({_strength(wins[0])})."
        return 1.2, won, wins[0]
    if losses:
        return 0.8, f"Memory: {technique} did not pay on {bottleneck.value} kernels before.", losses[0]
    return 1.0, "", None


def _trust(experiences: Iterable[Experience]) -> int:
    return sum(e.confirmed - e.refuted for e in experiences)


def _strength(experience: Experience) -> str:
    times = "once" if experience.confirmed == 1 else f"{experience.confirmed} times"
    speedup = f"{experience.speedup:.2f}x, " if experience.speedup is not None else ""
    return f"{speedup}measured {times}"


class CatalogueExecutor:
    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        """Raises UnusableReply when the plan's site is gone, CannotRepair when its result was refused."""
        if feedback:
            raise CannotRepair(f"the catalogue has no second version of {plan.technique}: {feedback[-1].message}")
        try:
            return carried_out(context.parent.source, rewrites_in(plan.details), context.task.around)
        except (NotRewrites, KeyError) as error:
            raise UnusableReply(f"plan {plan.id} was not made by the catalogue: {error}") from error
        except TransformError as error:
            raise UnusableReply(f"{plan.technique} cannot be applied: {error}") from error
