"""The summarizer, played by a language model: words from the model, every number from the measurement."""

from __future__ import annotations

import datetime
from collections.abc import Callable

from accelopt_core.candidate import Candidate, Plan
from accelopt_core.evaluation import Measured
from accelopt_core.learning.experiences import factual_summary, kernel_diff, measured_experience
from accelopt_core.model.answers import MalformedAnswer, read_object, text_field
from accelopt_core.model.prompting import PromptSettings, ask_for_object, profile_fields, render
from accelopt_core.optimization_memory import Experience
from accelopt_core.ports import LanguageModel, Role
from accelopt_core.proposer import RoundContext
from ka_extensions.divergence_guard import Decision


class ModelSummarizer:
    def __init__(self, model: LanguageModel, today: Callable[[], datetime.date], settings: PromptSettings) -> None:
        self._model = model
        self._today = today
        self._settings = settings
        self._system = render(settings.language, "summarizer_system.j2", machine=settings.machine)

    def summarize(
        self, context: RoundContext, plan: Plan, candidate: Candidate, result: Measured, decision: Decision
    ) -> Experience:
        """Raises a ModelError. After two malformed answers the facts alone are filed, and the summary says so."""
        values = {
            "context": context,
            "plan": plan,
            "result": result,
            "decision": decision,
            "speedup": context.parent_result.latency_us / result.latency_us,
            "diff": kernel_diff(context.parent.source, candidate.source),
            "repair": kernel_diff(context.failed[-1].source, candidate.source) if context.failed else "",
        }
        try:
            title, summary = ask_for_object(
                self._model,
                Role.SUMMARIZER,
                self._system,
                lambda detail: render(
                    context.language.key,
                    "summarizer_user.j2",
                    **values,
                    fields_before=profile_fields(context.language.key, context.parent_result.profile, detail.fields),
                    fields_after=profile_fields(context.language.key, result.profile, detail.fields),
                    detail=detail,
                ),
                _read_summary,
                self._settings,
            )
        except MalformedAnswer as complaint:
            title = plan.title
            summary = (
                f"{factual_summary(context, plan, result, decision)} (Written from the numbers: {self._model.name} "
                f"gave no usable summary, {complaint}.)"
            )
        return measured_experience(context, plan, candidate, result, title=title, summary=summary, today=self._today())


def _read_summary(reply: str) -> tuple[str, str]:
    answer = read_object(reply, required="title")
    title = " ".join(text_field(answer, "title", longest=200).split())
    return title, text_field(answer, "summary", longest=2_000)
