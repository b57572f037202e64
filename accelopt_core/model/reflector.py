"""Reflexion, played by a language model: it judges, we compute."""

from __future__ import annotations

from dataclasses import dataclass

from accelopt_core.candidate import Candidate, Plan
from accelopt_core.evaluation import Evaluation, Measured, explain, microseconds
from accelopt_core.learning.experiences import actual_gain_us, kernel_diff, outcome_of, repaired
from accelopt_core.model.answers import MalformedAnswer, list_field, read_object, text_field, word_field
from accelopt_core.model.prompting import (
    Detail,
    PromptSettings,
    ask_for_object,
    profile_changes,
    profile_fields,
    render,
)
from accelopt_core.ports import LanguageModel, Role
from accelopt_core.proposer import RoundContext
from ka_extensions.divergence_guard import Decision
from ka_extensions.plain_text import one_line
from ka_extensions.reflexion import Diagnosis, Reflexion

_LONGEST_FACT = 1_000
"""Characters of a lesson that no model has written."""
_MOSTLY = 0.75
"""Of the expected gain: with that much of it, and no review, the diagnosis counts as right."""


@dataclass(frozen=True)
class _Judgement:
    lesson: str
    diagnosis: Diagnosis
    avoid: tuple[str, ...] = ()
    build_on: tuple[str, ...] = ()


class ModelReflector:
    def __init__(self, model: LanguageModel, settings: PromptSettings) -> None:
        self._model = model
        self._settings = settings
        self._system = render(settings.language, "reflexion_system.j2", machine=settings.machine)

    def reflect(
        self,
        context: RoundContext,
        plan: Plan,
        candidate: Candidate | None,
        result: Evaluation | None,
        decision: Decision,
    ) -> Reflexion:
        """Raises a ModelError. After two malformed answers the lesson is the numbers, and says so."""
        gain_us = actual_gain_us(context, result)
        try:
            judgement = ask_for_object(
                self._model,
                Role.REFLEXION,
                self._system,
                lambda detail: _prompt(context, plan, candidate, result, decision, detail),
                _read_judgement,
                self._settings,
            )
        except MalformedAnswer as complaint:
            judgement = _Judgement(
                lesson=f"{_facts(plan, gain_us, result)} {repaired(context)} (From the numbers: {self._model.name} "
                f"gave no usable review, {complaint}.)",
                diagnosis=_by_numbers(plan, gain_us),
            )
        return Reflexion(
            round=context.round,
            plan_title=plan.title,
            technique=plan.technique,
            expected_gain_us=plan.expected_gain_us,
            actual_gain_us=gain_us,
            outcome=outcome_of(result, decision),
            diagnosis=judgement.diagnosis,
            lesson=judgement.lesson,
            avoid=judgement.avoid,
            build_on=judgement.build_on,
        )


def _prompt(
    context: RoundContext,
    plan: Plan,
    candidate: Candidate | None,
    result: Evaluation | None,
    decision: Decision,
    detail: Detail,
) -> str:
    after = result.profile if isinstance(result, Measured) else None
    language = context.language.key
    return render(
        language,
        "reflexion_user.j2",
        context=context,
        plan=plan,
        result=result,
        decision=decision,
        actual_gain_us=actual_gain_us(context, result),
        outcome=f"The candidate {explain(result)}." if result is not None else "No usable kernel was written.",
        diff=kernel_diff(context.parent.source, candidate.source) if candidate is not None else "",
        repair=kernel_diff(context.failed[-1].source, candidate.source) if context.failed and candidate else "",
        fields_before=profile_fields(language, context.parent_result.profile, detail.fields),
        fields_after=profile_fields(language, after, detail.fields) if after is not None else [],
        changes=profile_changes(language, context.parent_result.profile, after) if after is not None else [],
        detail=detail,
    )


def _read_judgement(reply: str) -> _Judgement:
    answer = read_object(reply, required="lesson")
    return _Judgement(
        lesson=" ".join(text_field(answer, "lesson", longest=1_000).split()),
        diagnosis=Diagnosis(word_field(answer, "diagnosis", tuple(map(str, Diagnosis)))),
        avoid=list_field(answer, "avoid", most=3, longest=500),
        build_on=list_field(answer, "build_on", most=3, longest=500),
    )


def _by_numbers(plan: Plan, gain_us: float | None) -> Diagnosis:
    if gain_us is None or gain_us <= 0:
        return Diagnosis.WRONG
    return Diagnosis.RIGHT if gain_us >= _MOSTLY * plan.expected_gain_us else Diagnosis.PARTLY


def _facts(plan: Plan, gain_us: float | None, result: Evaluation | None) -> str:
    if gain_us is None:
        said = one_line(explain(result), _LONGEST_FACT) if result is not None else "no usable kernel was written"
        return f"{plan.title}: {said}."
    return f"{plan.title}: expected to gain {microseconds(plan.expected_gain_us)}, gained {microseconds(gain_us)}."
