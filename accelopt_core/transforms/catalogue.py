"""The four roles played by the built-in catalogue: no language model, the same round.

The planner lists every legal site of every transform, prices each by simulating the result, and takes
the one that gains most, weighed by what memory says of it. All else follows from the numbers.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.bounds import bottleneck_of
from accelopt_core.candidate import Bottleneck, Candidate, Plan, source_hash
from accelopt_core.evaluation import Evaluation, Measured, explain
from accelopt_core.optimization_memory import Experience
from accelopt_core.proposer import (
    CannotRepair,
    Feedback,
    NothingToPlan,
    Proposer,
    RoundContext,
    UnusableReply,
)
from accelopt_core.reflector import actual_gain_us, outcome_of
from accelopt_core.summarizer import factual_summary, measured_experience
from accelopt_core.transforms.base import AnalysisContext, NotAKernel, Site, Transform, TransformError, parse_kernel
from accelopt_core.transforms.registry import TRANSFORMS, transform_named
from ka_extensions.divergence_guard import Decision
from ka_extensions.reflexion import Reflexion

Predict = Callable[[str], "float | None"]
"""Simulated latency in µs of a kernel source at the task's full shape; None when it does not compile."""

LEAST_GAIN = 0.01
"""Of the latency: the divergence guard takes less than this for noise, so it is not worth a round."""

AGREEMENT = 0.25
"""A gain within this of the expected one means that the machine model saw the cause."""


def catalogue_proposer(
    predict: Predict, today: Callable[[], datetime.date], transforms: tuple[Transform, ...] = TRANSFORMS
) -> Proposer:
    return Proposer(
        "catalogue",
        CataloguePlanner(predict, transforms),
        CatalogueExecutor(),
        CatalogueSummarizer(today),
        CatalogueReflector(),
    )


@dataclass(frozen=True)
class _Idea:
    site: Site
    """Priced."""
    weight: float
    memory: str
    """What memory says of it, as a sentence; may be empty."""

    @property
    def gain_us(self) -> float:
        assert self.site.predicted_gain_us is not None
        return self.site.predicted_gain_us


class CataloguePlanner:
    def __init__(self, predict: Predict, transforms: tuple[Transform, ...] = TRANSFORMS) -> None:
        self._predict = predict
        self._transforms = transforms

    def plan(self, context: RoundContext) -> Plan:
        """Raises NothingToPlan when no untried site promises a gain worth a round."""
        source = context.parent.source
        try:
            module = parse_kernel(source)
            before_us = self._predict(source)
            if before_us is None:
                raise NothingToPlan(
                    "the catalogue prices its ideas on the simulated machine, which cannot compile this kernel; "
                    "use a language model instead"
                )
            bottleneck = bottleneck_of(context.parent_result.profile, context.parent_result.latency_us)
            sites = list(self._untried(module, context, bottleneck))
        except NotAKernel as error:
            raise NothingToPlan(
                f"the catalogue cannot read this kernel: {error}; use a language model instead"
            ) from error
        ideas = []
        for site, child in sites:
            after_us = self._predict(child)
            if after_us is not None and before_us - after_us >= LEAST_GAIN * before_us:
                weight, memory = _weigh(site, bottleneck, context)
                ideas.append(_Idea(site.priced(before_us - after_us), weight, memory))
        if not ideas:
            raise NothingToPlan(
                f"the catalogue has no idea left: {len(sites)} untried sites, none with a predicted gain of "
                f"{100 * LEAST_GAIN:g} %"
            )
        ideas.sort(key=lambda idea: (-idea.weight * idea.gain_us, idea.site.transform, idea.site.key))
        return _plan(context, ideas, bottleneck, before_us, priced=len(sites))

    def _untried(self, module: cst.Module, context: RoundContext, bottleneck: Bottleneck) -> Iterator[tuple[Site, str]]:
        """Legal sites with the kernels they lead to, less those that this run has seen."""
        profile = context.parent_result.profile
        analysis = AnalysisContext(bottleneck, profile.fields)
        seen = {attempt.content_hash for attempt in context.history} | {context.parent.content_hash}
        titles = {attempt.title for attempt in context.history if attempt.parent_id == context.parent.id}
        for transform in self._transforms:
            for site in transform.analyze(module, analysis):
                child = transform.apply(module, site).code
                key = source_hash(child)
                if key not in seen and site.what not in titles:
                    seen.add(key)
                    yield site, child


def _plan(context: RoundContext, ideas: list[_Idea], bottleneck: Bottleneck, before_us: float, priced: int) -> Plan:
    chosen = ideas[0]
    site = chosen.site
    ranked = "; ".join(f"{idea.site.what}: {idea.gain_us:,.1f} µs" for idea in ideas[1:4])
    rationale = [
        f"Legal because {site.why_legal}.",
        f"Faster because {site.why_faster}: simulated at the full shape, {before_us:,.1f} µs become "
        f"{before_us - chosen.gain_us:,.1f} µs.",
    ]
    if chosen.memory:
        rationale.append(chosen.memory)
    rationale.append(f"Of {priced} untried sites, {len(ideas)} promise a gain{f'; next: {ranked}' if ranked else ''}.")
    return Plan(
        id=f"plan-{context.round:03d}",
        title=site.what,
        technique=site.transform,
        bottleneck=bottleneck,
        expected_gain_us=chosen.gain_us,
        rationale=" ".join(rationale),
        details=json.dumps({"transform": site.transform, "key": site.key}),
    )


def _weigh(site: Site, bottleneck: Bottleneck, context: RoundContext) -> tuple[float, str]:
    """How much more (or less) than its predicted gain an idea counts, after what was measured before."""
    same = [e for e in context.experiences if e.technique == site.transform]
    here = [e for e in same if e.kernel == context.task.name]
    for experience in here:
        if experience.title == site.what:
            if experience.is_win:
                return 2.0, f"Memory: this very change won on this task before ({_strength(experience)})."
            return 0.1, f"Memory: this very change did not pay on this task before ({_strength(experience)})."
    for experience in here:
        if experience.is_win:
            return 1.5, f"Memory: {site.transform} won on this task before ({_strength(experience)})."
    on_bottleneck = [e for e in same if e.bottleneck == bottleneck.value]
    wins = [e for e in on_bottleneck if e.is_win]
    losses = [e for e in on_bottleneck if not e.is_win]
    if _trust(wins) > _trust(losses):
        return 1.2, f"Memory: {site.transform} won on {bottleneck.value} kernels before ({_strength(wins[0])})."
    if losses:
        return 0.8, f"Memory: {site.transform} did not pay on {bottleneck.value} kernels before."
    return 1.0, ""


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
            details = json.loads(plan.details)
            transform = transform_named(details["transform"])
            site = Site(details["transform"], details["key"], plan.title, 0, "", "")
        except (ValueError, KeyError, TypeError) as error:
            raise UnusableReply(f"plan {plan.id} was not made by the catalogue: {error}") from error
        try:
            return transform.apply(parse_kernel(context.parent.source), site).code
        except TransformError as error:
            raise UnusableReply(f"{plan.technique} cannot be applied: {error}") from error


class CatalogueSummarizer:
    def __init__(self, today: Callable[[], datetime.date]) -> None:
        self._today = today

    def summarize(
        self, context: RoundContext, plan: Plan, candidate: Candidate, result: Measured, decision: Decision
    ) -> Experience:
        return measured_experience(
            context,
            plan,
            candidate,
            result,
            title=plan.title,
            summary=factual_summary(context, plan, result, decision),
            today=self._today(),
        )


class CatalogueReflector:
    def reflect(
        self,
        context: RoundContext,
        plan: Plan,
        candidate: Candidate | None,
        result: Evaluation | None,
        decision: Decision,
    ) -> Reflexion:
        gain_us = actual_gain_us(context, result)
        improved = decision.improved
        return Reflexion(
            round=context.round,
            plan_title=plan.title,
            technique=plan.technique,
            expected_gain_us=plan.expected_gain_us,
            actual_gain_us=gain_us,
            outcome=outcome_of(result, decision),
            diagnosis_right=improved and gain_us is not None and gain_us >= (1 - AGREEMENT) * plan.expected_gain_us,
            lesson=_lesson(plan, gain_us, result),
            avoid=() if improved else (f"{plan.title} (on {context.parent.id})",),
            build_on=(plan.title,) if improved else (),
        )


def _lesson(plan: Plan, gain_us: float | None, result: Evaluation | None) -> str:
    if gain_us is None:
        return f"{plan.title}: {explain(result) if result is not None else 'no kernel came of it'}."
    expected = plan.expected_gain_us
    if gain_us < 0:
        judgement = "it costs more than it saves"
    elif abs(gain_us - expected) <= AGREEMENT * max(expected, gain_us):
        judgement = "the machine model saw the cause"
    elif gain_us < expected:
        judgement = "the machine model promised too much"
    else:
        judgement = "it helps more than the machine model saw"
    return f"{plan.title}: expected {expected:,.1f} µs, gained {gain_us:,.1f} µs; {judgement}."
