"""Models that are no web service: programs, the claude command, a folder, recordings; and cut replies made whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from accelopt_core.ports import (
    Message,
    ModelAllThought,
    ModelBusy,
    ModelEmptyReply,
    ModelError,
    ModelRefused,
    ModelRejectedCredentials,
    ModelReply,
    ModelRequest,
    ModelUnreachable,
    Role,
    Usage,
)
from infra.llm.claude_cli_model import ClaudeCliModel
from infra.llm.command_model import CommandModel
from infra.llm.ledger import Ledger
from infra.llm.mailbox_model import MailboxModel
from infra.llm.prices import load_prices
from infra.llm.provider import ProviderSettings
from infra.llm.recording import BadRecording, Exchange, RecordingModel, exchange_from_json, exchange_to_json
from infra.llm.registry import build_model
from infra.llm.replay_model import NotRecorded, ReplayModel, read_exchanges
from infra.llm.retry import Patience, RetryPolicy
from infra.llm.roles import ContinuingModel, joined, models_for_roles
from tests.llm.scenes import BETTER
from tests.llm.wire_server import Says, WireServer
from tests.processes import alive, eventually, limits_s

REQUEST = ModelRequest(Role.PLANNER, "You know Trainium.", (Message("user", "What is slow? µs"),))
TWO = Patience(RetryPolicy(attempts=2, empty_attempts=2), sleep=lambda seconds: None)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_program_reads_the_whole_request_or_none_of_it_and_writes_the_reply() -> None:
    echo = CommandModel(python("import sys; sys.stdout.write(sys.stdin.read().upper())"), patience=TWO)
    conversation = ModelRequest(
        Role.PLANNER, "be brief", (Message("user", "plan?"), Message("assistant", "hm"), Message("user", "json!"))
    )
    text = echo.complete(conversation).text
    assert -1 < text.index("BE BRIEF") < text.index("PLAN?") < text.index("HM") < text.index("JSON!")
    big = ModelRequest(Role.PLANNER, "s", (Message("user", "x" * 1_000_000),))
    reply = CommandModel(python("print('y' * 3_000_000)"), patience=TWO).complete(big)
    assert reply.text.count("y") == 3_000_000 and reply.usage == Usage()


FAILING = {
    "says nothing": ("", ModelEmptyReply, "wrote no reply"),
    "fails": ("import sys; sys.exit('disk is full\\nreally')", ModelUnreachable, "exit status 1: disk is full really"),
    "is busy": ("import sys; sys.exit('Rate limit reached')", ModelBusy, "Rate limit reached"),
    "is not logged in": ("import sys; sys.exit('Not logged in')", ModelRejectedCredentials, "log the program in"),
}


@pytest.mark.parametrize(("code", "error", "said"), FAILING.values(), ids=FAILING.keys())
def test_a_program_that_fails_is_an_error_of_one_line(code: str, error: type[ModelError], said: str) -> None:
    with pytest.raises(error) as raised:
        CommandModel(python(code), patience=TWO).complete(REQUEST)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    once = Patience(RetryPolicy(attempts=1))
    for limit_s in limits_s(2.0):
        with pytest.raises(ModelUnreachable, match=f"no reply within {limit_s:.0f} s"):
            CommandModel(python(code), timeout_s=limit_s, patience=once).complete(REQUEST)
        if pids.exists() and len(pids.read_text().split()) == 2:
            break
    for pid in map(int, pids.read_text().split()):
        assert eventually(lambda pid=pid: not alive(pid))


@pytest.mark.parametrize("command", ["no-such-program-anywhere --fast", "'unbalanced", ""])
def test_a_command_that_cannot_run_is_said_before_the_first_round(command: str) -> None:
    with pytest.raises(ModelUnreachable):
        build_model("command", ProviderSettings(model_command=command))


def claude(tmp_path: Path, result: dict[str, object] | str, status: int = 0) -> ClaudeCliModel:
    """A stand-in for the program that leaves its arguments and input behind and prints a print-mode result."""
    output = result if isinstance(result, str) else json.dumps(result)
    program = tmp_path / "claude"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"json.dump([sys.argv[1:], sys.stdin.read()], open({str(tmp_path / 'seen.json')!r}, 'w'))\n"
        f"print({output!r})\nsys.exit({status})\n"
    )
    program.chmod(0o755)
    return ClaudeCliModel("opus", program=str(program), patience=TWO)


RESULT: dict[str, object] = {
    "type": "result", "subtype": "success", "is_error": False, "result": "the plan",
    "usage": {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 11},
    "modelUsage": {"claude-opus-5-5": {}},
}  # fmt: skip


def test_claude_runs_in_print_mode_without_tools(tmp_path: Path) -> None:
    reply = claude(tmp_path, RESULT).complete(REQUEST)
    assert reply == ModelReply("the plan", "claude-opus-5-5", Usage(3, 5, 7, 11))
    arguments, prompt = json.loads((tmp_path / "seen.json").read_text())
    assert arguments == ["-p", "--output-format", "json", "--tools", "", "--model", "opus",
                         "--system-prompt", "You know Trainium."]  # fmt: skip
    assert prompt == "What is slow? µs\n"


CLAUDE_FAULTS = {
    "an error result": ({**RESULT, "is_error": True, "result": "API Error: 529 Overloaded"}, 1, ModelBusy),
    "an error with status 0": ({**RESULT, "is_error": True, "result": "usage limit reached"}, 0, ModelBusy),
    "no login": ({**RESULT, "is_error": True, "result": "Invalid API key · Please run /login"}, 1,
                 ModelRejectedCredentials),
    "an empty result": ({**RESULT, "result": ""}, 0, ModelEmptyReply),
    "a refusal": ({**RESULT, "stop_reason": "refusal"}, 0, ModelRefused),
    "not JSON": ("Segmentation fault", 0, ModelUnreachable),
}  # fmt: skip


@pytest.mark.parametrize(("result", "status", "error"), CLAUDE_FAULTS.values(), ids=CLAUDE_FAULTS.keys())
def test_claudes_failures_are_told_apart(tmp_path, result, status, error) -> None:
    with pytest.raises(error):
        claude(tmp_path, result, status).complete(REQUEST)


def quick_mailbox(folder: Path, timeout_s: float = 20.0) -> MailboxModel:
    return MailboxModel(folder, timeout_s=timeout_s, poll_s=0.01, settle_s=0.05)


def test_a_request_file_says_all_and_its_reply_is_taken_when_it_stops_growing(tmp_path: Path) -> None:
    waits = 0

    def somebody_writes_slowly(seconds: float) -> None:
        nonlocal waits
        waits += 1
        request = next(tmp_path.glob("*.request.md"))
        with request.with_name(request.name.replace(".request.", ".reply.")).open("a") as file:
            file.write({3: "first half, ", 6: "second half"}.get(waits, ""))

    lines: list[str] = []
    box = MailboxModel(tmp_path, poll_s=1.0, settle_s=5.0, sleep=somebody_writes_slowly, clock=lambda: float(waits),
                       on_wait=lines.append)  # fmt: skip
    assert box.complete(REQUEST).text == "first half, second half"
    assert waits >= 11, "the first half lay there for three seconds, which is less than five"
    request = next(tmp_path.glob("*.request.md"))
    assert request.name.startswith("0001-planner-")
    for part in ("You know Trainium.", "What is slow? µs", request.name.replace(".request.", ".reply.")):
        assert part in request.read_text()
    assert len(lines) == 1 and str(request) in lines[0]


def test_a_resumed_run_finds_its_replies_and_asks_nothing_twice(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreachable, match=r"no reply to .*0001-planner-.*\.request\.md within 0"):
        quick_mailbox(tmp_path, timeout_s=0.0).complete(REQUEST)
    request = next(tmp_path.glob("*.request.md"))
    request.with_name(request.name.replace(".request.", ".reply.")).write_text("late but here")
    assert quick_mailbox(tmp_path).complete(REQUEST).text == "late but here"
    with pytest.raises(ModelUnreachable):
        quick_mailbox(tmp_path, timeout_s=0.0).complete(ModelRequest(Role.EXECUTOR, "s", (Message("user", "u"),)))
    assert sorted(path.name[:13] for path in tmp_path.glob("*.request.md")) == ["0001-planner-", "0002-executor"]


def test_an_empty_reply_file_is_not_a_reply(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreachable):
        quick_mailbox(tmp_path, timeout_s=0.0).complete(REQUEST)
    request = next(tmp_path.glob("*.request.md"))
    request.with_name(request.name.replace(".request.", ".reply.")).write_text(" \n")
    with pytest.raises(ModelUnreachable):
        quick_mailbox(tmp_path, timeout_s=0.2).complete(REQUEST)


def record(folder: Path, replies: list[str | Says]) -> None:
    folder.mkdir(parents=True, exist_ok=True)

    def keep(exchange: Exchange) -> None:
        (folder / f"{len(list(folder.iterdir())):05d}-x.json").write_text(exchange_to_json(exchange))

    with WireServer(replies) as server:
        model = RecordingModel(build_model("anthropic", ProviderSettings("m", server.url, "k", 20.0)), keep)
        for _ in replies:
            model.complete(REQUEST)


def test_a_recorded_run_is_replayed_in_order_and_then_says_it_is_over(tmp_path: Path) -> None:
    record(tmp_path / "run" / "exchanges", ["first", "second"])
    model = build_model("replay", ProviderSettings(replies=tmp_path / "run"))
    assert [model.complete(REQUEST).text for _ in range(2)] == ["first", "second"]
    with pytest.raises(NotRecorded, match="no recorded reply to this planner request"):
        model.complete(REQUEST)


def test_what_was_paid_for_is_not_asked_again_and_the_rest_goes_to_the_live_model(tmp_path: Path) -> None:
    record(tmp_path, ["recorded"])
    with WireServer(["live"]) as server:
        live = build_model("anthropic", ProviderSettings("m", server.url, "k", 20.0))
        model = ReplayModel(read_exchanges(tmp_path), live=live)
        assert [model.complete(REQUEST).text for _ in range(2)] == ["recorded", "live"]
        assert len(server.requests) == 1


def test_a_folder_without_recordings_or_with_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="no recorded exchanges"):
        build_model("replay", ProviderSettings(replies=tmp_path))
    (tmp_path / "00001-planner.json").write_text('{"key": ')
    with pytest.raises(BadRecording, match="00001-planner.json"):
        build_model("replay", ProviderSettings(replies=tmp_path))


WHOLE = f"Here it is.\n```python\n{BETTER}```\n"
AT = WHOLE.index("buffer=nl.shared_hbm")
BLANK = WHOLE.index(" nl.ndarray")
LINE = WHOLE.rindex("\n", 0, AT) + 1
PARTS = {
    "goes on exactly": (WHOLE[:AT], WHOLE[AT:]),
    "repeats the end": (WHOLE[:AT], WHOLE[AT - 30 :]),
    "begins the line again": (WHOLE[:AT], WHOLE[LINE:]),
    "begins the line again without its indent": (WHOLE[:AT], WHOLE[LINE:].lstrip()),
    "was cut after an indent, and goes on": (WHOLE[: LINE + 4], WHOLE[LINE + 4 :]),
    "was cut after an indent, and repeats it": (WHOLE[: LINE + 4], WHOLE[LINE:]),
    "was cut after an indent, and repeats the newline": (WHOLE[: LINE + 4], WHOLE[LINE - 1 :]),
    "was cut after a blank, and repeats it": (WHOLE[: BLANK + 1], WHOLE[BLANK:]),
    "opens a new fence": (WHOLE[:LINE], "```python\n" + WHOLE[LINE:]),
    "opens a new fence and repeats": (WHOLE[:AT], "```python\n" + WHOLE[LINE:]),
}


@pytest.mark.parametrize(("begun", "rest"), PARTS.values(), ids=PARTS.keys())
def test_two_parts_make_the_whole(begun: str, rest: str) -> None:
    assert joined(begun, rest) == WHOLE


def test_a_cut_reply_is_continued_over_the_wire() -> None:
    third = len(WHOLE) // 3
    script = [
        Says(WHOLE[:third], stop="max_tokens", output_tokens=10),
        Says(WHOLE[third : 2 * third], stop="max_tokens", output_tokens=10),
        Says(WHOLE[2 * third :], output_tokens=10),
    ]
    with WireServer(script) as server:
        model = ContinuingModel(build_model("openai", ProviderSettings("m", server.openai_url, None, 20.0)))
        reply = model.complete(REQUEST)
        roles = [message["role"] for message in server.requests[-1].body["messages"]]
    assert reply.text == WHOLE and not reply.truncated
    assert reply.usage == Usage(300, 30)
    assert roles == ["system", "user", "assistant", "user"]


def test_a_reply_without_end_stays_marked_as_cut() -> None:
    with WireServer(lambda body: Says("more and more, " * 3, stop="max_tokens")) as server:
        model = ContinuingModel(build_model("anthropic", ProviderSettings("m", server.url, "k", 20.0)), most=2)
        assert model.complete(REQUEST).truncated
        assert len(server.requests) == 3


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_a_reply_that_is_all_thought_is_asked_for_once_more_with_more_room(provider: str) -> None:
    thought = Says("", stop="max_tokens", thinking="hm, " * 9, output_tokens=50)
    said: list[str] = []
    for script, limits in (([thought, "so be it"], [16_000, 32_000]), ([thought, thought], [16_000, 32_000])):
        with WireServer(script) as server:
            url = server.url if provider == "anthropic" else server.openai_url
            model = ContinuingModel(build_model(provider, ProviderSettings("m", url, "k", 20.0)), say=said.append)
            if script[1] is thought:
                with pytest.raises(ModelAllThought, match="all of it thought: lower --effort"):
                    model.complete(REQUEST)
            else:
                assert model.complete(REQUEST).text == "so be it"
            assert [seen.body["max_tokens"] for seen in server.requests] == limits
    assert len(said) == 2 and said[0].endswith("asked once more, with 32,000 tokens")


def test_a_resumed_run_pays_only_for_what_it_had_not_asked_yet(tmp_path: Path) -> None:
    asks = [ModelRequest(role, "s", (Message("user", f"{role.value}?"),)) for role in Role]
    kept: list[Exchange] = []
    with WireServer(lambda body: f"{body['model']} says hi") as server:
        settings = ProviderSettings("claude-opus-5-5", server.url, "k", 20.0)
        others = {Role.SUMMARIZER: "claude-haiku-4-5"}
        first = Ledger(load_prices())
        models = models_for_roles("anthropic", settings, first, kept.append, role_models=others)
        assert models[Role.PLANNER] is models[Role.EXECUTOR] is not models[Role.SUMMARIZER]
        for ask in asks[:3]:
            models[ask.role].complete(ask)
        again = Ledger(load_prices(), entries=first.entries)
        exchanges = [exchange_from_json(exchange_to_json(exchange)) for exchange in kept]
        models = models_for_roles("anthropic", settings, again, kept.append, role_models=others, recorded=exchanges)
        replies = [models[ask.role].complete(ask).text for ask in asks]
        assert len(server.requests) == len(kept) == len(again.entries) == 4
    assert replies == [f"claude-{name} says hi" for name in ("opus-5-5", "opus-5-5", "haiku-4-5", "opus-5-5")]
    assert again.total.cost_usd == pytest.approx((3 * (100 * 4 + 20 * 20) + 100 * 1 + 20 * 5) / 1e6)
