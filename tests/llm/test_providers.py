"""The real client libraries against a server that speaks their wire formats and misbehaves on cue."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

import pytest

from accelopt_core.ports import (
    LanguageModel,
    Message,
    ModelBusy,
    ModelContextOverflow,
    ModelEmptyReply,
    ModelError,
    ModelRefused,
    ModelRejectedCredentials,
    ModelRequest,
    ModelUnreachable,
    ModelUnusable,
    Role,
    Usage,
)
from infra.llm.anthropic_model import AnthropicModel
from infra.llm.provider import NoDefaultModel, ProviderSettings, UnknownProvider, default_model
from infra.llm.registry import build_model, provider_from_environment, settings_from_environment
from infra.llm.retry import Patience, RetryPolicy, Server
from tests.llm.wire_server import CutStream, Hang, HttpFault, QuietEnd, Says, StreamFault, WireServer
from tests.processes import eventually, limits_s

KEY = "sk-test-0123456789abcdef"
REQUEST = ModelRequest(Role.PLANNER, "You know Trainium.", (Message("user", "What is slow?"),), max_tokens=500)
BOTH = pytest.mark.parametrize("provider", ["anthropic", "openai"])


@dataclass
class Clockwork:
    """A clock that only moves when somebody sleeps on it."""

    slept: list[float] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def patience(self, **policy: int) -> Patience:
        return Patience(RetryPolicy(**policy), sleep=self.slept.append, dice=lambda: 0.5, on_wait=self.lines.append)


def connect(
    provider: str, server: WireServer, clock: Clockwork, timeout_s: float = 20.0, **policy: int
) -> LanguageModel:
    url = server.url if provider == "anthropic" else server.openai_url
    return build_model(provider, ProviderSettings("test-model", url, KEY, timeout_s, clock.patience(**policy)))


@BOTH
def test_a_reply_arrives_whole_with_its_tokens(provider: str) -> None:
    text = "def kernel():\n    pass  # µs\n" * 200
    answer = Says(text, input_tokens=7, output_tokens=9, cached_tokens=5, cache_write_tokens=3)
    with WireServer([answer]) as server:
        reply = connect(provider, server, Clockwork()).complete(REQUEST)
    assert reply.text == text
    assert reply.model == "test-model"
    assert reply.usage == Usage(input_tokens=7, output_tokens=9, cached_input_tokens=5, cache_write_tokens=3)
    assert not reply.truncated


def test_claude_is_asked_to_stream_and_its_thinking_is_no_reply() -> None:
    with WireServer(["fine"]) as server:
        connect("anthropic", server, Clockwork()).complete(REQUEST)
    body = server.requests[0].body
    assert body["stream"] is True
    assert body["system"] == [{"type": "text", "text": "You know Trainium.", "cache_control": {"type": "ephemeral"}}]
    assert body["messages"] == [{"role": "user", "content": "What is slow?"}]
    assert body["max_tokens"] == 500
    assert "temperature" not in body
    with WireServer([Says("the answer", thinking="let me see")]) as server:
        assert connect("anthropic", server, Clockwork()).complete(REQUEST).text == "the answer"


def test_a_reply_that_drips_is_bounded_as_a_whole() -> None:
    ticks = iter(range(1000))
    with WireServer(lambda body: Says("x" * 5_000)) as server:
        once = Patience(RetryPolicy(attempts=1))
        model = AnthropicModel("m", KEY, base_url=server.url, timeout_s=3.0, patience=once, clock=lambda: next(ticks))
        with pytest.raises(ModelUnreachable, match="no complete reply within 3 s"):
            model.complete(REQUEST)


def test_openai_gets_the_system_text_as_a_message_and_needs_no_key_for_a_local_server() -> None:
    with WireServer(["fine"]) as server:
        settings = ProviderSettings("test-model", server.openai_url, None, 20.0, Clockwork().patience())
        build_model("openai", settings).complete(REQUEST)
    body = server.requests[0].body
    assert body["messages"][0] == {"role": "system", "content": "You know Trainium."}
    assert body["max_tokens"] == 500


@BOTH
def test_temperature_and_effort_are_passed_on_when_set(provider: str) -> None:
    warm = ModelRequest(Role.EXECUTOR, "s", (Message("user", "u"),), temperature=0.25, effort="high")
    with WireServer(["fine"]) as server:
        connect(provider, server, Clockwork()).complete(warm)
    body = server.requests[0].body
    assert body["temperature"] == 0.25
    if provider == "anthropic":
        assert (body["thinking"], body["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})
    else:
        assert body["reasoning_effort"] == "high"


RECOVERS = {
    "rate limit": HttpFault(429, "rate_limit_error"),
    "rate limit that mentions billing": HttpFault(429, "rate_limit_exceeded", "Limit 3: see /account/billing."),
    "overload": HttpFault(529, "overloaded_error"), "service unavailable": HttpFault(503, "server_error"),
    "server error": HttpFault(500, "api_error"),
    "bad gateway with an HTML page": HttpFault(502, body="<html><h1>502</h1></html>"), "cut connection": CutStream(),
    "empty reply": Says(""), "blank reply": Says("  \n"),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("fault", RECOVERS.values(), ids=RECOVERS.keys())
def test_a_passing_fault_is_waited_out(provider: str, fault: HttpFault | CutStream | Says) -> None:
    clock = Clockwork()
    with WireServer([fault, fault, "here it is"]) as server:
        reply = connect(provider, server, clock).complete(REQUEST)
    assert reply.text == "here it is"
    assert clock.slept == [0.75, 1.5], "1 s then 2 s, each between half and all of it, and no retries but ours"
    assert len(clock.lines) == 2


@pytest.mark.parametrize("fault", [StreamFault(), StreamFault("api_error", "Internal server error"), QuietEnd()])
def test_a_fault_inside_a_stream_is_waited_out_too(fault: StreamFault | QuietEnd) -> None:
    clock = Clockwork()
    with WireServer([fault, "here it is"]) as server:
        assert connect("anthropic", server, clock).complete(REQUEST).text == "here it is"
    assert clock.slept == [0.75]


@BOTH
def test_a_server_that_only_hangs_is_given_up_early(provider: str) -> None:
    with WireServer(lambda body: Hang()) as server, pytest.raises(ModelUnreachable, match="3 attempts.*reply timeout"):
        connect(provider, server, Clockwork(), timeout_s=0.2).complete(REQUEST)
    assert eventually(lambda: len(server.requests) == 3)


@BOTH
def test_a_hanging_server_is_a_timeout(provider: str) -> None:
    for limit_s in limits_s(0.3):
        clock = Clockwork()
        with WireServer([Hang(), *["here it is"] * 9]) as server, contextlib.suppress(ModelUnreachable):
            assert connect(provider, server, clock, timeout_s=limit_s).complete(REQUEST).text == "here it is"
            break
    assert len(clock.lines) == 1 and f"no answer within {limit_s:g} s" in clock.lines[0]


@BOTH
@pytest.mark.parametrize(
    ("headers", "waits_s"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "2500"}, 2.5),
        ({"retry-after": "0"}, 0.75),
        ({"retry-after": "soon"}, 0.75),
        ({"retry-after": "nan"}, 0.75),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.75),
    ],
)
def test_the_server_says_how_long_to_wait(provider: str, headers: dict[str, str], waits_s: float) -> None:
    clock = Clockwork()
    with WireServer([HttpFault(429, "rate_limit_error", headers=headers), "fine"]) as server:
        connect(provider, server, clock).complete(REQUEST)
    assert clock.slept == [waits_s]


@BOTH
def test_a_server_that_asks_for_too_much_patience_is_reported_at_once(provider: str) -> None:
    clock = Clockwork()
    fault = HttpFault(429, "rate_limit_error", headers={"retry-after": "86400"})
    with WireServer([fault]) as server, pytest.raises(ModelBusy, match="asks to wait 86400 s"):
        connect(provider, server, clock).complete(REQUEST)
    assert clock.slept == []


OUTLASTS: dict[str, tuple[HttpFault | CutStream | Says, type[ModelError], int]] = {
    "rate limit": (HttpFault(429, "rate_limit_error"), ModelBusy, 4),
    "overload": (HttpFault(529, "overloaded_error"), ModelBusy, 4),
    "server error": (HttpFault(500, "api_error"), ModelUnreachable, 4),
    "cut connection": (CutStream(), ModelUnreachable, 4),
    "empty reply": (Says(""), ModelEmptyReply, 2),
}


@BOTH
@pytest.mark.parametrize(("fault", "error", "asked"), OUTLASTS.values(), ids=OUTLASTS.keys())
def test_a_lasting_fault_is_raised_after_a_bounded_number_of_attempts(provider, fault, error, asked) -> None:
    with WireServer(lambda body: fault) as server, pytest.raises(error, match=f"{asked} attempts") as raised:
        connect(provider, server, Clockwork(), attempts=4, empty_attempts=2).complete(REQUEST)
    assert len(server.requests) == asked
    assert "\n" not in str(raised.value)


def test_nothing_listens_there() -> None:
    with WireServer([]) as server:
        url = server.url
    for provider in ("anthropic", "openai"):
        model = build_model(provider, ProviderSettings("m", url, KEY, 5.0, Clockwork().patience(attempts=2)))
        with pytest.raises(ModelUnreachable, match="check the network"):
            model.complete(REQUEST)


FINAL: dict[str, tuple[HttpFault | Says, type[ModelError]]] = {
    "wrong key": (HttpFault(401, "authentication_error", f"invalid x-api-key {KEY}"), ModelRejectedCredentials),
    "no access": (HttpFault(403, "permission_error"), ModelRejectedCredentials),
    "no such model": (HttpFault(404, "not_found_error", "model: test-model"), ModelRejectedCredentials),
    "no credit": (HttpFault(400, "invalid_request_error", "Your credit balance is too low"), ModelRejectedCredentials),
    "no quota": (HttpFault(429, "insufficient_quota", "You exceeded your current quota"), ModelRejectedCredentials),
    "too long": (HttpFault(400, "invalid_request_error", "prompt is too long: 25 tokens > 20"), ModelContextOverflow),
    "beyond the context": (HttpFault(400, "context_length_exceeded", "maximum is 8192"), ModelContextOverflow),
    "beyond the quota per minute": (
        HttpFault(429, "x", "Request too large: Limit 3, Requested 4"),
        ModelContextOverflow,
    ),
    "too large": (HttpFault(413, "request_too_large"), ModelContextOverflow),
    "refusal": (Says("I cannot help with that", stop="refusal"), ModelRefused),
    "bad request": (HttpFault(400, "invalid_request_error", "tools: wrong"), ModelError),
}


@BOTH
@pytest.mark.parametrize(("fault", "error"), FINAL.values(), ids=FINAL.keys())
def test_a_final_fault_is_raised_at_once(provider: str, fault: HttpFault | Says, error: type[ModelError]) -> None:
    clock = Clockwork()
    with WireServer([fault, "never asked for"]) as server, pytest.raises(ModelError) as raised:
        connect(provider, server, clock).complete(REQUEST)
    assert type(raised.value) is error
    assert clock.slept == [] and len(server.requests) == 1
    assert KEY not in str(raised.value) and "\n" not in str(raised.value)
    assert "test-model" in str(raised.value)


PAGE = (
    "<!DOCTYPE html>\n<html><head><title>Sign in &amp; go on</title></head><body>" + "words " * 300 + "</body></html>"
)

UNUSABLE = {
    "a web page with status 200": (HttpFault(200, body=PAGE), "answers with a web page (Sign in & go on)", "_BASE_URL"),
    "a wrong key": (HttpFault(401, "authentication_error", f"invalid {KEY}"), "refuses the key (HTTP 401", "_API_KEY"),
    "a wrong key, said by a proxy": (HttpFault(401, body=PAGE), "refuses the key (HTTP 401", "_API_KEY"),
    "no such model": (HttpFault(404, "not_found_error", "model: test-model"), "has no such model", "_MODEL"),
    "no such path": (HttpFault(404, body=PAGE), "has no such model or path", "_BASE_URL"),
}


@BOTH
@pytest.mark.parametrize(("fault", "said", "variable"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_what_will_never_answer_is_one_line_with_its_address_and_what_to_set(provider, fault, said, variable) -> None:
    clock = Clockwork()
    with WireServer([fault] * 20) as server:
        with pytest.raises(ModelUnusable) as raised:
            connect(provider, server, clock).complete(REQUEST)
        address = server.url if provider == "anthropic" else server.openai_url
    line = str(raised.value)
    assert clock.slept == [] and len(server.requests) == 1
    assert said in line and f"{provider.upper()}{variable}" in line and f"{address} " in line
    assert KEY not in line and "\n" not in line and len(line) < 400


def test_a_password_in_an_address_is_not_repeated() -> None:
    assert Server("https://me:secret@proxy.example:8443/v1/", "openai").shown == "https://proxy.example:8443/v1"


@BOTH
def test_a_reply_cut_at_max_tokens_says_so(provider: str) -> None:
    with WireServer([Says("def kernel(", stop="max_tokens")]) as server:
        reply = connect(provider, server, Clockwork()).complete(REQUEST)
    assert reply.truncated and reply.text == "def kernel("


def test_tokens_of_attempts_that_came_to_nothing_are_counted() -> None:
    with WireServer(
        [Says("", input_tokens=10, output_tokens=5), Says("ok", input_tokens=10, output_tokens=2)]
    ) as server:
        reply = connect("anthropic", server, Clockwork()).complete(REQUEST)
    assert reply.usage == Usage(input_tokens=20, output_tokens=7)
    empty = Says("", input_tokens=10, output_tokens=5)
    with WireServer(lambda body: empty) as server, pytest.raises(ModelEmptyReply) as raised:
        connect("openai", server, Clockwork(), empty_attempts=3).complete(REQUEST)
    assert raised.value.usage == Usage(input_tokens=30, output_tokens=15)


def test_the_other_name_of_the_length_limit_is_tried_once_and_remembered() -> None:
    def only_the_new_name(body: dict[str, object]) -> HttpFault | str:
        if "max_tokens" in body:
            return HttpFault(400, "unsupported_parameter", "Use 'max_completion_tokens' in place of 'max_tokens'.")
        return "fine"

    with WireServer(only_the_new_name) as server:
        model = connect("openai", server, Clockwork())
        model.complete(REQUEST)
        model.complete(REQUEST)
    limits = ["max_tokens" if "max_tokens" in seen.body else "max_completion_tokens" for seen in server.requests]
    assert limits == ["max_tokens", "max_completion_tokens", "max_completion_tokens"]


@pytest.mark.parametrize(
    ("served", "outcome"),
    [
        (["qwen3-coder"], "openai:qwen3-coder"),
        (["a", "b"], "serves 2 models (a, b): choose one with --model"),
        ([], "serves 0 models (none)"),
    ],
)
def test_a_local_server_is_asked_which_model_it_serves(served: list[str], outcome: str) -> None:
    with WireServer([], models=served) as server:
        settings = ProviderSettings(base_url=server.openai_url)
        if len(served) == 1:
            assert build_model("openai", settings).name == outcome
        else:
            with pytest.raises(ModelError) as raised:
                build_model("openai", settings)
            assert outcome in str(raised.value)


@pytest.mark.parametrize(
    ("environment", "provider"),
    [
        ({}, None),
        ({"ANTHROPIC_API_KEY": "k"}, "anthropic"),
        ({"OPENAI_API_KEY": "k"}, "openai"),
        ({"OPENAI_BASE_URL": "http://localhost:11434/v1"}, "openai"),
        ({"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}, "anthropic"),
        ({"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "k"}, "openai"),
    ],
)
def test_the_environment_chooses_the_provider(environment: dict[str, str], provider: str | None) -> None:
    assert provider_from_environment(environment) == provider


def test_flags_come_before_the_environment_and_that_before_the_defaults() -> None:
    environment = {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "from-environment", "OPENAI_BASE_URL": "http://e/v1"}
    assert settings_from_environment("openai", ProviderSettings(), environment) == ProviderSettings(
        "from-environment", "http://e/v1", "k"
    )
    told = ProviderSettings("flag", "http://f/v1", timeout_s=7.0)
    assert settings_from_environment("openai", told, environment) == replace(told, api_key="k")
    settings = settings_from_environment("anthropic", ProviderSettings(), {"ANTHROPIC_API_KEY": "k"})
    assert build_model("anthropic", settings).name == f"anthropic:{default_model('anthropic')}"
    with pytest.raises(NoDefaultModel, match="mailbox: no default model: name one with --model"):
        default_model("mailbox")


def test_what_cannot_be_connected_is_told_apart() -> None:
    with WireServer([], page=PAGE) as server, pytest.raises(ModelUnusable, match="OPENAI_BASE_URL"):
        build_model("openai", ProviderSettings(base_url=server.openai_url))
    for provider in ("anthropic", "openai"):
        with pytest.raises(ModelRejectedCredentials, match=f"{provider.upper()}_API_KEY"):
            build_model(provider, ProviderSettings())
    with pytest.raises(UnknownProvider):
        build_model("skynet", ProviderSettings())
