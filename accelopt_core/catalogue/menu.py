"""The built-in catalogue as named tools in a language model's menu.

The planner is shown the changes that the catalogue could make to the kernel, priced on the simulated machine; it may
name one of them instead of describing a change, and then no model has to write it. Gains that the predictions cannot
tell from nothing are shown as ties, after all others: two of them may still add up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Protocol

from accelopt_core.candidate import Plan, source_hash
from accelopt_core.catalogue.explaining import LIMIT_S, Analysis, analyzed, joined
from accelopt_core.catalogue.look_ahead import tried
from accelopt_core.catalogue.rewrites import (
    NotRewrites,
    Predict,
    Rewrite,
    SiteName,
    as_details,
    carried_out,
    rewrites_in,
)
from accelopt_core.explanation import heading, stops
from accelopt_core.model.answers import MalformedAnswer, microseconds_field, text_field
from accelopt_core.model.menu import Blocked, Offer, Offers, ToolFailed
from accelopt_core.proposer import RoundContext
from accelopt_core.transforms.base import NotAKernel, Site, Transform, TransformError
from accelopt_core.transforms.registry import TRANSFORMS
from nki_sim.ties import LEAST_GAIN, best_first, lines_of_code, worth_a_round

MOST_OFFERS = 8
LEAST_PERCENT = 5.0
"""Of the latency: of smaller gaps a model is not told what stops the tools ..."""
MOST_REASONS = 4
"""... and of each gap no more reasons than this."""

Prices = Mapping[str, "float | None"]
"""By content hash; None: it does not compile."""


class PriceBook(Protocol):
    """Keeps what was priced within the time there was, so that a resumed or replayed run shows the same menu."""

    def recall(self, kernel: str) -> Prices | None: ...

    def keep(self, kernel: str, prices: Prices) -> None: ...


class CatalogueMenu:
    """`predict` prices on the simulated machine; see `accelopt_core.model.menu.Menu`."""

    def __init__(
        self,
        predict: Predict,
        limit_s: float = LIMIT_S,
        book: PriceBook | None = None,
        transforms: tuple[Transform, ...] = TRANSFORMS,
        tie: float = LEAST_GAIN,
    ) -> None:
        """`tie`: from which difference on, of the latency, predictions are in the right order."""
        self._tie = tie
        self._predict = predict
        self._limit_s = limit_s
        self._book = book
        self._transforms = transforms
        self._found: dict[str, Analysis] = {}
        self._prices: dict[str, Prices] = {}

    def offers(self, context: RoundContext) -> Offers:
        """The best untried, unbanned changes to the parent."""
        source, parent_hash = context.parent.source, context.parent.content_hash
        try:
            found = self._analyzed(source, context)
        except NotAKernel as error:
            return Offers(note=f"the catalogue cannot read this kernel: {error}")
        steps = found.steps
        prices = self._priced(source, steps)
        before_us = prices.get(parent_hash)
        if before_us is None:
            note = "the simulated machine cannot compile this kernel, so nothing can be priced"
            return Offers(note=note, blocked=self._blocked(context, found, prices))
        banned = {ban.technique for ban in context.banned}
        open_steps = [
            step
            for step in steps
            if step.site.transform not in banned
            and not tried(context, context.parent, step.content_hash, step.site.what)
        ]
        gains = {
            step: before_us - us for step in open_steps if (us := prices.get(step.content_hash, math.nan)) is not None
        }
        worth = {step: gain for step, gain in gains.items() if gain >= LEAST_GAIN * before_us}
        tie_us = self._tie * before_us
        named_alike = sorted(worth, key=lambda step: (step.site.transform, step.site.key))
        order = best_first(named_alike, worth.__getitem__, tie_us, lambda step: lines_of_code(step.source))
        no_better = {step for step in worth if worth[step] < worth_a_round(self._tie) * before_us}
        best = sorted(order, key=no_better.__contains__)[:MOST_OFFERS]
        named = {step.site.transform for step in best}
        return Offers(
            offers=tuple(_offer(step.site, worth[step], step in no_better) for step in best),
            tools={each.name: each.describe() for each in self._transforms if each.name in named},
            not_priced=sum(math.isnan(gain) for gain in gains.values()),
            tie_us=tie_us,
            blocked=self._blocked(context, found, prices),
        )

    def best_gain_us(self, context: RoundContext) -> float | None:
        """What the best of the offers is predicted to gain, 0 where none gains more than a tie; None: nobody knows."""
        offers = self.offers(context)
        gains = [offer.gain_us for offer in offers.offers if not offer.tie]
        return None if offers.note else max(gains, default=0.0)

    def _blocked(self, context: RoundContext, found: Analysis, prices: Prices) -> tuple[Blocked, ...]:
        """What stands between the tools and the larger gaps; what they offer is on the menu itself."""
        explanation = joined(
            context.parent, context.parent_result, found, prices, context.history, self._transforms, self._tie
        )
        large = [gap for gap in explanation.gaps if gap.percent >= LEAST_PERCENT]
        stopped = {gap: stops(gap)[:MOST_REASONS] for gap in large}
        return tuple(Blocked(heading(gap), reasons) for gap, reasons in stopped.items() if reasons)

    def tool_plan(self, answer: Mapping[str, Any], context: RoundContext, plan_id: str) -> Plan:
        """The plan of an answer that names a tool. Raises MalformedAnswer with the complaint for the model."""
        tool = text_field(answer, "tool", longest=80)
        key = text_field(answer, "site", longest=200)
        offered = {(offer.tool, offer.site): offer for offer in self.offers(context).offers}
        names = sorted({each.name for each in self._transforms})
        if tool not in names:
            raise MalformedAnswer(f"no tool is called {tool!r}; there are: {', '.join(names)}")
        try:
            made = carried_out(context.parent.source, [SiteName(tool, key)], context.task.around)
        except TransformError as error:
            sites = ", ".join(offer.site for offer in offered.values() if offer.tool == tool) or "none on the menu"
            raise MalformedAnswer(
                f"tool {tool} cannot be used at site {key!r} of the current kernel ({error}); its sites: {sites}. "
                "Copy tool and site from the menu, or describe a change of your own without them"
            ) from error
        for attempt in context.history:
            if attempt.content_hash == source_hash(made) and not attempt.is_open:
                raise MalformedAnswer(
                    f"tool {tool} at site {key} makes the kernel that round {attempt.round} tried ({attempt.outcome}): "
                    "choose another change"
                )
        details = as_details([SiteName(tool, key)])
        if any((plan.parent_id or context.parent.id, plan.details) == (context.parent.id, details)
               for plan in context.planned):  # fmt: skip
            raise MalformedAnswer(
                f"tool {tool} at site {key} is being tried in this round already: choose another change"
            )
        offer = offered.get((tool, key))
        gain_us = offer.gain_us if offer is not None else microseconds_field(answer, "expected_gain_us")
        result = context.parent_result
        return Plan(
            id=plan_id,
            title=offer.change if offer is not None else " ".join(text_field(answer, "title", longest=200).split()),
            technique=tool,
            bottleneck=result.bottleneck,
            expected_gain_us=gain_us,
            rationale=text_field(answer, "rationale", longest=4_000),
            details=details,
            by_tool=True,
        )

    def carried_out(self, context: RoundContext, plan: Plan) -> str | None:
        """None for a plan that a model described. Raises ToolFailed."""
        try:
            return carried_out(context.parent.source, rewrites_in(plan.details), context.task.around)
        except NotRewrites:
            return None
        except (KeyError, TransformError) as error:
            raise ToolFailed(str(error)) from error

    def _analyzed(self, source: str, context: RoundContext) -> Analysis:
        if source not in self._found:
            around = context.task.around
            self._found[source] = analyzed(context.parent, context.parent_result, around, self._transforms)
        return self._found[source]

    def _priced(self, source: str, steps: tuple[Rewrite, ...]) -> Prices:
        """Once for each kernel: what the time did not suffice for then is not offered later either."""
        kernel = source_hash(source)
        if kernel not in self._prices:
            known = self._book.recall(kernel) if self._book is not None else None
            if known is None:
                until = time.monotonic() + self._limit_s
                # The kernel itself first, whatever it takes: nothing can be offered without its price.
                found = {kernel: self._predict([source])[source]}
                left_s = max(0.0, until - time.monotonic())
                by_source = self._predict([step.source for step in steps], left_s) if found[kernel] else {}
                found.update((source_hash(text), us) for text, us in by_source.items())
                known = found
                if self._book is not None:
                    self._book.keep(kernel, known)
            self._prices[kernel] = known
        return self._prices[kernel]


def _offer(site: Site, gain_us: float, tie: bool) -> Offer:
    return Offer(site.transform, site.key, site.what, site.why_faster, gain_us, tie)
