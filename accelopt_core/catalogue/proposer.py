"""The four roles played by the built-in catalogue: no language model, the same round.

The planner searches from the parent's loop tree (`accelopt_core.rules`) and plans the whole way that it finds. A way
that did not win is tried again by half, and a single step that did not win is left out. Kernels that rest on a
contested fact of the machine are planned last, when no other one is left. All else follows from the numbers.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from accelopt_core.candidate import Plan
from accelopt_core.catalogue.kernel_trees import (
    KernelTrees,
    NoTree,
    PricedStep,
    StepDone,
    StepRefused,
    Wanted,
    Way,
    as_details,
    done_in,
    planned_from,
    steps_in,
    tried_from,
)
from accelopt_core.evaluation import Bottleneck, Measured
from accelopt_core.learning.by_numbers import NumbersReflector, NumbersSummarizer
from accelopt_core.optimization_memory import Experience
from accelopt_core.proposer import CannotRepair, Feedback, NothingToPlan, Proposer, RoundContext, UnusableReply
from ka_extensions.outcome import Outcome
from nki_sim.timing.ties import LEAST_GAIN, worth_a_round

NEAR_THE_BOUND = 0.02
"""Of the latency: with less left than twice the noise, the pricing costs more than it can find."""
MOST_TOLD = 10
"""Steps that a title tells one by one."""
MOST_PRICED_AGAIN = 400
"""Kernels, from what a search has found: it seldom left more than a step."""
SHARE_OF_TIME = 0.5
"""Of the run's time that is left, for one search: what it finds is still to be verified."""
MOST_SEARCHES = 8
"""For one plan, each without a step that an earlier one rested on."""


def catalogue_proposer(trees: KernelTrees, today: Callable[[], datetime.date], tie: float = LEAST_GAIN) -> Proposer:
    """`tie`: from which difference on, of the latency, predictions are in the right order (`nki_sim.timing.ties`)."""
    return Proposer(
        "catalogue",
        CataloguePlanner(trees, tie),
        CatalogueExecutor(trees),
        NumbersSummarizer(today),
        NumbersReflector(),
    )


class CataloguePlanner:
    def __init__(self, trees: KernelTrees, tie: float) -> None:
        self._trees = trees
        self._worth = worth_a_round(tie)
        self._found: dict[tuple[str, Wanted], Way] = {}

    def plan(self, context: RoundContext) -> Plan:
        """Raises NothingToPlan when no untried way promises a gain worth a round."""
        inputs = [result for _, result in context.measured[:1]]
        allowed = frozenset(what for result in (context.parent_result, *inputs) for what in result.contested)
        try:
            plan, withheld = self._planned(context, Wanted(allowed))
            if plan is None and withheld:
                measured = context.measured or ((context.parent, context.parent_result),)
                fastest, _ = min(measured, key=lambda pair: pair[1].latency_us)
                plan, _ = self._planned(context.started_from(fastest.id), Wanted(None))
        except NoTree as error:
            raise NothingToPlan(
                f"the catalogue cannot read this kernel: {error}; use a language model instead"
            ) from error
        if plan is None:
            raise NothingToPlan(
                f"the catalogue has no idea left that gains {100 * self._worth:.2g} %: less is a tie by simulation"
            )
        return replace(plan, parent_id=None) if plan.parent_id == context.parent.id else plan

    def _planned(self, context: RoundContext, wanted: Wanted) -> tuple[Plan | None, bool]:
        """And whether a kernel was left out for a contested fact. Raises NothingToPlan near the bound, and NoTree."""
        headroom = 1 - _floor_us(context.best_result) / context.best_result.latency_us
        if headroom < NEAR_THE_BOUND:
            raise NothingToPlan(f"the best kernel is within {100 * headroom:.1f} % of the bound")
        tried, planned = tried_from(context), planned_from(context)
        excluded = _did_not_win(context)
        wanted = replace(wanted, enough_us=_floor_us(context.best_result) / (1 - NEAR_THE_BOUND))
        if wanted.allowed is not None and _is_found_by_a_search(context):
            wanted = replace(wanted, most_priced=MOST_PRICED_AGAIN)
        withheld = False
        for _ in range(MOST_SEARCHES):
            way = self._way(context, replace(wanted, excluded=excluded))
            withheld |= way.withheld
            if not self._gains(way.steps):
                break
            done = tuple(step.done for step in way.steps)
            if done in planned:
                excluded |= {max(way.steps, key=lambda step: step.gain_us).done}
                continue
            shortest = done
            for steps in _halves(way.steps):
                these = tuple(step.done for step in steps)
                if these in tried or these in planned:
                    shortest = these
                elif self._gains(steps):
                    return _plan(context, way, steps), withheld
            excluded |= {shortest[-1]}
        return None, withheld

    def _way(self, context: RoundContext, wanted: Wanted) -> Way:
        key = context.parent.source, wanted
        if key not in self._found:
            left_s = SHARE_OF_TIME * max(0.0, context.until - time.monotonic())
            way = self._found[key] = self._trees.way(context.parent.source, wanted, left_s)
            if way.complete:
                end = Way((), way.source, way.after_us, way.after_us, 0, way.withheld, complete=True)
                self._found.setdefault((way.source, wanted), end)
        return self._found[key]

    def _gains(self, steps: Sequence[PricedStep]) -> bool:
        """By so much that predictions can tell?"""
        return bool(steps) and _gain_us(steps) >= self._worth * steps[0].before_us


def _halves(steps: Sequence[PricedStep]) -> Iterator[Sequence[PricedStep]]:
    length = len(steps)
    while length:
        yield steps[:length]
        length //= 2


def _gain_us(steps: Sequence[PricedStep]) -> float:
    return sum(step.gain_us for step in steps)


_WON = (Outcome.IMPROVED, Outcome.KEPT)


def _did_not_win(context: RoundContext) -> frozenset[StepDone]:
    """Single steps that this run tried, or that memory knows of this very task."""
    tried = {
        done
        for attempt in context.history
        if attempt.plan is not None and not attempt.is_open and attempt.outcome not in _WON
        for done in [done_in(attempt.plan.details)]
        if len(done) == 1
    }
    here = [each for each in context.experiences if each.kernel == context.task.name and not each.is_win]
    known = {(each.technique, each.title) for each in here if _strength_of(each) > 0}
    return frozenset(known).union(*tried)


def _is_found_by_a_search(context: RoundContext) -> bool:
    """Is the parent a way's end?"""
    made = (each for each in context.history if each.candidate is not None and each.candidate.id == context.parent.id)
    return any(each.plan is not None and each.plan.by_tool for each in made)


def _floor_us(best: Measured) -> float:
    """What no kernel can be faster than; 0 where no bound is declared."""
    bounds = best.profile.bounds
    return bounds.floor_us if bounds.source == "declared" else 0.0


def _plan(context: RoundContext, way: Way, steps: Sequence[PricedStep]) -> Plan:
    bottleneck = context.parent_result.bottleneck
    technique = _technique(steps)
    rationale = list(_explained(steps))
    memory, follows = _remembered(technique, bottleneck, context)
    rationale += [memory] if memory else []
    rationale.append(f"The best of {way.priced} kernels that were priced on the way.")
    return Plan(
        id=f"plan-{context.round:03d}",
        title=_title(steps),
        technique=technique,
        bottleneck=bottleneck,
        expected_gain_us=max(0.0, _gain_us(steps)),
        rationale=" ".join(rationale),
        details=as_details(steps),
        parent_id=context.parent.id,
        by_tool=True,
        follows=follows,
    )


def _title(steps: Sequence[PricedStep]) -> str:
    if len(steps) <= MOST_TOLD:
        return ", then ".join(step.what for step in steps)
    times = Counter(step.name.rule for step in steps)
    names = (f"{name} x{times[name]}" if times[name] > 1 else name for name in times)
    return f"{len(steps)} steps at once: {', '.join(names)}"


def _technique(steps: Sequence[PricedStep]) -> str:
    """The rule that gains most."""
    gains: dict[str, float] = {}
    for step in steps:
        gains[step.name.rule] = gains.get(step.name.rule, 0.0) + step.gain_us
    return max(gains, key=lambda name: gains[name])


def _explained(steps: Sequence[PricedStep]) -> Iterator[str]:
    """A sentence for each step: what it does, why that is faster, and what it comes to."""
    told: set[str] = set()
    for number, step in enumerate(steps, 1):
        which = f"Step {number}, {step.what}" if len(steps) > 1 else step.what[:1].upper() + step.what[1:]
        why = f" ({step.why.rstrip('.')})" if step.why and step.why not in told else ""
        told.add(step.why)
        assert step.after_us is not None, "a way runs on the machine"
        yield f"{which}{why}: simulated at the full shape, {step.before_us:,.1f} µs become {step.after_us:,.1f} µs."


def _remembered(technique: str, bottleneck: Bottleneck, context: RoundContext) -> tuple[str, tuple[str, ...]]:
    """What memory says of a technique, as a sentence, and the key of what says so; may be nothing."""
    same = [e for e in context.experiences if e.technique == technique]
    for experience in same:
        if experience.kernel == context.task.name and experience.is_win:
            return f"Memory: {technique} won on this task before ({_strength(experience)}).", (experience.key,)
    on_bottleneck = [e for e in same if e.bottleneck == bottleneck.value]
    wins = [e for e in on_bottleneck if e.is_win]
    losses = [e for e in on_bottleneck if not e.is_win]
    if _trust(wins) > _trust(losses):
        won = f"Memory: {technique} won on {bottleneck.value} kernels before ({_strength(wins[0])})."
        return won, (wins[0].key,)
    if losses:
        return f"Memory: {technique} did not pay on {bottleneck.value} kernels before.", (losses[0].key,)
    return "", ()


def _trust(experiences: Iterable[Experience]) -> int:
    return sum(map(_strength_of, experiences))


def _strength_of(experience: Experience) -> int:
    return experience.confirmed - experience.refuted


def _strength(experience: Experience) -> str:
    times = "once" if experience.confirmed == 1 else f"{experience.confirmed} times"
    speedup = f"{experience.speedup:.2f}x, " if experience.speedup is not None else ""
    return f"{speedup}measured {times}"


class CatalogueExecutor:
    def __init__(self, trees: KernelTrees) -> None:
        self._trees = trees

    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        """Raises UnusableReply when the plan's site is gone, CannotRepair when its result was refused."""
        if feedback:
            raise CannotRepair(f"the catalogue has no second version of {plan.technique}: {feedback[-1].message}")
        steps = [name for name, _ in steps_in(plan.details)]
        if not steps:
            raise UnusableReply(f"plan {plan.id} was not made by the catalogue")
        try:
            return self._trees.carried_out(context.parent.source, steps)
        except (NoTree, StepRefused) as error:
            raise UnusableReply(f"{plan.technique} cannot be applied: {error}") from error
