"""The four roles over the real Claude client and a scripted server: what they ask, and what they make of answers."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.evaluation import Bottleneck, CompileFailed
from accelopt_core.languages.nki.dialect import Dialect
from accelopt_core.languages.nki.machine_facts import machine_facts
from accelopt_core.learning.by_numbers import NumbersReflector
from accelopt_core.model.prompting import PromptSettings
from accelopt_core.model.proposer import proposer_from_model
from accelopt_core.ports import ModelContextOverflow, Role
from accelopt_core.proposer import Feedback, Proposer, UnusablePlan, UnusableReply
from infra.llm.provider import ProviderSettings
from infra.llm.registry import build_model
from ka_extensions.divergence_guard import DivergenceGuard
from ka_extensions.error_patterns import RecurringError
from ka_extensions.idea_bans import Ban
from ka_extensions.reflexion import Diagnosis
from nki_sim.machine import machine
from nki_sim.reference import api_reference, instruction_list
from tests.attempts import attempted
from tests.llm.scenes import BETTER, KERNEL, PLAN, context, measured
from tests.llm.wire_server import HttpFault, Says, Script, SeenRequest, WireServer

GOOD_PLAN = json.dumps({
    "title": "Load the scale once", "technique": "hoist-invariant-load", "bottleneck": "underutilized",
    "expected_gain_us": 60, "rationale": "the repeated load", "details": "above the loop",
})  # fmt: skip
TRN2_FACTS = machine_facts(machine("trn2"))
API = "nisa.dma_copy(dst, src): moves a tile"
INSTRUCTIONS = "- nisa.dma_copy(dst, src, engine): moves"


@dataclass
class Stage:
    server: WireServer
    proposer: Proposer

    @property
    def requests(self) -> list[SeenRequest]:
        return self.server.requests


@contextmanager
def stage(script: Script, settings: PromptSettings | None = None) -> Iterator[Stage]:
    with WireServer(script) as server:
        model = build_model("anthropic", ProviderSettings("test-model", server.url, "test-key", 20.0))
        yield Stage(
            server,
            proposer_from_model(
                {role: model for role in Role},
                lambda source, also: API,
                INSTRUCTIONS,
                settings or PromptSettings("nki", TRN2_FACTS, Dialect()),
                lambda: datetime.date(2026, 3, 1),
            ),
        )


def test_the_planner_is_shown_the_problem_the_profile_and_the_history() -> None:
    with stage([GOOD_PLAN]) as given:
        plan = given.proposer.planner.plan(context())
    assert (plan.id, plan.bottleneck, plan.expected_gain_us) == ("plan-004", Bottleneck.UNDERUTILIZED, 60.0)
    prompt = given.requests[0].last_user_message
    kernel, gap, hot = "nisa.dma_copy(dst=s, src=scale)", "loads: 61.5 µs", "18 vector 80.5 µs in 32"
    history = "Load two tiles [widen-dma-rows]: incorrect"
    for shown in (kernel, gap, hot, history, "M4096 N2048", "def get_inputs(rng)", "800.0 µs", "32.02 MiB", "168.0 µs",
                  "1.42x on rmsnorm", "(0.80x) on bmm", "gained -1 µs", "resident scale"):  # fmt: skip
        assert shown in prompt
    assert "a_field_nobody_listed" not in prompt


def test_what_all_roles_and_rounds_share_comes_first_and_is_marked_for_the_cache() -> None:
    replies = [GOOD_PLAN, f"```python\n{BETTER}```", GOOD_REVIEW, GOOD_PLAN]
    with stage(replies) as given:
        given.proposer.planner.plan(context())
        given.proposer.executor.execute(context(), PLAN, ())
        given.proposer.reflector.reflect(context(), *WON)
        given.proposer.planner.plan(context(round=5, parent=Candidate("c4", BETTER), history=()))
    assert len({seen.system for seen in given.requests}) == 1
    assert "Trainium2" in given.requests[0].system and INSTRUCTIONS in given.requests[0].system
    blocks = [seen.body["messages"][0]["content"] for seen in given.requests]
    marked = [["cache_control" in block for block in each] for each in blocks]
    plan, after = [True, True, False], [True, True, True, False]
    assert marked == [plan, after, after, plan]
    texts = [[block["text"] for block in each] for each in blocks]
    assert texts[0][:2] == texts[1][:2] and texts[1][:3] == texts[2][:3] and texts[0][0] == texts[3][0] != texts[3][1]


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_most_of_what_a_later_round_sends_was_at_the_beginning_of_the_call_before(provider: str) -> None:
    later = context(round=5, parent=Candidate("c4", BETTER), parent_result=measured(320.0))
    with WireServer([GOOD_PLAN, f"```python\n{BETTER}```", GOOD_SUMMARY, GOOD_PLAN, f"```python\n{KERNEL}\nX = 2\n```",
                     GOOD_REVIEW]) as server:  # fmt: skip
        url = server.url if provider == "anthropic" else server.openai_url
        model = build_model(provider, ProviderSettings("test-model", url, "test-key", 20.0))
        api, guide = (lambda source, also: api_reference(source, "trn2", also=also)), instruction_list("trn2")
        settings = PromptSettings("nki", TRN2_FACTS, Dialect())
        proposer = proposer_from_model({role: model for role in Role}, api, guide, settings)
        for scene in (context(), later):
            proposer.planner.plan(scene)
            proposer.executor.execute(scene, PLAN, ())
            if scene is not later:
                proposer.summarizer.summarize(scene, *WON)
            proposer.reflector.reflect(scene, *WON)
    texts = [seen.system + seen.last_user_message for seen in server.requests]
    shared = [len(os.path.commonprefix(pair)) for pair in pairwise(texts)][2:]
    assert sum(shared) >= 0.7 * sum(map(len, texts[3:]))


def test_a_malformed_plan_is_asked_for_once_more_with_the_complaint() -> None:
    with stage([GOOD_PLAN.replace("underutilized", "slow"), f"Sorry.\n```json\n{GOOD_PLAN}\n```"]) as given:
        assert given.proposer.planner.plan(context()).title == "Load the scale once"
    again = given.requests[1].body["messages"]
    assert [message["role"] for message in again] == ["user", "assistant", "user"]
    assert "the field 'bottleneck' is 'slow'" in given.requests[1].last_user_message
    with stage(["I would hoist it.", "As I said: hoist it."]) as given:
        with pytest.raises(UnusablePlan, match="answered twice without a usable plan: the answer holds no JSON object"):
            given.proposer.planner.plan(context())
        assert len(given.requests) == 2


def test_one_answer_may_bring_all_plans_of_a_round() -> None:
    other = json.loads(GOOD_PLAN) | {"technique": "widen-rows", "title": "Load two tiles"}
    unusable = other | {"bottleneck": "slow"}
    several = json.dumps([json.loads(GOOD_PLAN), unusable, other])
    with stage([f"```json\n{several}\n```", GOOD_PLAN]) as given:
        first = given.proposer.planner.plan(context(wanted=3))
        second = given.proposer.planner.plan(context(wanted=2, planned=(first,)))
        assert (first.title, second.title, len(given.requests)) == ("Load the scale once", "Load two tiles", 1)
        assert given.proposer.planner.plan(context(wanted=1, planned=(first, second))).title == first.title
        assert len(given.requests) == 2, "what was left was of no use"
    asked = [seen.last_user_message for seen in given.requests]
    assert "one JSON list of 3 such objects" in asked[0] and "exactly one JSON object" in asked[1]


def test_a_banned_technique_is_named_in_the_prompt_and_asked_again_once() -> None:
    ban = Ban("hoist-invariant-load", 3, 9, "no improvement in 3 rounds in a row (incorrect)")
    other = GOOD_PLAN.replace("hoist-invariant-load", "widen-dma-rows")
    with stage([GOOD_PLAN, other]) as given:
        assert given.proposer.planner.plan(context(banned=(ban,))).technique == "widen-dma-rows"
    assert "hoist-invariant-load (no improvement in 3" in given.requests[0].last_user_message
    assert "not allowed until round 10" in given.requests[1].last_user_message
    with stage([GOOD_PLAN, GOOD_PLAN]) as given, pytest.raises(UnusablePlan, match="not allowed until round 10"):
        given.proposer.planner.plan(context(banned=(ban,)))


def test_the_executor_is_shown_plan_kernel_api_and_policy() -> None:
    with stage([f"```python\n{BETTER}```"]) as given:
        assert given.proposer.executor.execute(context(), PLAN, ()) == BETTER
    prompt = given.requests[0].last_user_message
    for shown in (PLAN.title, PLAN.rationale, "nisa.tensor_scalar(dst=y", API, "2e-05", "float32-faithful"):
        assert shown in prompt


def test_failed_tries_come_back_with_line_numbers_and_message() -> None:
    failed = BETTER.replace("nl.silu", "nl.slu")
    feedback = (Feedback("no code here", "the reply holds no code block"),
                Feedback(failed, "does not compile (line 18): nl has no name slu"))  # fmt: skip
    with stage([f"```python\n{BETTER}```"]) as given:
        given.proposer.executor.execute(context(), PLAN, feedback)
    prompt = given.requests[0].last_user_message
    assert "try 1: `the reply holds no code block`" in prompt
    assert "nisa.activation(dst=y, op=nl.slu, data=t, scale=s)\n" in prompt and "  #L10\n" in prompt
    assert "does not compile (line 18): nl has no name slu" in prompt
    assert "This same failure" not in prompt


def test_a_failure_that_comes_again_changes_the_instruction() -> None:
    feedback = tuple(
        Feedback(BETTER + f"# {line}\n", f"does not compile (line {line}): tile `t{line}` has 256 partitions")
        for line in (3, 9)
    )
    with stage([f"```python\n{BETTER.replace('nl.silu', 'nl.gelu')}```"]) as given:
        given.proposer.executor.execute(context(), PLAN, feedback)
    assert "This same failure has now come 2 times" in given.requests[0].last_user_message
    recurring = RecurringError("does not compile (line 7): the tile has 256 partitions", 3, 4)
    with stage([f"```python\n{BETTER}```"]) as given:
        given.proposer.executor.execute(context(recurring=(recurring,)), PLAN, ())
    prompt = given.requests[0].last_user_message
    assert "- 3 times: `does not compile (line 7)" in prompt and "stays clear of each." in prompt


UNUSABLE = {
    "no code block": ("I would move the load up.", (), "no code block"),
    "the parent again": (f"```python\n{KERNEL}```", (), "same code as the current kernel"),
    "the failed try again": (f"```python\n{BETTER}```", (Feedback(BETTER, "wrong"),), "a try that just failed"),
    "an old attempt": (f"```python\n{BETTER}\nX = 1\n```", (), "attempt of round 2"),
    "cut at the limit": (Says(f"```python\n{BETTER[:300]}", stop="max_tokens"), (), "cut off at its length limit"),
}


@pytest.mark.parametrize(("reply", "feedback", "advice"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_reply_without_a_new_kernel_is_refused_with_advice(reply, feedback, advice) -> None:
    with stage([reply]) as given, pytest.raises(UnusableReply) as raised:
        given.proposer.executor.execute(context(), PLAN, feedback)
    assert advice in str(raised.value)
    assert raised.value.reply


GUARD = DivergenceGuard()
WON = (PLAN, Candidate("c4", BETTER), measured(320.0), GUARD.decide(320.0, 400.0))
REVIEW = {"lesson": "The load was on the way.", "diagnosis": "right", "avoid": [], "build_on": ["resident scale"]}
ENTRY = {"title": "Hoist loads of constants", "summary": "A load in the loop repeats its latency."}
GOOD_REVIEW, GOOD_SUMMARY = json.dumps(REVIEW), json.dumps(REVIEW | ENTRY)


def test_a_win_is_filed_and_reviewed_by_one_call_with_the_models_words_and_our_numbers() -> None:
    with stage([GOOD_SUMMARY]) as given:
        experience = given.proposer.summarizer.summarize(context(), *WON)
        note = given.proposer.reflector.reflect(context(), *WON)
    assert experience.title == "Hoist loads of constants"
    assert experience.speedup == pytest.approx(1.25)
    assert (experience.technique, experience.bottleneck) == ("hoist-invariant-load", "underutilized")
    assert experience.operators == ("activation:silu", "dma_copy", "tensor_scalar:multiply")
    assert "operand0=s" in experience.slow and "operand0=s" not in experience.fast
    assert "scale=s" in experience.fast
    assert (experience.kernel, experience.machine, experience.toolchain, experience.date) == (
        "row_silu", "simulated trn2", "nki_sim 0.1", "2026-03-01"
    )  # fmt: skip
    assert (note.expected_gain_us, note.actual_gain_us, note.outcome) == (60.0, 80.0, "improved")
    assert note.diagnosis is Diagnosis.RIGHT and note.build_on == ("resident scale",)
    (request,) = given.requests
    prompt = request.last_user_message
    assert "80.0 µs gained" in prompt and "Measured: 320.0 µs" in prompt and "to save 60.0 µs of 400.0 µs" in prompt
    assert "+        nisa.activation(dst=y, op=nl.silu, data=t, scale=s)" in prompt
    shorter = json.dumps(REVIEW | ENTRY | {"slow": "for i: load(s)", "fast": "load(s)\nfor i: ..."})
    with stage([shorter]) as given:
        experience = given.proposer.summarizer.summarize(context(), *WON)
    assert (experience.slow, experience.fast) == ("for i: load(s)", "load(s)\nfor i: ...")


def test_two_models_are_asked_for_their_own_part_each() -> None:
    with WireServer([json.dumps(ENTRY), GOOD_REVIEW]) as server:
        one, other = (build_model("anthropic", ProviderSettings(n, server.url, "test-key", 20.0)) for n in "ab")
        models = {role: other if role is Role.SUMMARIZER else one for role in Role}
        proposer = proposer_from_model(
            models, lambda source, also: API, "", PromptSettings("nki", TRN2_FACTS, Dialect())
        )
        assert proposer.summarizer.summarize(context(), *WON).title == ENTRY["title"]
        assert proposer.reflector.reflect(context(), *WON).lesson == REVIEW["lesson"]
    first, second = (seen.last_user_message for seen in server.requests)
    assert '"summary"' in first and '"lesson"' not in first and '"lesson"' in second and '"summary"' not in second


def test_what_a_tool_did_is_told_by_its_numbers_without_a_call() -> None:
    won = (replace(PLAN, by_tool=True), *WON[1:])
    with stage([]) as given:
        assert given.proposer.summarizer.summarize(context(), *won).title == PLAN.title
        assert given.proposer.reflector.reflect(context(), *won).actual_gain_us == 80.0
    assert given.requests == []


@pytest.mark.parametrize(("candidate", "result", "outcome", "shown"), [
    (None, None, "no_kernel", "No usable kernel was written."),
    (Candidate("c4", BETTER), CompileFailed("unknown name slu", 18), "compile_failed",
     "does not compile (line 18): unknown name slu"),
])  # fmt: skip
def test_a_failed_round_is_reviewed_too(candidate, result, outcome, shown) -> None:
    with stage([GOOD_REVIEW]) as given:
        note = given.proposer.reflector.reflect(context(), PLAN, candidate, result, GUARD.decide(None, 400.0))
    assert (note.actual_gain_us, note.outcome) == (None, outcome)
    assert shown in given.requests[0].last_user_message


FAILED = context(failed=(Feedback(BETTER.replace("nl.silu", "nl.slu"), "unknown name slu"),))


def test_how_a_try_failed_and_what_mended_it_is_in_review_summary_and_memory() -> None:
    with stage([GOOD_SUMMARY]) as given:
        experience = given.proposer.summarizer.summarize(FAILED, *WON)
    prompt = given.requests[0].last_user_message
    assert "- try 1: `unknown name slu`" in prompt
    assert "-        nisa.activation(dst=y, op=nl.slu, data=t, scale=s)" in prompt
    assert experience.summary.endswith("repeats its latency. Try 1 failed: unknown name slu.")
    with stage(["{}", "{}"]) as given:
        assert "Try 1 failed: unknown name slu." in given.proposer.reflector.reflect(FAILED, *WON).lesson
    assert "Try 1 failed: unknown name slu." in NumbersReflector().reflect(FAILED, *WON).lesson


def test_without_a_usable_review_the_numbers_are_told_and_it_says_so() -> None:
    slower = (PLAN, Candidate("c4", BETTER), measured(440.0), GUARD.decide(440.0, 400.0))
    with stage(["It was great.", "Truly great.", "{}", "{}"]) as given:
        experience = given.proposer.summarizer.summarize(context(), *slower)
        note = given.proposer.reflector.reflect(context(), *slower)
    assert experience.title == PLAN.title and not experience.is_win
    assert "400.0 µs became 440.0 µs (0.909x)" in experience.summary and "not kept" in experience.summary
    assert "gained -40.0 µs" in note.lesson and note.diagnosis is Diagnosis.WRONG
    assert all("gave no usable review" in text for text in (experience.summary, note.lesson))


def long_run() -> tuple[Attempt, ...]:
    return tuple(
        attempted(
            n, "incorrect", name=f"c{n}", parent="c0", technique="widen-dma-rows", title=f"Idea {n}",
            summary="wrong " * 100,
        )
        for n in range(200)
    )  # fmt: skip


def test_a_prompt_is_cut_to_its_limit_and_says_so() -> None:
    with stage([GOOD_PLAN]) as given:
        given.proposer.planner.plan(context(history=long_run()))
    prompt = given.requests[0].last_user_message
    assert "Idea 199 " in prompt and "Idea 3 " not in prompt
    assert "(188 older left out; they used: widen-dma-rows)" in prompt
    settings = PromptSettings("nki", TRN2_FACTS, Dialect(), longest=12_000)
    with stage([GOOD_PLAN], settings) as given:
        given.proposer.planner.plan(context(history=long_run()))
    seen = given.requests[0]
    assert len(seen.system) + len(seen.last_user_message) <= 12_000
    assert "nisa.tensor_scalar" in seen.last_user_message


def test_a_model_with_a_short_context_gets_a_shorter_prompt() -> None:
    def overflows_above(body: dict[str, object]) -> HttpFault | str:
        if len(json.dumps(body)) > 14_000:
            return HttpFault(400, "invalid_request_error", "prompt is too long: 9000 tokens > 8000 maximum")
        return GOOD_PLAN

    with stage(overflows_above) as given:
        given.proposer.planner.plan(context(history=long_run()))
    sizes = [len(seen.last_user_message) for seen in given.requests]
    assert len(sizes) > 1 and sizes == sorted(sizes, reverse=True)


def test_a_kernel_that_fits_no_prompt_is_an_error_that_says_so() -> None:
    huge = Candidate("c0", KERNEL + "# filler\n" * 5_000)
    with (
        stage([], PromptSettings("nki", TRN2_FACTS, Dialect(), longest=20_000)) as given,
        pytest.raises(ModelContextOverflow, match="20,000"),
    ):
        given.proposer.planner.plan(context(parent=huge))
    assert given.requests == []


def test_every_role_needs_a_model() -> None:
    with pytest.raises(ValueError, match="no model for the planner, executor, summarizer, reflexion role"):
        proposer_from_model({}, lambda source, also: API, INSTRUCTIONS, PromptSettings("nki", TRN2_FACTS, Dialect()))
