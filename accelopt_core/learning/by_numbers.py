"""Summarizer and reflector without a model: all they say follows from the measured numbers."""

from __future__ import annotations

import datetime
from collections.abc import Callable

from accelopt_core.candidate import Candidate, Plan
from accelopt_core.evaluation import Evaluation, Measured, explain
from accelopt_core.learning.experiences import (
    actual_gain_us,
    factual_summary,
    measured_experience,
    outcome_of,
    repaired,
)
from accelopt_core.optimization_memory import Experience
from accelopt_core.proposer import RoundContext
from ka_extensions.divergence_guard import Decision
from ka_extensions.reflexion import Diagnosis, Reflexion

AGREEMENT = 0.25
"""A gain within this of the expected one means that the machine model saw the cause."""


class NumbersSummarizer:
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


class NumbersReflector:
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
            diagnosis=_diagnosis(plan, gain_us if improved else None),
            lesson=" ".join(filter(None, (_lesson(plan, gain_us, result), repaired(context)))),
            avoid=() if improved else (f"{plan.title} (on {context.parent.id})",),
            build_on=(plan.title,) if improved else (),
        )


def _diagnosis(plan: Plan, gain_us: float | None) -> Diagnosis:
    """`gain_us`: of what became the best; None where nothing did."""
    if gain_us is None:
        return Diagnosis.WRONG
    return Diagnosis.RIGHT if gain_us >= (1 - AGREEMENT) * plan.expected_gain_us else Diagnosis.PARTLY


def _lesson(plan: Plan, gain_us: float | None, result: Evaluation | None) -> str:
    if gain_us is None:
        return f"{plan.title}: {explain(result) if result is not None else 'no kernel came of it'}."
    expected = plan.expected_gain_us
    if not expected:
        return f"{plan.title}: gained {gain_us:,.1f} µs; nothing had been predicted."
    if gain_us < 0:
        judgement = "it costs more than it saves"
    elif abs(gain_us - expected) <= AGREEMENT * max(expected, gain_us):
        judgement = "the machine model saw the cause"
    elif gain_us < expected:
        judgement = "the machine model promised too much"
    else:
        judgement = "it helps more than the machine model saw"
    return f"{plan.title}: expected {expected:,.1f} µs, gained {gain_us:,.1f} µs; {judgement}."
