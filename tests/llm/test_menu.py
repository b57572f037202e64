"""The catalogue in a model's menu: what is offered, what a model may answer, and that a tool costs no model call."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.catalogue.menu import CatalogueMenu
from accelopt_core.evaluation import Gap
from accelopt_core.languages.nki.dialect import Dialect
from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.languages.nki.machine_facts import machine_facts
from accelopt_core.model.prompting import PromptSettings
from accelopt_core.model.proposer import proposer_from_model
from accelopt_core.ports import Role
from accelopt_core.proposer import CannotRepair, Feedback, Proposer, UnusablePlan, UnusableReply
from accelopt_core.transforms.registry import TRANSFORMS
from infra.llm.provider import ProviderSettings
from infra.llm.registry import build_model
from infra.prediction.price_book import BadPriceBook, PriceBookFile
from ka_extensions.idea_bans import Ban
from nki_sim.machine import machine
from tests.attempts import attempted
from tests.llm.scenes import KERNEL, context
from tests.llm.wire_server import Script, SeenRequest, WireServer
from tests.transforms.running import KEEPS_LOADS, predictor, priced_by, random, run
from tests.transforms.test_search import Walk, node, word

X, SCALE = random(4096, 256), random(128, 1, seed=1)
PRICE = priced_by(predictor(X, SCALE, core=KEEPS_LOADS))
HOIST = {"title": "scale once", "tool": "hoist-invariant-load", "site": "s/i", "rationale": "the repeated load"}
OWN = {
    "title": "Load the scale once",
    "technique": "hoist-by-hand",
    "bottleneck": "memory-bound",
    "expected_gain_us": 3,
    "rationale": "the repeated load",
    "details": "above the loop",
}


TRN2_FACTS = machine_facts(machine("trn2"))


@contextmanager
def stage(script: Script, menu: CatalogueMenu | None) -> Iterator[tuple[Proposer, list[SeenRequest]]]:
    with WireServer(script) as server:
        model = build_model("anthropic", ProviderSettings("test-model", server.url, "test-key", 20.0))
        today = lambda: datetime.date(2026, 3, 1)  # noqa: E731  # a clock, not a function worth a name
        yield (
            proposer_from_model(
                {role: model for role in Role},
                lambda source, also: "API",
                "",
                PromptSettings("nki", TRN2_FACTS, Dialect()),
                today,
                menu,
            ),
            server.requests,
        )


def fresh(**changes):
    return replace(context(), history=(), **changes)


def with_gaps(*gaps: Gap):
    scene = fresh()
    result = replace(scene.parent_result, profile=replace(scene.parent_result.profile, gaps=gaps))
    return replace(scene, parent_result=result)


def test_a_model_is_told_what_keeps_the_tools_from_the_larger_gaps_and_of_no_others() -> None:
    us = fresh().parent_result.latency_us
    scene = with_gaps(
        Gap(f"{Cause.ELEMENTWISE.value} vector", 0.3 * us, "fuse", "8 µs"),
        Gap(Cause.TABLE_SWITCHES.value, 0.2 * us, "group activations by function", "9 loads"),
        Gap(Cause.TAIL.value, 0.04 * us, "make the last piece small", "1 µs"),
    )
    offers = CatalogueMenu(PRICE).offers(scene)

    assert [blocked.gap.partition(":")[0] for blocked in offers.blocked] == [
        "elementwise work on vector", "activation table switches",
    ]  # fmt: skip
    vector, switches = offers.blocked
    line = 1 + next(at for at, text in enumerate(KERNEL.splitlines()) if "tensor_scalar" in text)
    assert any(f"fuse-elementwise refused, line {line}: " in reason for reason in vector.reasons)
    assert not [reason for reason in vector.reasons if "predicted to gain" in reason]
    assert switches.reasons == ("no transform of the catalogue addresses it; what does: group activations by function",)
    with stage([json.dumps(OWN)], CatalogueMenu(PRICE)) as (proposer, requests):
        proposer.planner.plan(scene)
    prompt = requests[0].last_user_message
    assert "### What keeps the tools from the larger gaps" in prompt
    assert all(reason in prompt for blocked in offers.blocked for reason in blocked.reasons)


def test_where_no_gap_is_large_there_is_nothing_to_say_of_the_tools() -> None:
    with stage([json.dumps(OWN)], CatalogueMenu(PRICE)) as (proposer, requests):
        proposer.planner.plan(with_gaps())
    assert "What keeps the tools" not in requests[0].last_user_message


def test_the_menu_names_tools_with_what_they_do_and_gain_best_first() -> None:
    offers = CatalogueMenu(PRICE).offers(fresh())

    gains = [offer.gain_us for offer in offers.offers]
    assert gains == sorted(gains, reverse=True) and gains[-1] > 0
    assert ("hoist-invariant-load", "s/i") in [(offer.tool, offer.site) for offer in offers.offers]
    with stage([json.dumps(OWN)], CatalogueMenu(PRICE)) as (proposer, requests):
        proposer.planner.plan(fresh())
    prompt = requests[0].last_user_message
    for offer in offers.offers:
        assert f"| {offer.tool} | {offer.site} | {offer.change}" in prompt
    assert "- hoist-invariant-load: " in prompt
    assert "a plan of your own may gain more than any line of it" in prompt
    assert '"tool": "tool name"' in requests[0].last_user_message


def test_gains_that_are_ties_stand_last_and_say_so_and_of_equal_ones_the_simpler_comes_first() -> None:
    """A step by a capital letter adds a line."""
    prices = {"": 100.0, "A": 80.0, "b": 81.0, "c": 95.0, "d": 98.5, "e": 99.5}
    walk = Walk({"": "edcbA"})
    start = fresh(parent=Candidate("p", node("")))
    menu = CatalogueMenu(priced_by(lambda text: prices[word(text)]), transforms=(walk,), tie=0.02)

    offers = menu.offers(start)

    assert [(offer.site, offer.gain_us, offer.tie) for offer in offers.offers] == [
        ("b", 19.0, False), ("A", 20.0, False), ("c", 5.0, False), ("d", 1.5, True),
    ]  # fmt: skip
    with stage([json.dumps(OWN)], menu) as (proposer, requests):
        proposer.planner.plan(start)
    prompt = requests[0].last_user_message
    assert "Gains less than 2 µs apart are ties" in prompt
    assert "d is shorter | a tie, 1.5 µs |" in prompt and prompt.count("| a tie, ") == 1


def test_a_model_picks_a_tool_and_the_kernel_is_made_without_asking_it_again() -> None:
    with stage([json.dumps(HOIST)], CatalogueMenu(PRICE)) as (proposer, requests):
        plan = proposer.planner.plan(fresh())
        source = proposer.executor.execute(fresh(), plan, ())

        assert len(requests) == 1
    assert plan.technique == "hoist-invariant-load"
    prices = PRICE([KERNEL, source])
    assert plan.expected_gain_us == pytest.approx(prices[KERNEL] - prices[source])
    np.testing.assert_array_equal(run(source, X, SCALE), run(KERNEL, X, SCALE))
    assert source.index("src=scale") < source.index("for i in")


def test_a_model_may_ignore_the_menu() -> None:
    with stage([json.dumps(OWN)], CatalogueMenu(PRICE)) as (proposer, _):
        plan = proposer.planner.plan(fresh())

    assert (plan.technique, plan.details) == ("hoist-by-hand", "above the loop")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ({**HOIST, "tool": "magic"}, "no tool is called 'magic'; there are: "),
        ({**HOIST, "site": "s/k"}, "tool hoist-invariant-load cannot be used at site 's/k'"),
        ({**HOIST, "site": "t/i"}, "cannot be used at site 't/i' of the current kernel (what fills "),
        ({**HOIST, "site": 7}, "the field 'site' is 7; it must be text"),
        ({**HOIST, "site": None}, "the field 'site' is missing"),
        ({**HOIST, "rationale": ""}, "the field 'rationale' is empty"),
    ],
)
def test_a_tool_or_site_that_is_not_there_is_asked_for_again_once(answer, complaint) -> None:
    with stage([json.dumps(answer), json.dumps(HOIST)], CatalogueMenu(PRICE)) as (proposer, requests):
        assert proposer.planner.plan(fresh()).technique == "hoist-invariant-load"
        assert len(requests) == 2
        assert complaint in requests[1].last_user_message

    with stage([json.dumps(answer), json.dumps(answer)], CatalogueMenu(PRICE)) as (proposer, requests):
        with pytest.raises(UnusablePlan, match="answered twice"):
            proposer.planner.plan(fresh())
        assert len(requests) == 2


def test_what_was_tried_or_is_banned_is_neither_offered_nor_accepted() -> None:
    menu = CatalogueMenu(PRICE)
    with stage([json.dumps(HOIST)], menu) as (proposer, _):
        made = proposer.executor.execute(fresh(), proposer.planner.plan(fresh()), ())
    tried = attempted(1, "no_improvement", source=made, parent="base", technique="t", title="x", latency_us=1.0)
    ban = Ban("hoist-invariant-load", 1, 9, "it failed three times")
    with stage([json.dumps(HOIST)], menu) as (proposer, _):
        beside = proposer.planner.plan(fresh())

    for situation in (replace(context(), history=(tried,)), fresh(banned=(ban,)), fresh(planned=(beside,))):
        assert "s/i" not in [offer.site for offer in menu.offers(situation).offers]
        with stage([json.dumps(HOIST), json.dumps(OWN)], menu) as (proposer, requests):
            assert proposer.planner.plan(situation).technique == "hoist-by-hand"
            assert len(requests) == 2


def test_what_was_not_sent_to_the_device_is_offered_and_accepted_again() -> None:
    menu = CatalogueMenu(PRICE)
    with stage([json.dumps(HOIST)], menu) as (proposer, _):
        made = proposer.executor.execute(fresh(), proposer.planner.plan(fresh()), ())
    situation = replace(fresh(), history=(attempted(1, "outranked", source=made, parent="base", technique="t"),))
    assert "s/i" in [offer.site for offer in menu.offers(situation).offers]
    with stage([json.dumps(HOIST)], menu) as (proposer, _):
        assert proposer.planner.plan(situation).technique == "hoist-invariant-load"


def test_a_tool_s_kernel_that_was_refused_ends_the_round_without_a_model_call() -> None:
    with stage([json.dumps(HOIST)], CatalogueMenu(PRICE)) as (proposer, requests):
        plan = proposer.planner.plan(fresh())

        with pytest.raises(CannotRepair, match="no second version of this change: SBUF is full"):
            proposer.executor.execute(fresh(), plan, (Feedback("...", "SBUF is full"),))
        with pytest.raises(UnusableReply, match="cannot be applied"):
            proposer.executor.execute(fresh(parent=Candidate("p", run_once(KERNEL))), plan, ())
        assert len(requests) == 1


def run_once(source: str) -> str:
    return source.replace("dma_copy(dst=s", "dma_copy(dst=s[0:128, 0:1]").replace("for i in", "for r in")


def test_without_a_menu_nothing_is_offered_and_a_tool_is_no_tool() -> None:
    with stage([json.dumps({**OWN, **HOIST})], None) as (proposer, requests):
        plan = proposer.planner.plan(fresh())

    assert plan.details == "above the loop"
    assert "menu" not in requests[0].last_user_message.lower()
    assert '"tool"' not in requests[0].last_user_message


@pytest.mark.parametrize(
    ("source", "price", "note"),
    [
        ("x = 1\n", 1.0, "the catalogue cannot read this kernel: no function called"),
        (KERNEL, None, "the simulated machine cannot compile this kernel"),
    ],
)
def test_where_there_can_be_no_menu_the_prompt_says_why(source, price, note) -> None:
    menu = CatalogueMenu(priced_by(lambda text: price))
    with stage([json.dumps(OWN)], menu) as (proposer, requests):
        proposer.planner.plan(fresh(parent=Candidate("p", source)))

    assert note in requests[0].last_user_message


def test_what_the_time_does_not_suffice_for_is_not_offered_and_counted() -> None:
    def hurried(sources, limit_s=np.inf):
        known = PRICE(sources)
        return {text: known[text] for text in sources} if limit_s > 5 else dict(list(known.items())[:1])

    everything, some = CatalogueMenu(hurried, 10.0).offers(fresh()), CatalogueMenu(hurried, 5.0).offers(fresh())

    assert everything.not_priced == 0
    assert some.not_priced > 0 and len(some.offers) <= 1


def test_a_resumed_run_shows_the_same_menu_and_prices_nothing_again(tmp_path: Path) -> None:
    def never(sources, limit_s=np.inf):
        raise AssertionError("this was priced before")

    first = CatalogueMenu(PRICE, book=PriceBookFile([tmp_path])).offers(fresh())

    again = CatalogueMenu(never, book=PriceBookFile([tmp_path])).offers(fresh())
    replayed = CatalogueMenu(never, book=PriceBookFile([tmp_path / "other", tmp_path])).offers(fresh())

    assert first == again == replayed


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1}', '{"a": {"b": "x"}}'])
def test_a_damaged_price_book_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "menu_prices.json").write_text(text)

    with pytest.raises(BadPriceBook, match="menu_prices.json: .*move it away"):
        PriceBookFile([tmp_path])


def test_every_transform_can_be_described_to_a_model_in_one_line() -> None:
    for transform in TRANSFORMS:
        assert "\n" not in transform.describe() and len(transform.describe()) < 250
