"""Recorded runs with a model as a graph to search: what each run tried, from which kernel, and what it took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.candidate import Attempt, Candidate, source_hash
from accelopt_core.evaluation import CheckFailure, Incorrect
from accelopt_core.ports import Message, ModelReply, ModelRequest, Role, Usage
from benchmarks import search_replies, search_walks
from benchmarks.search_kernels import Point, Timed
from infra.llm.recording import Exchange, exchange_to_json
from infra.runs.run_folder import RunFolder
from ka_extensions.outcome import Outcome
from tests.infra.samples import PLAN, attempted, manifest, measured

INPUT = Candidate("input", "x = 0\n")
WRONG = Incorrect(CheckFailure(42, "small", 0, "relative error", 0.5, 2e-5))


def kernel(name: str) -> str:
    return f"{name} = 1\n"


def timed(us: float) -> Timed:
    return Timed(us, measured(us).bottleneck)


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


@pytest.fixture
def pool(tmp_path: Path) -> search_replies.Pool:
    for number, attempts in enumerate(TWO_RUNS):
        recorded(tmp_path, f"run-{number}", attempts)
    found, left_out = search_replies.pools([tmp_path])
    assert list(found) == ["matmul at M256 K256"] and left_out == []
    return found["matmul at M256 K256"]


def ids(*names: str) -> list[str]:
    return [source_hash(kernel(name)) for name in names]


def test_what_several_runs_made_of_one_kernel_are_changes_to_it(pool: search_replies.Pool) -> None:
    (a, b, ab, aba), steps = ids("a", "b", "ab", "aba"), pool.steps
    assert [(each.technique, each.child) for each in steps(pool.start).answer] == [("a", a), ("b", b)]
    assert [each.child for each in steps(a).answer] == [ab, aba]
    assert pool.timed(a) == (timed(400.0), 20.0) and pool.timed(ids("abc")[0]).answer is None
    assert (pool.price_us(a).answer, pool.price_us(b).answer, pool.price_us(ab).answer) == (400.0, 300.0, 300.0)
    assert (pool.changes, pool.forks, pool.is_thin) == (5, 1, True)


def test_a_run_as_recorded_is_a_curve_and_a_plan_takes_its_share_of_the_replies(pool: search_replies.Pool) -> None:
    assert pool.runs[0].curve == [Point(0, 500.0), Point(20, 400.0), Point(40, 300.0), Point(60, 300.0)]
    assert pool.runs[1].curve[-1] == Point(60, 100.0)


def test_strategies_go_by_what_was_promised_and_see_no_change_to_a_kernel_that_is_not_written(
    pool: search_replies.Pool,
) -> None:
    (run,) = search_walks.replayed(pool, search_walks.greedy_by_price, [0], 9)
    assert [name for name, _ in run.measured] == [pool.start, *ids("b", "a", "aba", "ab")]
    assert run.best == ids("aba")[0] and run.points[1] == Point(20.0, 450.0)
    for walk in search_walks.WALKS.values():
        for run in search_walks.replayed(pool, walk, range(3), 9):
            assert run.evaluations <= 5 and run.points[-1].seconds == 20.0 * run.evaluations


def test_repairs_are_part_of_their_plan_and_what_failed_its_last_check_is_wrong(tmp_path: Path) -> None:
    repaired = replace(tried(1, 300.0, "good"), number=2, candidate=Candidate("r001t2", kernel("good"), "input", None))
    fast = tried(2, 200.0, "fast", "r001t2")
    taken_back = replace(fast, last_check=WRONG)
    no_kernel = replace(tried(3, None, "none"), candidate=None, evaluation=None, outcome=Outcome.NO_KERNEL)
    path = recorded(tmp_path, "run", [tried(1, None, "bad"), repaired, fast, taken_back, no_kernel])
    run = search_replies.recorded_run(RunFolder(path))
    assert run is not None and run.seconds == 20.0
    good, fast_id = ids("good", "fast")
    assert [(each.parent, each.child, each.timed) for each in run.lanes[:2]] == [
        (run.start, good, timed(300.0)), (good, fast_id, None),
    ]  # fmt: skip
    assert run.lanes[2].timed is None and run.lanes[2].child == "run r003t1"


def test_runs_without_a_model_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, "catalogue", TWO_RUNS[0], replies=0)
    assert search_replies.main(["--runs", str(tmp_path)]) == 2
    assert "no exchanges with a model" in capsys.readouterr().err


def test_a_thin_pool_is_counted_and_not_replayed_and_a_rich_one_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
