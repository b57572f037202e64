"""The executor, played by a language model: plan and kernel in, a whole new kernel out."""

from __future__ import annotations

from collections.abc import Callable

from accelopt_core.candidate import Plan
from accelopt_core.extraction import check_kernel, defines_entry, extract_kernel
from accelopt_core.ports import LanguageModel, Role
from accelopt_core.prompting import (
    DEFAULT_SETTINGS,
    PRECISION_TEXT,
    Detail,
    PromptSettings,
    ask,
    render,
)
from accelopt_core.proposer import CannotRepair, Feedback, RoundContext, UnusableReply
from accelopt_core.python_source import PARSING
from accelopt_core.transforms.base import TransformError
from accelopt_core.transforms.steps import NotSteps, SiteName, carried_out, steps_in
from ka_extensions.error_patterns import same_in_a_row


class ModelExecutor:
    """`api_reference`: kernel source in, the API text that matters for it out.

    `tools`: plans may name steps of the built-in catalogue, which are carried out here without the model.
    """

    def __init__(
        self,
        model: LanguageModel,
        api_reference: Callable[[str], str],
        settings: PromptSettings = DEFAULT_SETTINGS,
        tools: bool = False,
    ) -> None:
        self._model = model
        self._tools = tools
        self._api_reference = api_reference
        self._referenced: tuple[str, str] | None = None
        self._settings = settings
        self._system = render("executor_system.j2", machine=settings.machine)

    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        """A kernel that parses, keeps its interface and is new.

        Raises UnusableReply, a ModelError, or CannotRepair when the kernel that a tool made was refused.
        """
        if self._tools and (steps := _tool_steps(plan)):
            return _by_tool(context, plan, steps, feedback)
        reference = self._reference_for(context.parent.source)
        reply, _ = ask(
            self._model,
            Role.EXECUTOR,
            self._system,
            lambda detail: executor_prompt(context, plan, feedback, reference, detail),
            self._settings,
        )
        tried = [entry.source for entry in feedback if defines_entry(entry.source)]
        source = extract_kernel(reply.text, bases=[*reversed(tried), context.parent.source], truncated=reply.truncated)
        check_kernel(source, parent=context.parent.source, history=context.history, failed=tried)
        return source

    def _reference_for(self, source: str) -> str:
        """Made anew only when the parent changed: it takes longer than all the rest of the prompt."""
        with PARSING:  # it parses the kernel, and other candidates of the round may be parsing theirs
            if self._referenced is None or self._referenced[0] != source:
                self._referenced = (source, self._api_reference(source))
            return self._referenced[1]


def _tool_steps(plan: Plan) -> tuple[SiteName, ...]:
    try:
        return steps_in(plan.details)
    except NotSteps:
        return ()


def _by_tool(context: RoundContext, plan: Plan, steps: tuple[SiteName, ...], feedback: tuple[Feedback, ...]) -> str:
    if feedback:
        raise CannotRepair(f"tool {plan.technique} has no second version of this change: {feedback[-1].message}")
    try:
        source = carried_out(context.parent.source, steps)
    except (KeyError, TransformError) as error:
        raise UnusableReply(f"tool {plan.technique} cannot be applied: {error}", plan.details) from error
    check_kernel(source, parent=context.parent.source, history=context.history, failed=())
    return source


def executor_prompt(
    context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...], api_reference: str, detail: Detail
) -> str:
    return render(
        "executor_user.j2",
        context=context,
        task=context.task,
        precision=PRECISION_TEXT[context.task.precision],
        plan=plan,
        feedback=feedback,
        last_is_code=bool(feedback) and defines_entry(feedback[-1].source),
        repeats=same_in_a_row([entry.message for entry in feedback]),
        api_reference=api_reference,
        detail=detail,
    )
