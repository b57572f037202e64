"""Recorded runs with a model as a graph to search: what each run tried, from which kernel, and what it took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.evaluation import CheckFailure, Incorrect
from accelopt_core.ports import Message, ModelReply, ModelRequest, Role, Usage
from benchmarks import search_replies
from infra.llm.recording import Exchange, exchange_to_json
from infra.runs.run_folder import RunFolder
from tests.infra.samples import PLAN, attempted, manifest, measured

INPUT = Candidate("input", "x = 0\n")
WRONG = Incorrect(CheckFailure(42, "small", 0, "relative error", 0.5, 2e-5))


def kernel(name: str) -> str:
    return f"{name} = 1\n"


def tried(round: int, us: float | None, name: str, parent: str = "input", gain_us: float = 100.0) -> Attempt:
    evaluation = measured(us) if us is not None else WRONG
    attempt = attempted(round, evaluation, 500.0, source=kernel(name))
    assert attempt.candidate is not None
    plan = replace(PLAN, technique=name, expected_gain_us=gain_us)
    return replace(attempt, parent_id=parent, plan=plan, candidate=replace(attempt.candidate, parent_id=parent))


def recorded(folder: Path, run_id: str, attempts: list[Attempt], replies: int = 2) -> Path:
    run = RunFolder.create(folder, manifest(run_id, proposer="mailbox"), {})
    run.best(INPUT, measured(500.0))
    for attempt in attempts:
        run.attempt(attempt)
    for _ in range(replies):
        request = ModelRequest(Role.PLANNER, "system", (Message("user", "what next?"),), 1000, 0.0)
        reply = ModelReply("this", "somebody", Usage(10, 10))
        run.keep_exchange("planner", exchange_to_json(Exchange(request, "somebody", 30.0, reply), []))
    run.close()
    return run.path


TWO_RUNS = (
    [tried(1, 400.0, "a"), tried(2, 300.0, "ab", "r001t1"), tried(3, None, "abc", "r002t1")],
    [tried(1, 450.0, "b", gain_us=200.0), tried(2, 390.0, "a", gain_us=9.0), tried(3, 100.0, "aba", "r002t1")],
)


def test_a_thin_pool_is_counted_and_not_replayed_and_a_rich_one_is(tmp_path, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before {search_replies.BEGIN}\nold\n{search_replies.END} after", encoding="utf-8")
    runs = tmp_path / "runs"
    recorded(runs, "one", TWO_RUNS[0])
    assert search_replies.main(["--runs", str(runs), "--write", str(page)]) == 0
    assert "too thin for a replay" in page.read_text() and "speed-up" not in page.read_text()
    for number in range(7):
        grown = [tried(at, 390.0 - at - number, f"c{number}x{at}", "r001t1") for at in range(3, 6)]
        recorded(runs, f"many-{number}", [tried(1, 400.0, f"a{number}"), tried(2, 450.0, "b"), *grown])
    assert search_replies.main(["--runs", str(runs), "--write", str(page)]) == 0
    text = page.read_text()
    assert "| matmul at M256 K256 | 8 | 32 | 7 | replayed |" in text and search_replies.RECORDED in text
    assert text.startswith("before") and text.endswith("after") and "old" not in text
