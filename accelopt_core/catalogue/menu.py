"""The built-in catalogue as named tools in a language model's menu.

The planner is shown the steps that the catalogue could take from the kernel, priced on the simulated machine; it may
name one of them instead of describing a change, and then no model has to write it. Gains that the predictions cannot
tell from nothing are shown as ties, after all others: two of them may still add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from accelopt_core.candidate import Plan, source_hash
from accelopt_core.catalogue.explaining import LIMIT_S, joined
from accelopt_core.catalogue.kernel_trees import (
    KernelTrees,
    NoTree,
    PricedStep,
    SingleSteps,
    StepName,
    StepRefused,
    as_details,
    planned_from,
    steps_in,
    tried_from,
)
from accelopt_core.explanation import heading, stops
from accelopt_core.model.answers import MalformedAnswer, microseconds_field, text_field
from accelopt_core.model.menu import Blocked, Offer, Offers, ToolFailed
from accelopt_core.proposer import RoundContext
from nki_sim.timing.ties import LEAST_GAIN, best_first, worth_a_round

MOST_OFFERS = 8
MOST_SITES = 2
"""Of one tool, while others have changes to offer."""
LEAST_PERCENT = 5.0
"""Of the latency: of smaller gaps a model is not told what stops the tools ..."""
MOST_REASONS = 4
"""... and of each gap no more reasons than this."""


class StepBook(Protocol):
    """Keeps what was priced within the time there was, so that a resumed or replayed run shows the same menu."""

    def recall(self, kernel: str) -> SingleSteps | None: ...

    def keep(self, kernel: str, steps: SingleSteps) -> None: ...


class CatalogueMenu:
    """See `accelopt_core.model.menu.Menu`."""

    def __init__(
        self, trees: KernelTrees, limit_s: float = LIMIT_S, book: StepBook | None = None, tie: float = LEAST_GAIN
    ) -> None:
        """`limit_s`: for pricing one kernel's steps. `tie`: from which difference on, of the latency, predictions are
        in the right order."""
        self._trees = trees
        self._limit_s = limit_s
        self._book = book
        self._tie = tie
        self._known: dict[str, SingleSteps | str] = {}

    def offers(self, context: RoundContext) -> Offers:
        """The best untried, unbanned steps from the parent."""
        found = self._steps(context.parent.source)
        if isinstance(found, str):
            return Offers(note=f"the catalogue cannot read this kernel: {found}")
        banned = {ban.technique for ban in context.banned}
        tried = tried_from(context) | planned_from(context)
        before_us = found.latency_us
        worth = [
            step
            for step in found.steps
            if step.gain_us >= LEAST_GAIN * before_us
            and step.name.rule not in banned
            and (step.done,) not in tried
        ]  # fmt: skip
        tie_us = self._tie * before_us
        order = best_first(worth, lambda step: step.gain_us, tie_us, lambda step: -step.gain_us)
        no_better = {step.name for step in worth if step.gain_us < worth_a_round(self._tie) * before_us}
        ranked = sorted(order, key=lambda step: step.name in no_better)
        places = [sum(other.name.rule == step.name.rule for other in ranked[:at]) for at, step in enumerate(ranked)]
        chosen = sorted(range(len(ranked)), key=lambda at: places[at] >= MOST_SITES)[:MOST_OFFERS]
        best = [ranked[at] for at in sorted(chosen)]
        return Offers(
            offers=tuple(_offer(step, step.name in no_better) for step in best),
            tools={step.name.rule: step.why for step in best},
            not_priced=found.not_priced,
            tie_us=tie_us,
            blocked=self._blocked(context, found),
            left_out=len(ranked) - len(best),
        )

    def best_gain_us(self, context: RoundContext) -> float | None:
        """What the best of the offers is predicted to gain, 0 where none gains more than a tie; None: nobody knows."""
        offers = self.offers(context)
        gains = [offer.gain_us for offer in offers.offers if not offer.tie]
        return None if offers.note else max(gains, default=0.0)

    def _blocked(self, context: RoundContext, found: SingleSteps) -> tuple[Blocked, ...]:
        """What stands between the tools and the larger gaps; what they offer is on the menu itself."""
        explanation = joined(context.parent, context.parent_result, found, context.history, self._tie)
        large = [gap for gap in explanation.gaps if gap.percent >= LEAST_PERCENT]
        stopped = {gap: stops(gap)[:MOST_REASONS] for gap in large}
        return tuple(Blocked(heading(gap), reasons) for gap, reasons in stopped.items() if reasons)

    def tool_plan(self, answer: Mapping[str, Any], context: RoundContext, plan_id: str) -> Plan:
        """The plan of an answer that names a tool. Raises MalformedAnswer with the complaint for the model."""
        tool = text_field(answer, "tool", longest=80)
        site = text_field(answer, "site", longest=200)
        name = StepName(tool, site)
        try:
            made = self._trees.carried_out(context.parent.source, [name])
        except (NoTree, StepRefused) as error:
            sites = ", ".join(offer.site for offer in self.offers(context).offers if offer.tool == tool)
            raise MalformedAnswer(
                f"tool {tool} cannot be used at site {site!r} of the current kernel ({error}); its sites: "
                f"{sites or 'none on the menu'}. Copy tool and site from the menu, or describe a change of your own "
                "without them"
            ) from error
        for attempt in context.history:
            if attempt.content_hash == source_hash(made) and not attempt.is_open:
                raise MalformedAnswer(
                    f"tool {tool} at site {site} makes the kernel that round {attempt.round} tried "
                    f"({attempt.outcome}): choose another change"
                )
        found = self._steps(context.parent.source)
        known = [step for step in found.steps if step.name == name] if isinstance(found, SingleSteps) else []
        title = " ".join(text_field(answer, "title", longest=200).split()) if not known else known[0].what
        gain_us = max(0.0, known[0].gain_us) if known else microseconds_field(answer, "expected_gain_us")
        details = as_details(known or [PricedStep(name, title, "", (), gain_us, 0.0)])
        if any((plan.parent_id or context.parent.id, plan.details) == (context.parent.id, details)
               for plan in context.planned):  # fmt: skip
            raise MalformedAnswer(
                f"tool {tool} at site {site} is being tried in this round already: choose another change"
            )
        return Plan(
            id=plan_id,
            title=title,
            technique=tool,
            bottleneck=context.parent_result.bottleneck,
            expected_gain_us=gain_us,
            rationale=text_field(answer, "rationale", longest=4_000),
            details=details,
            by_tool=True,
        )

    def carried_out(self, context: RoundContext, plan: Plan) -> str | None:
        """None for a plan that a model described. Raises ToolFailed."""
        steps = [name for name, _ in steps_in(plan.details)]
        if not steps:
            return None
        try:
            return self._trees.carried_out(context.parent.source, steps)
        except (NoTree, StepRefused) as error:
            raise ToolFailed(str(error)) from error

    def _steps(self, source: str) -> SingleSteps | str:
        """Once for each kernel: what the time did not suffice for then is not offered later either. A text says why
        there are none."""
        kernel = source_hash(source)
        if kernel not in self._known:
            known = self._book.recall(kernel) if self._book is not None else None
            if known is None:
                try:
                    known = self._trees.single_steps(source, self._limit_s)
                except NoTree as error:
                    self._known[kernel] = str(error)
                    return str(error)
                if self._book is not None:
                    self._book.keep(kernel, known)
            self._known[kernel] = known
        return self._known[kernel]


def _offer(step: PricedStep, tie: bool) -> Offer:
    return Offer(step.name.rule, step.name.site, step.what, step.why, step.gain_us, tie)
