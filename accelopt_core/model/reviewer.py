"""Summarizer and reflexion, played by language models: words from the model, every number from the measurement.

Where one model plays both, one call brings both. What a tool of the menu did is told by its numbers, without a call.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from accelopt_core.candidate import Candidate, Plan
from accelopt_core.evaluation import Evaluation, Measured, explain
from accelopt_core.learning.by_numbers import NumbersReflector, NumbersSummarizer
from accelopt_core.learning.experiences import actual_gain_us, kernel_diff, measured_experience
from accelopt_core.model.answers import MalformedAnswer, list_field, read_object, text_field, word_field
from accelopt_core.model.prompting import Detail, PromptSettings, ask_for_object, profile_changes, role_prompt
from accelopt_core.optimization_memory import Experience
from accelopt_core.ports import LanguageModel, Role
from accelopt_core.proposer import RoundContext
from ka_extensions.divergence_guard import Decision
from ka_extensions.reflexion import Diagnosis, Reflexion

Read = TypeVar("Read")

_LONGEST_SNIPPET = 1_200
"""Characters of each side of a rewrite as a model tells it."""


@dataclass(frozen=True)
class _Lesson:
    lesson: str
    diagnosis: Diagnosis
    avoid: tuple[str, ...]
    build_on: tuple[str, ...]


@dataclass(frozen=True)
class _Entry:
    title: str
    summary: str
    slow: str
    fast: str


class ModelReviewer:
    """`models`: of the summarizer and of reflexion."""

    def __init__(
        self,
        models: Mapping[Role, LanguageModel],
        system: str,
        today: Callable[[], datetime.date],
        settings: PromptSettings,
    ) -> None:
        self._models = models
        self._system = system
        self._today = today
        self._settings = settings
        self._together = models[Role.SUMMARIZER] is models[Role.REFLEXION]
        self._lessons: dict[str, _Lesson] = {}
        """What came with an entry, by candidate, until the same round asks for it."""

    def summarize(
        self, context: RoundContext, plan: Plan, candidate: Candidate, result: Measured, decision: Decision
    ) -> Experience:
        """Raises a ModelError. After two malformed answers the facts alone are filed, and the summary says so."""
        by_numbers = NumbersSummarizer(self._today).summarize(context, plan, candidate, result, decision)
        if plan.by_tool:
            return by_numbers
        role = Role.REFLEXION if self._together else Role.SUMMARIZER

        def read(reply: str) -> tuple[_Entry, _Lesson | None]:
            return _entry_in(reply), _lesson_in(reply) if self._together else None

        try:
            entry, lesson = self._ask(role, read, context, plan, candidate, result, decision, entry=True)
        except MalformedAnswer as complaint:
            return replace(by_numbers, summary=f"{by_numbers.summary} {self._instead(role, complaint)}")
        if lesson is not None:
            self._lessons[candidate.id] = lesson
        filed = measured_experience(
            context, plan, candidate, result, title=entry.title, summary=entry.summary, today=self._today()
        )
        return replace(filed, slow=entry.slow, fast=entry.fast) if entry.slow and entry.fast else filed

    def reflect(
        self,
        context: RoundContext,
        plan: Plan,
        candidate: Candidate | None,
        result: Evaluation | None,
        decision: Decision,
    ) -> Reflexion:
        """Raises a ModelError. After two malformed answers the lesson is the numbers, and says so."""
        by_numbers = NumbersReflector().reflect(context, plan, candidate, result, decision)
        if plan.by_tool:
            return by_numbers
        lesson = self._lessons.pop(candidate.id, None) if candidate is not None else None
        if lesson is None:
            role = Role.REFLEXION
            try:
                lesson = self._ask(role, _lesson_in, context, plan, candidate, result, decision, entry=False)
            except MalformedAnswer as complaint:
                return replace(by_numbers, lesson=f"{by_numbers.lesson} {self._instead(role, complaint)}")
        return replace(
            by_numbers, lesson=lesson.lesson, diagnosis=lesson.diagnosis, avoid=lesson.avoid, build_on=lesson.build_on
        )

    def _instead(self, role: Role, complaint: MalformedAnswer) -> str:
        return f"(From the numbers: {self._models[role].name} gave no usable review, {complaint}.)"

    def _ask(
        self,
        role: Role,
        read: Callable[[str], Read],
        context: RoundContext,
        plan: Plan,
        candidate: Candidate | None,
        result: Evaluation | None,
        decision: Decision,
        *,
        entry: bool,
    ) -> Read:
        """`entry`: for memory, too. Raises MalformedAnswer and a ModelError."""
        after = result.profile if isinstance(result, Measured) else None
        before = context.parent_result.profile
        source = candidate.source if candidate is not None else ""
        values = {
            "plan": plan,
            "result": result,
            "decision": decision,
            "actual_gain_us": actual_gain_us(context, result),
            "outcome": f"The candidate {explain(result)}." if result is not None else "No usable kernel was written.",
            "diff": kernel_diff(context.parent.source, source) if source else "",
            "repair": kernel_diff(context.failed[-1].source, source) if context.failed and source else "",
            "changes": profile_changes(context.language.key, before, after) if after is not None else [],
            "wants_entry": entry,
            "wants_review": role is Role.REFLEXION,
        }

        def prompt(detail: Detail) -> str:
            return role_prompt(context, "review.j2", detail, **values)

        return ask_for_object(self._models[role], role, self._system, prompt, read, self._settings)


def _lesson_in(reply: str) -> _Lesson:
    answer = read_object(reply, required="lesson")
    return _Lesson(
        lesson=" ".join(text_field(answer, "lesson", longest=1_000).split()),
        diagnosis=Diagnosis(word_field(answer, "diagnosis", tuple(map(str, Diagnosis)))),
        avoid=list_field(answer, "avoid", most=3, longest=500),
        build_on=list_field(answer, "build_on", most=3, longest=500),
    )


def _entry_in(reply: str) -> _Entry:
    answer = read_object(reply, required="title")
    slow, fast = (text_field(answer, side, longest=_LONGEST_SNIPPET, required=False) for side in ("slow", "fast"))
    title = " ".join(text_field(answer, "title", longest=200).split())
    return _Entry(title, text_field(answer, "summary", longest=2_000), slow, fast)
