"""What calls cost, what is unknown, and a budget that is kept before it is exceeded."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from accelopt_core.ports import (
    BudgetExhausted,
    Message,
    ModelBusy,
    ModelEmptyReply,
    ModelError,
    ModelRefused,
    ModelReply,
    ModelRequest,
    Role,
    Usage,
)  # fmt: skip
from infra.llm.ledger import Ledger, LedgerEntry, ModelBudget, totals_by
from infra.llm.prices import BadPriceFile, load_prices
from infra.llm.recording import (
    BadRecording,
    Exchange,
    RecordingModel,
    exchange_from_json,
    exchange_to_json,
    request_key,
)

PRICES = load_prices()
MILLION = 1_000_000


class Scripted:
    """A model in this process: the ledger never looks at how a reply is made."""

    def __init__(self, name: str, *outcomes: ModelReply | ModelError) -> None:
        self.name = name
        self._outcomes = list(outcomes)
        self.asked: list[ModelRequest] = []

    def complete(self, request: ModelRequest) -> ModelReply:
        self.asked.append(request)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, ModelError):
            raise outcome
        return outcome


def request(role: Role = Role.PLANNER, text: str = "hi", max_tokens: int = 100) -> ModelRequest:
    return ModelRequest(role, "system", (Message("user", text),), max_tokens)


def reply(model: str, usage: Usage) -> ModelReply:
    return ModelReply("ok", model, usage)


@pytest.mark.parametrize(("model", "usage", "cost_usd"), [
    ("claude-opus-5-5", Usage(MILLION, 0, 0, 0), 4.0),
    ("claude-opus-5-5", Usage(0, MILLION, 0, 0), 20.0),
    ("claude-opus-5-5", Usage(0, 0, MILLION, 0), 0.2),
    ("claude-opus-5-5", Usage(0, 0, 0, MILLION), 5.0),
    ("claude-haiku-4-5-20251001", Usage(MILLION, MILLION), 6.0),
    ("gpt-6.2-sol-2026-11-17", Usage(100_000, 0), 0.2),
    ("gpt-6.2-sol", Usage(100_000, 0, 200_000), 0.44),  # above 272,000 input tokens everything costs more
    ("anthropic/claude-sonnet-5-5", Usage(MILLION), 2.0),
])  # fmt: skip
def test_list_prices(model: str, usage: Usage, cost_usd: float) -> None:
    assert PRICES.cost_usd(model, usage) == pytest.approx(cost_usd)


@pytest.mark.parametrize("model", ["gpt-6.1-sol-turbo", "claude-opus", "qwen3-coder", "claude-opus-5-50"])
def test_an_unlisted_model_has_no_price(model: str) -> None:
    assert PRICES.cost_usd(model, Usage(1)) is None


BROKEN = {
    "not there": (None, "No such file"),
    "not TOML": ("models = [", "correct it"),
    "no date": ("[models.x]\ninput = 1\noutput = 1", "needs as_of"),
    "a typo": ('as_of = "2026"\n[models.x]\ninput = 1\noutput = 1\ncashed = 1', "unknown field cashed"),
    "no output": ('as_of = "2026"\n[models.x]\ninput = 1', "needs both input and output"),
    "negative": ('as_of = "2026"\n[models.x]\ninput = -1\noutput = 1', "input = -1 is not a number >= 0"),
    "text": ('as_of = "2026"\n[models.x]\ninput = "1"\noutput = 1', "is not a number"),
    "not finite": ('as_of = "2026"\n[models.x]\ninput = inf\noutput = 1', "is not a number"),
}


@pytest.mark.parametrize(("text", "complaint"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_price_file_is_refused(tmp_path: Path, text: str | None, complaint: str) -> None:
    path = tmp_path / "prices.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadPriceFile) as raised:
        load_prices(path)
    assert complaint in str(raised.value) and "prices.toml" in str(raised.value)


def test_every_call_is_counted_failed_ones_included() -> None:
    told: list[LedgerEntry] = []
    ledger = Ledger(PRICES, on_entry=told.append)
    busy = ModelBusy("busy")
    busy.usage = Usage(10, 1)
    model = ledger.wrap(
        Scripted("anthropic:claude-opus-5-5", reply("claude-opus-5-5", Usage(1000, 100)), busy,
                 reply("claude-opus-5-5", Usage(1000, 100)))
    )  # fmt: skip
    model.complete(request())
    with pytest.raises(ModelBusy):
        model.complete(request(Role.EXECUTOR))
    model.complete(request(Role.EXECUTOR))
    assert [(entry.role, entry.usage, entry.failed) for entry in ledger.entries] == [
        (Role.PLANNER, Usage(1000, 100), False),
        (Role.EXECUTOR, Usage(10, 1), True),
        (Role.EXECUTOR, Usage(1000, 100), False),
    ]
    assert (ledger.total.calls, ledger.total.usage) == (3, Usage(2010, 201))
    assert ledger.total.cost_usd == pytest.approx((2010 * 4 + 201 * 20) / MILLION)
    assert tuple(told) == ledger.entries


def test_calls_of_unknown_price_are_counted_apart() -> None:
    with pytest.raises(BudgetExhausted, match="price is unknown"):
        Ledger(PRICES, ModelBudget(max_cost_usd=1.0)).wrap(Scripted("openai:qwen3")).complete(request())
    ledger = Ledger(PRICES)
    ledger.wrap(Scripted("openai:qwen3", reply("qwen3", Usage(10, 10)))).complete(request())
    assert (ledger.total.cost_usd, ledger.total.unpriced_calls) == (0.0, 1)
    ledger.wrap(Scripted("a:claude-opus-5-5", reply("claude-opus-5-5", Usage(MILLION)))).complete(request())
    assert (ledger.total.cost_usd, ledger.total.unpriced_calls) == (4.0, 1)


def test_the_cost_budget_stops_before_the_call_that_could_exceed_it() -> None:
    inner = Scripted("a:claude-opus-5-5", *[reply("claude-opus-5-5", Usage(100, 1000))] * 3)
    model = Ledger(PRICES, ModelBudget(max_cost_usd=0.05)).wrap(inner)
    model.complete(request(max_tokens=1000))  # up to 2 cents each
    model.complete(request(max_tokens=1000))
    with pytest.raises(BudgetExhausted, match=r"\$0.04 spent and this call may cost \$0.02, of \$0.05"):
        model.complete(request(max_tokens=1000))
    assert len(inner.asked) == 2


def test_the_token_budget_stops_too_and_counts_calls_in_flight() -> None:
    ledger = Ledger(PRICES, ModelBudget(max_tokens=250))
    refused: list[str] = []

    class AsksAgainWhileAnswering:
        name = "a:claude-opus-5-5"

        def complete(self, outer: ModelRequest) -> ModelReply:
            try:
                ledger.wrap(Scripted("a:claude-opus-5-5")).complete(request(max_tokens=200))
            except BudgetExhausted as error:
                refused.append(str(error))
            return reply("claude-opus-5-5", Usage(5, 5))

    ledger.wrap(AsksAgainWhileAnswering()).complete(request(max_tokens=200))
    assert refused and "of 250" in refused[0]
    assert ledger.total.usage.total_tokens == 10


def test_an_interrupted_call_releases_its_reservation() -> None:
    class Interrupted:
        name = "a:claude-opus-5-5"

        def complete(self, request: ModelRequest) -> ModelReply:
            raise KeyboardInterrupt

    ledger = Ledger(PRICES, ModelBudget(max_tokens=250))
    with pytest.raises(KeyboardInterrupt):
        ledger.wrap(Interrupted()).complete(request(max_tokens=200))
    ledger.wrap(Scripted("a:x", reply("x", Usage(1)))).complete(request(max_tokens=200))


def test_a_server_that_reports_no_usage_is_counted_by_its_texts_and_stopped_by_a_budget() -> None:
    asked = request(text="x" * 600, max_tokens=100)
    ledger = Ledger(PRICES, ModelBudget(max_tokens=900))
    model = ledger.wrap(Scripted("a:local", *[ModelReply("y" * 90, "local", Usage())] * 9))
    first = model.complete(asked)
    expected = Usage((600 + len("system")) // 3, 30)
    assert ledger.total.usage == expected and ledger.total.by_text == 1
    with pytest.raises(BudgetExhausted):
        for _ in range(9):
            model.complete(asked)
    assert ledger.total.usage.total_tokens <= 900
    again = Ledger(PRICES)
    again.catch_up([recorded(Exchange(asked, "a:local", 0.1, first))])
    assert again.total.usage == expected and again.total.by_text == 1


@pytest.mark.parametrize("error", [ModelEmptyReply("all thought"), ModelRefused("no")])
def test_replies_of_nothing_without_usage_are_stopped_by_a_budget_too(error: ModelError) -> None:
    ledger = Ledger(PRICES, ModelBudget(max_tokens=900))
    for _ in range(9):
        with contextlib.suppress(ModelEmptyReply, ModelRefused, BudgetExhausted):
            ledger.wrap(Scripted("a:local", error)).complete(request(text="x" * 600, max_tokens=100))
    assert len(ledger.entries) == 2 and ledger.total.usage.total_tokens == 604


def test_exchanges_are_recorded_with_their_outcome_and_read_back() -> None:
    seen: list[Exchange] = []
    inner = Scripted("a:m", reply("m", Usage(1, 2, 3, 4)), ModelBusy("a:m: rate limit: wait"))
    ticks = iter([0.0, 1.5, 2.0, 2.25])
    model = RecordingModel(inner, seen.append, clock=lambda: next(ticks))
    model.complete(request())
    with pytest.raises(ModelBusy):
        model.complete(request(Role.EXECUTOR))
    assert [exchange.elapsed_s for exchange in seen] == [1.5, 0.25]
    for exchange in seen:
        key, again = exchange_from_json(exchange_to_json(exchange))
        assert again == exchange and key == request_key(exchange.request)


def test_secrets_never_reach_a_recording() -> None:
    secret = 'p"ss\nword-123'
    exchange = Exchange(request(text=f"key {secret} and sk-ant-api03-abcdefghijkl"), "a:m", 0.1, error=secret)
    text = exchange_to_json(exchange, [secret])
    assert secret not in text and json.dumps(secret)[1:-1] not in text and "abcdefghijkl" not in text
    assert json.loads(text)["error"] == "[key]"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"key": 1}', '{"key": "k", "request": {}, "reply": null}'])
def test_a_damaged_recording_is_refused(text: str) -> None:
    with pytest.raises(BadRecording):
        exchange_from_json(text)


def recorded(exchange: Exchange) -> tuple[str, Exchange]:
    return request_key(exchange.request), exchange


def test_a_call_that_was_recorded_but_not_entered_is_entered_when_the_run_goes_on() -> None:
    entered: list[LedgerEntry] = []
    first = LedgerEntry(Role.PLANNER, "m", Usage(1, 1), None)
    ledger = Ledger(load_prices(), entries=[first], on_entry=entered.append)
    calls = [
        recorded(Exchange(request(), "a:m", 0.1, reply("m", Usage(1, 1)))),
        recorded(Exchange(request(Role.EXECUTOR), "a:m", 0.1, reply("m", Usage(5, 7)))),
        recorded(Exchange(request(Role.EXECUTOR), "a:m", 0.1, error="cut", lost=Usage(3, 0))),
    ]
    ledger.catch_up(calls)
    ledger.catch_up(calls)
    assert [(e.role, e.usage, e.failed) for e in entered] == [
        (Role.EXECUTOR, Usage(5, 7), False), (Role.EXECUTOR, Usage(3, 0), True),
    ]  # fmt: skip
    assert ledger.total.usage == Usage(9, 8)


def test_of_several_calls_at_once_the_one_that_is_missing_is_entered() -> None:
    one, other = (recorded(Exchange(request(role), "a:m", 0.1, reply("m", Usage(number, 0))))
                  for number, role in ((1, Role.PLANNER), (2, Role.EXECUTOR)))  # fmt: skip
    overtaken = LedgerEntry(Role.EXECUTOR, "m", Usage(2, 0), None, key=other[0])
    ledger = Ledger(load_prices(), entries=[overtaken])
    ledger.catch_up([one, other])
    assert [entry.usage.input_tokens for entry in ledger.entries] == [2, 1]


def test_calls_are_told_apart_by_whose_they_are_and_by_model_and_role() -> None:
    ledger = Ledger(PRICES)
    replies = [reply("claude-opus-5-5", Usage(MILLION))] * 2
    one, other = (ledger.wrap(Scripted("a:claude-opus-5-5", *replies), name) for name in ("one", "other"))
    for model, role in ((one, Role.PLANNER), (one, Role.EXECUTOR), (other, Role.PLANNER)):
        model.complete(request(role))
    assert ledger.cost_usd("one") == 2 * ledger.cost_usd("other") == 8.0 and ledger.cost_usd("nobody") == 0
    by = totals_by(ledger.entries)
    assert list(by) == [("one", "claude-opus-5-5"), ("other", "claude-opus-5-5")]
    assert {role: (total.calls, total.cost_usd) for role, total in by["one", "claude-opus-5-5"].items()} == {
        Role.PLANNER: (1, 4.0), Role.EXECUTOR: (1, 4.0),
    }  # fmt: skip
    assert ledger.price_usd(one, Usage(MILLION)) == 4.0
    assert ledger.price_usd(Scripted("a:unheard-of"), Usage(MILLION)) is None


def test_what_was_recorded_for_one_proposer_answers_no_other_and_is_entered_as_its_own() -> None:
    asked: list[str] = []

    def record(exchange: Exchange) -> None:
        asked.append(exchange.proposer)

    recording = RecordingModel(Scripted("a:m", reply("m", Usage(1, 1))), record, proposer="one")
    recording.complete(request())
    assert asked == ["one"]
    exchange = Exchange(request(), "a:m", 0.1, reply("m", Usage(1, 1)), proposer="one")
    assert exchange_from_json(exchange_to_json(exchange))[1].proposer == "one"
    ledger = Ledger(PRICES)
    ledger.catch_up([recorded(exchange)])
    assert [entry.proposer for entry in ledger.entries] == ["one"]
