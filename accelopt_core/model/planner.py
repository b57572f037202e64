"""The planner, played by a language model: what it is shown, and the one plan it must answer with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from accelopt_core.candidate import Plan
from accelopt_core.evaluation import Bottleneck
from accelopt_core.model.answers import Answer, MalformedAnswer, microseconds_field, read_objects, text_field
from accelopt_core.model.menu import Menu, Offers
from accelopt_core.model.prompting import Detail, PromptSettings, ask_for_object, profile_fields, role_prompt
from accelopt_core.optimization_memory import Experience
from accelopt_core.ports import LanguageModel, Role
from accelopt_core.proposer import RoundContext, UnusablePlan

_BOTTLENECK_WORDS = {
    "memory": Bottleneck.MEMORY_BOUND,
    "dma": Bottleneck.MEMORY_BOUND,
    "bandwidth": Bottleneck.MEMORY_BOUND,
    "compute": Bottleneck.COMPUTE_BOUND,
    "underutil": Bottleneck.UNDERUTILIZED,
    "latency": Bottleneck.UNDERUTILIZED,
    "idle": Bottleneck.UNDERUTILIZED,
}


_NEARLY_ALL = 0.9


class ModelPlanner:
    """`system`: as `prompting.system_text` makes it.

    `menu`: what the built-in catalogue could do, offered by name; None: nothing is offered.
    """

    def __init__(self, model: LanguageModel, system: str, settings: PromptSettings, menu: Menu | None = None) -> None:
        self._model = model
        self._system = system
        self._settings = settings
        self._menu = menu
        self._spare: tuple[tuple[int, str], list[Answer]] = (0, ""), []
        """Further plans of the last answer, for the same round and parent."""

    def plan(self, context: RoundContext) -> Plan:
        """One plan. Raises UnusablePlan after two malformed answers, or a ModelError."""
        of, spare = self._spare
        here = context.round, context.parent.id
        while of == here and spare:
            with suppress(MalformedAnswer):
                return _plan_of(spare.pop(0), context, self._menu)
        offers = self._menu.offers(context) if self._menu is not None else None

        def read(reply: str) -> Plan:
            first, *more = read_objects(reply, required="title", most=context.wanted)
            plan = _plan_of(first, context, self._menu)
            self._spare = here, more
            return plan

        try:
            return ask_for_object(
                self._model,
                Role.PLANNER,
                self._system,
                lambda detail: planner_prompt(context, detail, offers),
                read,
                self._settings,
            )
        except MalformedAnswer as complaint:
            raise UnusablePlan(f"{self._model.name} answered twice without a usable plan: {complaint}") from complaint


def planner_prompt(context: RoundContext, detail: Detail, offers: Offers | None = None) -> str:
    experiences = list(labelled(context).items())[: detail.experiences]
    attempts = context.history[-detail.attempts :]
    older = context.history[: len(context.history) - len(attempts)]
    profile = context.parent_result.profile
    notes = {(note.round, note.plan_title): note for note in context.reflexions}
    return role_prompt(
        context,
        "planner.j2",
        detail,
        profile=profile,
        bounds=profile.bounds,
        idle=sorted(profile.idle, key=lambda each: each.begin_us - each.end_us)[: detail.idle],
        fields=profile_fields(context.language.key, profile, detail.fields),
        speedup=f"{context.baseline_us / context.best_result.latency_us:.2f}",
        wins=[(label, each, _is_in(context.parent.source, each.fast)) for label, each in experiences if each.is_win],
        rejections=[(label, each) for label, each in experiences if not each.is_win],
        rounds=[(attempt, notes.get((attempt.round, attempt.title))) for attempt in attempts],
        older=older,
        older_techniques=", ".join(dict.fromkeys(attempt.technique for attempt in older)),
        offers=offers,
    )


def labelled(context: RoundContext) -> dict[str, Experience]:
    """What the planner may be shown of memory, best first, by the name that it can say which it follows by."""
    tried_here = {said for attempt in context.history for said in (attempt.title, attempt.technique)}
    elsewhere = [
        each
        for each in context.experiences
        if each.kernel != context.task.name or not {each.title, each.technique} & tried_here
    ]
    return {f"E{number}": each for number, each in enumerate(elsewhere, 1)}


def followed(answer: Mapping[str, Any], technique: str, known: Mapping[str, Experience]) -> tuple[str, ...]:
    """Keys of the experiences that a plan goes by: wins that it names, or else those of its technique; and rejections
    of its technique, which it tries again.

    A name that no win was shown by is left out: a plan is no worse for it.
    """
    names = answer.get("follows")
    if not isinstance(names, list):
        names = [names] if isinstance(names, str) else []
    named = [known[name] for name in dict.fromkeys(str(name) for name in names) if name in known]
    same = [each for each in known.values() if each.technique == technique]
    wins, same_wins = ([each for each in group if each.is_win] for group in (named, same))
    return tuple(each.key for each in [*(wins or same_wins), *(each for each in same if not each.is_win)])


def _is_in(source: str, code: str) -> bool:
    """Whether a kernel has a remembered rewrite already: nearly all of its lines."""
    have = {line.strip() for line in source.splitlines()}
    lines = [line.strip() for line in code.splitlines() if line.strip() and not line.strip().startswith("...")]
    return bool(lines) and sum(line in have for line in lines) >= _NEARLY_ALL * len(lines)


def described_plan(answer: Mapping[str, Any], plan_id: str, longest_gain_us: float) -> Plan:
    """The plan in a model's own words. Raises MalformedAnswer with the complaint for the model.

    `longest_gain_us`: the current latency, which no plan can gain.
    """
    gain_us = microseconds_field(answer, "expected_gain_us")
    if gain_us >= longest_gain_us:
        raise MalformedAnswer(
            f"expected_gain_us is {gain_us:g}, but the whole kernel takes only {longest_gain_us:g} µs: give the "
            "microseconds taken off the current latency"
        )
    return Plan(
        id=plan_id,
        title=" ".join(text_field(answer, "title", longest=200).split()),
        technique=_technique(text_field(answer, "technique", longest=80)),
        bottleneck=_bottleneck(text_field(answer, "bottleneck", longest=200)),
        expected_gain_us=gain_us,
        rationale=text_field(answer, "rationale", longest=4_000),
        details=text_field(answer, "details", longest=12_000, required=False),
    )


def _plan_of(answer: Answer, context: RoundContext, menu: Menu | None) -> Plan:
    """Raises MalformedAnswer with the complaint for the model."""
    plan_id = f"plan-{context.round:03d}"
    if menu is not None and answer.get("tool") not in (None, ""):
        plan = menu.tool_plan(answer, context, plan_id)
    else:
        plan = described_plan(answer, plan_id, context.parent_result.latency_us)
    for ban in context.banned:
        if ban.technique == plan.technique:
            raise MalformedAnswer(
                f"the technique {plan.technique} is not allowed until round {ban.last_round + 1}, {ban.reason}: plan "
                "another change, attacking another cause"
            )
    return replace(plan, follows=followed(answer, plan.technique, labelled(context)))


def _technique(text: str) -> str:
    """A stable key: lower case words joined by dashes."""
    name = "-".join(re.findall(r"[a-z0-9]+", text.lower()))
    if not name:
        raise MalformedAnswer(f"the field 'technique' is {text!r}; it must be a short name such as widen-dma-rows")
    return name


def _bottleneck(text: str) -> Bottleneck:
    """The one bottleneck named; a text that names none or several is ambiguous."""
    named = {kind for word, kind in _BOTTLENECK_WORDS.items() if word in text.lower()}
    if len(named) == 1:
        return named.pop()
    choices = ", ".join(kind.value for kind in Bottleneck)
    raise MalformedAnswer(f"the field 'bottleneck' is {text[:60]!r}; it must be exactly one of {choices}")
