"""Plans out of replies: what is forgiven, and what is sent back with a precise complaint."""

from __future__ import annotations

import json

import pytest

from accelopt_core.evaluation import Bottleneck
from accelopt_core.model.answers import MalformedAnswer, list_field, read_object, word_field
from accelopt_core.model.planner import described_plan

FIELDS = {
    "title": "Load the scale once", "technique": "hoist-invariant-load", "bottleneck": "underutilized",
    "expected_gain_us": 60.0, "rationale": "line 13 costs 61.5 µs", "details": "move lines 12 and 13 above the loop",
}  # fmt: skip
PLAIN = json.dumps(FIELDS)


def changed(**fields: object) -> str:
    return json.dumps({**FIELDS, **fields})


READ = {
    "the object alone": PLAIN,
    "in a json fence after prose": f"The loop repeats a load.\n\n```json\n{PLAIN}\n```\nGood luck!",
    "in a fence without a language": f"```\n{PLAIN}\n```", "in a fence that never closes": f"```json\n{PLAIN}",
    "inside prose": f"My plan is {PLAIN}, as explained.",
    "after thoughts with braces": f"<think>dict {{}} and {{'title': 1}}</think>\n{PLAIN}",
    "after a code block": f"```python\nd = {{'a': 1}}\n```\n{PLAIN}", "a list of one": f"[{PLAIN}]",
    "a draft and then the real one": f"First idea: {changed(title='Draft')}\nBetter:\n```json\n{PLAIN}\n```",
    "trailing commas": PLAIN[:-1] + ",}", "comments": PLAIN.replace('{"title"', '{\n// the change\n"title"'),
    "raw newlines in a text": PLAIN.replace("move lines 12", "move\nlines 12"), "a Python literal": repr(FIELDS),
    "a number as text": changed(expected_gain_us="~60 µs"), "milliseconds": changed(expected_gain_us="0.06 ms"),
    "other words for the bottleneck": changed(bottleneck="Under-utilized".replace("-", "")),
    "technique in words": changed(technique="Hoist invariant load"),
    "more fields than asked for": changed(confidence=0.8, risks=["none"]),
}  # fmt: skip


@pytest.mark.parametrize("reply", READ.values(), ids=READ.keys())
def test_a_plan_is_read(reply: str) -> None:
    plan = described_plan(read_object(reply, required="title"), "plan-001", 400.0)
    assert (plan.title, plan.technique, plan.bottleneck) == (
        "Load the scale once", "hoist-invariant-load", Bottleneck.UNDERUTILIZED
    )  # fmt: skip
    assert plan.expected_gain_us == pytest.approx(60.0)
    assert plan.rationale == FIELDS["rationale"]


def test_the_bottleneck_may_be_said_in_other_words() -> None:
    for word, meant in (
        ("memory-bound", Bottleneck.MEMORY_BOUND),
        ("Memory bound", Bottleneck.MEMORY_BOUND),
        ("DMA bandwidth", Bottleneck.MEMORY_BOUND),
        ("compute_bound", Bottleneck.COMPUTE_BOUND),
    ):
        plan = described_plan(read_object(changed(bottleneck=word), required="title"), "p", 400.0)
        assert plan.bottleneck is meant


COMPLAINTS = {
    "nothing": ("", "the answer is empty"),
    "prose only": ("I would hoist the load.", "holds no JSON object"),
    "cut off": (PLAIN[:80], "cannot be parsed (Unterminated string"),
    "several plans": (f"[{PLAIN}, {PLAIN}]", "list of 2 objects; answer with exactly one"),
    "another object": ('{"plan": "hoist"}', "no field 'title'; it has ['plan']"),
    "no gain": (PLAIN.replace("expected_gain_us", "gain"), "'expected_gain_us' is missing"),
    "a percentage": (changed(expected_gain_us="15 %"), "\"15 %\"; it must be one plain number"),
    "a range": (changed(expected_gain_us="50-70"), "it must be one plain number"),
    "negative": (changed(expected_gain_us=-3), "must not be negative"),
    "NaN": (changed(expected_gain_us=float("nan")), "it must be one plain number"),
    "a boolean": (changed(expected_gain_us=True), "it must be one plain number"),
    "more than everything": (changed(expected_gain_us=500), "the whole kernel takes only 400 µs"),
    "no bottleneck": (changed(bottleneck="everything"), "exactly one of compute-bound, memory-bound, underutilized"),
    "two bottlenecks": (changed(bottleneck="memory-bound and compute-bound"), "must be exactly one of"),
    "empty title": (changed(title="  "), "'title' is empty"),
    "no rationale": (changed(rationale=None), "'rationale' is missing"),
    "technique of signs": (changed(technique="!?"), "must be a short name"),
    "title of the wrong kind": (changed(title={"a": 1}), "must be text"),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "complaint"), COMPLAINTS.values(), ids=COMPLAINTS.keys())
def test_a_malformed_plan_is_answered_with_a_precise_complaint(reply: str, complaint: str) -> None:
    with pytest.raises(MalformedAnswer) as raised:
        described_plan(read_object(reply, required="title"), "plan-001", 400.0)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_fields_are_forgiven_what_is_meant_and_no_more() -> None:
    for value, items in ((None, ()), ([], ()), ("one", ("one",)), (["a", "a", "b  c", "none", ""], ("a", "b c")),
                         (["a", "b", "c", "d"], ("a", "b", "c"))):  # fmt: skip
        assert list_field({"avoid": value}, "avoid", most=3, longest=50) == items
    for value in ("partly", " Partly ", "PARTLY"):
        assert word_field({"diagnosis": value}, "diagnosis", ("right", "partly")) == "partly"
    for value in (None, True, "wrong", "right | partly"):
        with pytest.raises(MalformedAnswer, match="must be one of right, partly"):
            word_field({"diagnosis": value}, "diagnosis", ("right", "partly"))
    for value in (7, {"a": 1}, [1, 2]):
        with pytest.raises(MalformedAnswer, match="must be a list of texts"):
            list_field({"avoid": value}, "avoid", most=3, longest=50)


@pytest.mark.parametrize("hostile", ["{" * 50_000, "[{" * 20_000, '{"a":' * 5_000, "{" + "x" * 200_000])
def test_hostile_answers_are_refused_in_bounded_time(hostile: str) -> None:
    with pytest.raises(MalformedAnswer):
        read_object(hostile, required="title")
