"""The catalogue in a model's menu: what is offered, what a model may answer, and that a tool costs no model call."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.catalogue.kernel_trees import SingleSteps
from accelopt_core.catalogue.menu import CatalogueMenu
from accelopt_core.evaluation import Gap, HotLine
from accelopt_core.languages.nki.dialect import Dialect
from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.languages.nki.machine_facts import machine_facts
from accelopt_core.model.prompting import PromptSettings
from accelopt_core.model.proposer import proposer_from_model
from accelopt_core.ports import Role
from accelopt_core.proposer import CannotRepair, Feedback, Proposer, UnusablePlan, UnusableReply
from infra.llm.provider import ProviderSettings
from infra.llm.registry import build_model
from infra.prediction.step_book import BadStepBook, StepBookFile
from ka_extensions.idea_bans import Ban
from nki_sim.machine import machine
from tests.attempts import attempted
from tests.catalogue.scripted import ScriptedTrees, letters_of, source_of
from tests.llm.scenes import context
from tests.llm.wire_server import Script, SeenRequest, WireServer

GAINS = {"a": 20.0, "b": 5.0, "c": 1.5, "d": 0.5, "e": -3.0}
STEP = {"title": "go on", "tool": "walk", "site": "a", "rationale": "it is shorter"}
OWN = {"title": "Load the scale once", "technique": "hoist-by-hand", "bottleneck": "memory-bound",
       "expected_gain_us": 3, "rationale": "the repeated load", "details": "above the loop"}  # fmt: skip

TRN2_FACTS = machine_facts(machine("trn2"))


@contextmanager
def stage(script: Script, menu: CatalogueMenu | None) -> Iterator[tuple[Proposer, list[SeenRequest]]]:
    with WireServer(script) as server:
        model = build_model("anthropic", ProviderSettings("test-model", server.url, "test-key", 20.0))
        today = lambda: datetime.date(2026, 3, 1)  # noqa: E731  # a clock, not a function worth a name
        settings = PromptSettings("nki", TRN2_FACTS, Dialect())
        models = {role: model for role in Role}
        yield proposer_from_model(models, lambda source, also: "API", "", settings, today, menu), server.requests


def menu_of(trees: ScriptedTrees | None = None, book: StepBookFile | None = None) -> CatalogueMenu:
    return CatalogueMenu(trees or ScriptedTrees(GAINS), book=book, tie=0.02)


def fresh(**changes):
    return replace(context(), **{"history": (), "parent": Candidate("base", source_of("")), **changes})


def with_gaps(*gaps: Gap):
    scene = fresh()
    profile = replace(scene.parent_result.profile, gaps=gaps, hot_lines=(HotLine(1, "vector", 9.0, 9, "work"),))
    return replace(scene, parent_result=replace(scene.parent_result, profile=profile))


def test_what_keeps_the_tools_from_the_larger_gaps_is_told_and_of_no_others() -> None:
    us = fresh().parent_result.latency_us
    scene = with_gaps(
        Gap(f"{Cause.ELEMENTWISE.value} vector", 0.3 * us, "fuse", "8 µs"),
        Gap(Cause.TAIL.value, 0.04 * us, "make the last piece small", "1 µs"),
    )
    offers = menu_of().offers(scene)
    (blocked,) = offers.blocked
    assert any("there is no way back" in reason for reason in blocked.reasons)
    assert not [reason for reason in blocked.reasons if "predicted to gain 20" in reason]


def test_the_menu_names_what_gains_best_first_and_ties_last() -> None:
    offers = menu_of().offers(fresh())
    assert [(offer.site, offer.gain_us, offer.tie) for offer in offers.offers] == [
        ("a", 20.0, False), ("b", 5.0, False), ("c", 1.5, True),
    ]  # fmt: skip
    with stage([json.dumps(OWN)], menu_of()) as (proposer, requests):
        proposer.planner.plan(fresh())
    prompt = requests[0].last_user_message
    assert all(f"| {offer.tool} | {offer.site} | {offer.change}" in prompt for offer in offers.offers)
    assert "a tie, 1.5 µs" in prompt and '"tool": "…"' in prompt


def test_a_model_picks_a_tool_or_ignores_the_menu() -> None:
    with stage([json.dumps(STEP)], menu_of()) as (proposer, requests):
        plan = proposer.planner.plan(fresh())
        source = proposer.executor.execute(fresh(), plan, ())
        assert len(requests) == 1
    assert (plan.technique, plan.expected_gain_us, plan.title) == ("walk", 20.0, "go a")
    assert letters_of(source) == "a"
    with stage([json.dumps(OWN)], menu_of()) as (proposer, _):
        plan = proposer.planner.plan(fresh())
    assert (plan.technique, plan.details) == ("hoist-by-hand", "above the loop")
    with stage([json.dumps(STEP)], menu_of()) as (proposer, requests):
        plan = proposer.planner.plan(fresh())
        with pytest.raises(CannotRepair, match="no second version of this change: SBUF is full"):
            proposer.executor.execute(fresh(), plan, (Feedback("...", "SBUF is full"),))
        with pytest.raises(UnusableReply, match="cannot be applied"):
            proposer.executor.execute(fresh(parent=Candidate("p", source_of("a"))), plan, ())
        assert len(requests) == 1


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ({**STEP, "tool": "magic"}, "tool magic cannot be used"),
        ({**STEP, "site": "z"}, "tool walk cannot be used at site 'z'"),
        ({**STEP, "site": 7}, "the field 'site' is 7; it must be text"),
        ({**STEP, "site": None}, "the field 'site' is missing"),
        ({**STEP, "rationale": ""}, "the field 'rationale' is empty"),
    ],
)
def test_a_tool_or_site_that_is_not_there_is_asked_for_again_once(answer, complaint) -> None:
    with stage([json.dumps(answer), json.dumps(STEP)], menu_of()) as (proposer, requests):
        assert proposer.planner.plan(fresh()).technique == "walk"
        assert len(requests) == 2
        assert complaint in requests[1].last_user_message
    with stage([json.dumps(answer), json.dumps(answer)], menu_of()) as (proposer, requests):
        with pytest.raises(UnusablePlan, match="answered twice"):
            proposer.planner.plan(fresh())
        assert len(requests) == 2


def test_what_was_tried_or_is_banned_is_not_offered_and_what_was_not_sent_is() -> None:
    menu = menu_of()
    with stage([json.dumps(STEP)], menu) as (proposer, _):
        beside = proposer.planner.plan(fresh())
        made = proposer.executor.execute(fresh(), beside, ())
    tried = attempted(1, "no_improvement", source=made, parent="base", technique="t", title="x", latency_us=1.0)
    tried = replace(tried, plan=beside)
    ban = Ban("walk", 1, 9, "it failed three times")
    for situation in (fresh(history=(tried,)), fresh(banned=(ban,)), fresh(planned=(beside,))):
        assert "a" not in [offer.site for offer in menu.offers(situation).offers]
        with stage([json.dumps(STEP), json.dumps(OWN)], menu) as (proposer, requests):
            assert proposer.planner.plan(situation).technique == "hoist-by-hand"
            assert len(requests) == 2
    menu = menu_of()
    with stage([json.dumps(STEP)], menu) as (proposer, _):
        plan = proposer.planner.plan(fresh())
        made = proposer.executor.execute(fresh(), plan, ())
    outranked = replace(attempted(1, "outranked", source=made, parent="base", technique="t"), plan=plan)
    situation = fresh(history=(outranked,))
    assert "a" in [offer.site for offer in menu.offers(situation).offers]
    with stage([json.dumps(STEP)], menu) as (proposer, _):
        assert proposer.planner.plan(situation).technique == "walk"


def test_without_a_menu_nothing_is_offered_and_the_prompt_says_why() -> None:
    with stage([json.dumps({**OWN, **STEP})], None) as (proposer, requests):
        plan = proposer.planner.plan(fresh())
    assert plan.details == "above the loop"
    assert "menu" not in requests[0].last_user_message.lower()
    assert '"tool"' not in requests[0].last_user_message
    with stage([json.dumps(OWN)], menu_of(ScriptedTrees(GAINS, unreadable="a riddle"))) as (proposer, requests):
        proposer.planner.plan(fresh())
    assert "the catalogue cannot read this kernel: a riddle" in requests[0].last_user_message


def test_a_resumed_run_shows_the_same_menu_and_prices_nothing_again(tmp_path: Path) -> None:
    class Never(ScriptedTrees):
        def single_steps(self, source: str, limit_s: float = 0.0) -> SingleSteps:
            raise AssertionError("this was priced before")

    first = menu_of(book=StepBookFile([tmp_path])).offers(fresh())
    again = menu_of(Never(GAINS), StepBookFile([tmp_path])).offers(fresh())
    replayed = menu_of(Never(GAINS), StepBookFile([tmp_path / "other", tmp_path])).offers(fresh())
    assert first == again == replayed and first.offers


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1}', '{"a": {"b": "x"}}'])
def test_a_damaged_book_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "menu_steps.json").write_text(text)
    with pytest.raises(BadStepBook, match="menu_steps.json: .*move it away"):
        StepBookFile([tmp_path])
