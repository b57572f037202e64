"""The four roles played by language models, put together."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping

from accelopt_core.model.executor import ModelExecutor
from accelopt_core.model.menu import Menu
from accelopt_core.model.planner import ModelPlanner
from accelopt_core.model.prompting import PromptSettings, system_text
from accelopt_core.model.reviewer import ModelReviewer
from accelopt_core.ports import LanguageModel, Role
from accelopt_core.proposer import Proposer


def proposer_from_model(
    models: Mapping[Role, LanguageModel],
    api_reference: Callable[[str, str], str],
    instructions: str,
    settings: PromptSettings,
    today: Callable[[], datetime.date] = datetime.date.today,
    menu: Menu | None = None,
) -> Proposer:
    """`models`: one per role, all of them; they may be the same object.

    `api_reference`: kernel source and plan in, API text for the executor out. `instructions`: the API by name.

    `menu`: the built-in catalogue's changes, offered to the planner by name. Raises ValueError for a missing role.
    """
    missing = [role.value for role in Role if role not in models]
    if missing:
        raise ValueError(f"no model for the {', '.join(missing)} role: name one for each of the four")
    names = list(dict.fromkeys(models[role].name for role in Role))
    system = system_text(settings, instructions)
    reviewer = ModelReviewer(models, system, today, settings)
    return Proposer(
        name=", ".join(names),
        planner=ModelPlanner(models[Role.PLANNER], system, settings, menu),
        executor=ModelExecutor(models[Role.EXECUTOR], system, api_reference, settings, menu),
        summarizer=reviewer,
        reflector=reviewer,
    )
