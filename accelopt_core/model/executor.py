"""The executor, played by a language model: plan and kernel in, a whole new kernel out."""

from __future__ import annotations

from collections.abc import Callable

from accelopt_core.candidate import PARSING, Plan
from accelopt_core.model.extraction import check_kernel, defines_entry, extract_kernel
from accelopt_core.model.menu import Menu, ToolFailed
from accelopt_core.model.prompting import Detail, PromptSettings, ask, role_prompt
from accelopt_core.ports import LanguageModel, Role
from accelopt_core.proposer import CannotRepair, Feedback, RoundContext, UnusableReply
from ka_extensions.error_patterns import same_in_a_row


class ModelExecutor:
    """`system`: as `prompting.system_text` makes it. `api_reference`: kernel source and plan in, the API text that
    matters for them out.

    `menu`: plans that were taken off it are carried out without the model.
    """

    def __init__(
        self,
        model: LanguageModel,
        system: str,
        api_reference: Callable[[str, str], str],
        settings: PromptSettings,
        menu: Menu | None = None,
    ) -> None:
        self._model = model
        self._system = system
        self._menu = menu
        self._api_reference = api_reference
        self._referenced: tuple[tuple[str, str], str] | None = None
        self._settings = settings

    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        """A kernel that parses, keeps its interface and is new.

        Raises UnusableReply, a ModelError, or CannotRepair when the kernel that a tool made was refused.
        """
        if self._menu is not None and (made := _by_tool(self._menu, context, plan, feedback)) is not None:
            return made
        reference = self._reference_for(context.parent.source, _named(plan, feedback))
        reply, _ = ask(
            self._model,
            Role.EXECUTOR,
            self._system,
            lambda detail: executor_prompt(context, plan, feedback, reference, detail, self._settings.sweeps),
            self._settings,
        )
        names = context.task.around.entry_points
        tried = [entry.source for entry in feedback if defines_entry(entry.source, names)]
        bases = [*reversed(tried), context.parent.source]
        source = extract_kernel(reply.text, bases=bases, truncated=reply.truncated, names=names)
        check_kernel(source, parent=context.parent.source, history=context.history, failed=tried, names=names)
        return source

    def _reference_for(self, source: str, also: str) -> str:
        """Made anew only when the parent or the plan changed: it takes longer than all the rest of the prompt."""
        with PARSING:  # it parses the kernel, and other candidates of the round may be parsing theirs
            if self._referenced is None or self._referenced[0] != (source, also):
                self._referenced = ((source, also), self._api_reference(source, also))
            return self._referenced[1]


def _named(plan: Plan, feedback: tuple[Feedback, ...]) -> str:
    """Where instructions stand that the writer of the kernel needs to know: the plan, and what the last try used."""
    tried = [feedback[-1].source, feedback[-1].message] if feedback else []
    return "\n".join([plan.title, plan.technique, plan.rationale, plan.details, *tried])


def _by_tool(menu: Menu, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str | None:
    """The kernel that a plan of the menu leads to; None for a plan of the model's own."""
    try:
        source = menu.carried_out(context, plan)
        failure = ""
    except ToolFailed as error:
        source, failure = "", f"tool {plan.technique} cannot be applied: {error}"
    if source is None:
        return None
    if feedback:
        raise CannotRepair(f"tool {plan.technique} has no second version of this change: {feedback[-1].message}")
    if failure:
        raise UnusableReply(failure, plan.details)
    names = context.task.around.entry_points
    check_kernel(source, parent=context.parent.source, history=context.history, failed=(), names=names)
    return source


def executor_prompt(
    context: RoundContext,
    plan: Plan,
    feedback: tuple[Feedback, ...],
    api_reference: str,
    detail: Detail,
    sweeps: bool = False,
) -> str:
    return role_prompt(
        context,
        "executor.j2",
        detail,
        plan=plan,
        feedback=feedback,
        last_is_code=bool(feedback) and defines_entry(feedback[-1].source, context.task.around.entry_points),
        repeats=same_in_a_row([entry.message for entry in feedback]),
        api_reference=api_reference,
        sweeps=sweeps,
    )
