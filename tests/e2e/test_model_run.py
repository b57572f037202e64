"""The whole loop with the real anthropic and openai clients, talking to a loopback server with scripted replies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.kernels import BROKEN, FAST, REFERENCE, SLOW, WRONG
from tests.e2e.run import Ran, orchestrate
from tests.llm.wire_server import HttpFault, WireServer

SECRET = "sk-test-do-not-leak-4711"

PLAN = json.dumps({
    "title": "wider DMA rows", "technique": "widen-dma-rows", "bottleneck": "memory-bound", "expected_gain_us": 30.0,
    "rationale": "rows of 1 KiB do not saturate the DMA engines", "details": "set STEP to 2048",
})  # fmt: skip
SUMMARY = json.dumps({"title": "Widen DMA rows", "summary": "Rows of 8 KiB instead of 1 KiB halve the time."})
LESSON = json.dumps({
    "diagnosis": "right", "lesson": "DMA rows were the limit", "avoid": ["short rows"], "build_on": ["wide rows"],
})  # fmt: skip


def code(source: str) -> str:
    return f"Here is the kernel.\n\n```python\n{source}```\n"


SCRIPT = [PLAN, code(WRONG), code(BROKEN), "I would rather talk about the weather.", code(FAST), SUMMARY, LESSON]
"""One round: a wrong kernel, one that does not compile, a reply with no code, and then a good one."""


@dataclass(frozen=True)
class Told:
    """A run of SCRIPT, and what the model was asked."""

    folder: Path
    ran: Ran
    asked: list[str]


@pytest.fixture(scope="module", params=["anthropic", pytest.param("openai", marks=pytest.mark.slow)])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp(request.param)
    with WireServer(SCRIPT) as server:
        ran = run_with(server, request.param, folder)
        return Told(folder, ran, [each.last_user_message for each in server.requests])


def run_with(server: WireServer, provider: str, folder: Path, *flags: str) -> Ran:
    (folder / "add.py").write_text(SLOW, encoding="utf-8")
    (folder / "add_reference.py").write_text(REFERENCE, encoding="utf-8")
    url = server.url if provider == "anthropic" else server.openai_url
    environment = {f"{provider.upper()}_API_KEY": SECRET, f"{provider.upper()}_BASE_URL": url}
    return orchestrate("--kernel", "add.py", "--rounds", "1", *flags, folder=folder, environment=environment)


def test_the_loop_survives_bad_replies_and_keeps_the_good_one(told: Told) -> None:
    ran = told.ran
    assert ran.status == 0, ran.errors + ran.output
    assert ran.outcomes() == ["incorrect", "compile_failed", "no_kernel", "improved"]
    tried = ["execute", "upload", "compile and verify"]
    last = ["benchmark", "decide", "summarize", "reflect"]
    assert ran.steps(1) == ["profile", "plan", *tried, *tried, "execute", *tried, *last], "of three kernels and a reply"
    assert ran.speedup > 1.3
    assert (ran.folder / "best_kernel.py").read_text(encoding="utf-8").strip() == FAST.strip()
    assert (told.folder / "add.py").read_text(encoding="utf-8") == SLOW, "the user's file is never modified"


def test_every_fault_is_fed_back_to_the_executor(told: Told) -> None:
    assert "outputs differ" in told.asked[2] and "seed" in told.asked[2]
    assert "tensor_plus" in told.asked[3]
    assert "code block" in told.asked[4] or "kernel" in told.asked[4]


def test_the_win_is_remembered_and_no_secret_is_written_anywhere(told: Told) -> None:
    ran = told.ran
    memory = json.loads((told.folder / "memory" / "rewrites.json").read_text(encoding="utf-8"))
    (win,) = memory["experiences"]
    assert win["technique"] == "widen-dma-rows" and win["speedup"] == pytest.approx(ran.speedup, rel=1e-3)
    for path in told.folder.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), f"{path} holds the API key"
    assert SECRET not in ran.output + ran.errors


@pytest.mark.slow
def test_what_a_model_declares_tunable_is_swept_without_it(tmp_path: Path) -> None:
    tunable = SLOW.replace("STEP = 256", 'STEP = 512\nTUNABLES = {"STEP": (512, 1024, 2048)}')
    with WireServer([PLAN, code(tunable), SUMMARY, LESSON]) as server:
        ran = run_with(server, "anthropic", tmp_path, "--sweep", "8")
        told = [
            "All of them are priced before your kernel is tried" in str(each.body["system"]) for each in server.requests
        ]
    assert ran.status == 0 and ran.outcomes() == ["improved"], ran.errors + ran.output
    best = (ran.folder / "best_kernel.py").read_text(encoding="utf-8")
    assert best.strip() == tunable.replace("STEP = 512", "STEP = 2048").strip()
    log = (ran.folder / "run.log").read_text(encoding="utf-8")
    assert told == [False, True, False, False], "the executor, and nobody else"
    assert "wider DMA rows: swept 3 settings; STEP = 2048 is predicted to take" in log


@pytest.mark.slow
def test_samples_of_a_plan_are_asked_for_one_by_one_and_the_fastest_counts(tmp_path: Path) -> None:
    with WireServer([PLAN, code(SLOW.replace("256", "512")), code(FAST), SUMMARY, LESSON, SUMMARY, LESSON]) as server:
        ran = run_with(server, "anthropic", tmp_path, "--samples", "2", "--width", "1")
        asked = [request.last_user_message for request in server.requests]
    assert ran.status == 0, ran.errors + ran.output
    assert ran.outcomes() == ["improved", "improved"]
    assert ["sample 1 of 2" in text or "sample 2 of 2" in text for text in asked[:4]] == [False, True, True, False]
    assert (ran.folder / "best_kernel.py").read_text(encoding="utf-8").strip() == FAST.strip()


@pytest.mark.slow
def test_in_place_writes_the_winner_back_after_a_copy(tmp_path: Path) -> None:
    with WireServer([PLAN, code(FAST), SUMMARY, LESSON]) as server:
        ran = run_with(server, "anthropic", tmp_path, "--in-place")
    assert ran.status == 0, ran.errors
    assert (tmp_path / "add.py").read_text(encoding="utf-8").strip() == FAST.strip()
    assert (tmp_path / "add.py.bak").read_text(encoding="utf-8") == SLOW


PAGE = "<!DOCTYPE html><html><head><title>Welcome to nginx</title></head><body>x</body></html>"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (HttpFault(401, "authentication_error", "invalid x-api-key"), "refuses the key (HTTP 401"),
        (HttpFault(404, "not_found_error", "model: none"), "has no such model or path (HTTP 404"),
        (HttpFault(200, body=PAGE), "answers with a web page (Welcome to nginx)"),
    ],
)
@pytest.mark.slow
def test_a_model_that_never_will_answer_ends_the_run_at_once_with_one_whole_line(tmp_path, fault, said) -> None:
    with WireServer([fault] * 9) as server:
        ran = run_with(server, "anthropic", tmp_path, "--rounds", "3")
        asked = len(server.requests)
    assert (ran.status, asked) == (4, 1), ran.errors + ran.output
    reason = ran.document("manifest.json")["reason"]
    assert f"{server.url} {said}" in reason and "ANTHROPIC_" in reason
    assert f"failed: {reason}" in ran.output, "whole, in the table at the end too"
    assert SECRET not in ran.output + ran.errors


def test_a_cost_that_cannot_be_kept_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with WireServer([]) as server:
        ran = run_with(server, "anthropic", tmp_path, "--max-cost", "5", "--model", "nobody-knows-its-price")
        asked = len(server.requests)
    assert (ran.status, asked) == (2, 0) and ran.errors.count("\n") == 1, ran.errors + ran.output
    assert "max-cost: no price is known of anthropic:nobody-knows-its-price" in ran.errors and "--prices" in ran.errors
    assert not (ran.folder / "baseline.json").exists() and "compile and verify" not in ran.output
