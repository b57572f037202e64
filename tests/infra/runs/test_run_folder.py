"""checkpoints/<run-id>/: everything is read back as it was written, by another process, after a crash."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.evaluation import (
    CheckFailure,
    CompileFailed,
    Crashed,
    Evaluation,
    Implausible,
    Incorrect,
    Predicted,
    Step,
    TimedOut,
)
from accelopt_core.optimization_memory import Experience
from accelopt_core.ports import Choice
from infra.journal import JournalDamaged, JournalError, JournalLocked
from infra.runs.memory_file import MemoryFile
from infra.runs.residual_file import ResidualFile
from infra.runs.run_folder import RunFolder, RunJournal, RunNotFound, find_run, new_run_id, run_ids
from ka_extensions.residuals import Residual
from tests.infra.samples import attempted, manifest, measured

INPUT = Candidate("input", "x = 0\n")


def created(checkpoints: Path, run_id: str = "20261120-125418-matmul-3f2a", **changes: object) -> RunFolder:
    return RunFolder.create(checkpoints, manifest(run_id, **changes), {"run": {"rounds": 10}})


def test_run_ids_sort_by_time_and_name_the_task() -> None:
    early = new_run_id("add_rmsnorm_matmul", datetime(2026, 9, 1, 8, 0, 0, tzinfo=timezone.utc))
    late = new_run_id("Ünïcode/../kernel", datetime(2026, 11, 20, 12, 54, 18, tzinfo=timezone.utc))
    assert early < late
    assert re.fullmatch(r"20260901-080000-add-rmsnorm-matmul-[0-9a-f]{4}", early)
    assert re.fullmatch(r"[a-z0-9-]+", late)


EVALUATIONS: list[Evaluation] = [
    measured(123.4), CompileFailed("no", 3),
    Incorrect(CheckFailure(42, "small", 0, "relative error", 1.0, 2e-5, (0, 1), 1.5, float("inf"), "heavy-tailed")),
    Implausible("faster than DMA", 1.0), TimedOut(Step.COMPILE, 300.0), Crashed(Step.RUN, "segmentation fault", None),
]  # fmt: skip


@pytest.mark.parametrize("evaluation", EVALUATIONS, ids=lambda evaluation: evaluation.kind)
def test_every_kind_of_attempt_is_read_back_as_it_was_written(tmp_path: Path, evaluation: Evaluation) -> None:
    folder = created(tmp_path)
    entry = attempted(1, evaluation, 500.0, source="x = 'µ'\n")
    folder.attempt(entry)
    folder.close()
    (back,) = RunFolder(folder.path).attempts()
    assert repr(back) == repr(entry)  # repr: NaN is not equal to itself
    assert type(back.evaluation) is type(evaluation)
    assert (folder.path / "candidates" / "r001t1.py").read_text() == "x = 'µ'\n"
    (stored,) = (folder.path / "evaluations").iterdir()
    assert json.loads(stored.read_text())["evaluation"]["kind"] == evaluation.kind
    line = json.loads((folder.path / "experiments.jsonl").read_text())
    assert line["evaluation"] == stored.stem, "the log refers to it"


def test_an_attempt_that_is_gone_through_again_or_corrected_has_one_line(tmp_path: Path) -> None:
    """Killed in the second try of round 2, and gone on with; then the winner of round 1 fails its last check."""
    folder = created(tmp_path)
    for number in (1, 2):
        folder.attempt(replace(attempted(number, CompileFailed("no"), 500.0), summary="before"))
    folder.attempt(replace(attempted(2, CompileFailed("no"), 500.0), number=2, summary="before"))
    folder.close()
    resumed = RunFolder(folder.path)
    resumed.attempt(replace(attempted(2, CompileFailed("no"), 500.0), summary="after"))
    resumed.attempt(replace(attempted(1, CompileFailed("no"), 500.0), summary="after"))
    resumed.attempt(replace(attempted(3, CompileFailed("no"), 500.0), summary="after"))
    lines = [json.loads(line) for line in (folder.path / "experiments.jsonl").read_text().splitlines()]
    assert [(line["round"], line["number"], line["summary"]) for line in lines] == [
        (1, 1, "after"), (2, 1, "after"), (3, 1, "after"),
    ]  # fmt: skip
    assert [attempt.round for attempt in RunFolder(folder.path).attempts()] == [1, 2, 3]


def test_a_reply_that_is_no_unicode_is_kept_all_the_same(tmp_path: Path) -> None:
    folder = created(tmp_path)
    entry = attempted(1, CompileFailed("no"), 500.0, source="x = '\ud800'\n")
    folder.attempt(entry)
    (back,) = folder.attempts()
    assert back.candidate == entry.candidate


def test_a_candidate_id_is_no_path(tmp_path: Path) -> None:
    folder = created(tmp_path / "runs")
    entry = attempted(1, CompileFailed("no"), 500.0)
    hostile = Candidate("../../../escape", "x")
    folder.attempt(replace(entry, candidate=hostile))
    assert not list(tmp_path.glob("escape*")) and len(list((folder.path / "candidates").iterdir())) == 1


def test_the_first_best_is_the_input_and_later_ones_leave_it_alone(tmp_path: Path) -> None:
    folder = created(tmp_path)
    assert folder.baseline() is None and folder.winner() is None
    folder.best(INPUT, measured(500.0))
    folder.best(Candidate("r001t1", "x = 1\n", "input"), measured(250.0))
    baseline, winner = folder.baseline(), folder.winner()
    assert (baseline.candidate, baseline.result.latency_us) == (INPUT, 500.0)
    assert (winner.candidate.id, winner.result.latency_us) == ("r001t1", 250.0)
    assert folder.input_kernel.read_text() == "x = 0\n"
    assert folder.best_kernel.read_text() == "x = 1\n"


def test_a_crash_between_best_json_and_best_kernel_is_put_right_by_its_next_holder(tmp_path: Path) -> None:
    folder = created(tmp_path)
    folder.best(INPUT, measured(500.0))
    folder.best(Candidate("r001t1", "x = 1\n"), measured(250.0))
    folder.best_kernel.write_text("x = 0\n")  # as if the crash had come before this file was replaced
    reader = RunFolder(folder.path)
    assert reader.winner() is not None and folder.best_kernel.read_text() == "x = 0\n"  # a reader writes nothing
    assert folder.winner() is not None and folder.best_kernel.read_text() == "x = 1\n"


def test_one_run_is_held_by_one_process_and_read_by_anybody(tmp_path: Path) -> None:
    folder = created(tmp_path)
    other = RunFolder(folder.path)
    with pytest.raises(JournalLocked, match="run 20261120-125418-matmul-3f2a is under way"):
        other.hold()
    assert other.is_held and other.manifest().status == "running"
    folder.close()
    assert not other.is_held
    other.hold()
    other.close()


def test_a_run_id_is_given_once(tmp_path: Path) -> None:
    folder = created(tmp_path)
    folder.close()
    with pytest.raises(JournalError, match="choose another --run-id"):
        created(tmp_path)


def test_how_it_ended_stands_in_the_manifest(tmp_path: Path) -> None:
    folder = created(tmp_path)
    folder.end("budget", "$5 are spent")
    assert (folder.manifest().status, folder.manifest().reason) == ("budget", "$5 are spent")
    assert folder.manifest().updated > folder.manifest().created


def test_exchanges_are_numbered_in_order_also_after_a_restart(tmp_path: Path) -> None:
    folder = created(tmp_path)
    folder.keep_exchange("planner", "{}")
    again = RunFolder(folder.path)
    path = again.keep_exchange("executor", '{"a": 1}')
    assert path.name == "00002-executor.json" and path.read_text() == '{"a": 1}'


def test_runs_are_found_by_id_by_its_beginning_and_as_the_latest(tmp_path: Path) -> None:
    created(tmp_path, "zzz-named-by-hand", created="2026-01-01T00:00:00+00:00")
    created(tmp_path, "20261120-1-a", created="2026-11-20T00:00:01+00:00")
    created(tmp_path, "20261120-2-b", created="2026-11-20T00:00:02+00:00")
    (tmp_path / "README.md").write_text("not a run")
    assert run_ids(tmp_path) == ["zzz-named-by-hand", "20261120-1-a", "20261120-2-b"]
    assert find_run(tmp_path, "latest").run_id == "20261120-2-b"
    assert find_run(tmp_path, "20261120-1-a").run_id == "20261120-1-a"
    assert find_run(tmp_path, "zzz").run_id == "zzz-named-by-hand"


@pytest.mark.parametrize(
    ("asked", "says"), [("2026", "several runs"), ("nothing", "the newest are"), ("../x", "is no run")]
)
def test_a_run_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path: Path, asked: str, says: str) -> None:
    created(tmp_path, "20261120-1-a")
    created(tmp_path, "20261120-2-b")
    with pytest.raises(RunNotFound, match=says) as failure:
        find_run(tmp_path, asked)
    assert "20261120-2-b" in str(failure.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [("manifest.json", "{"), ("manifest.json", '{"run_id": 1}'), ("baseline.json", "[]"), ("best.json", "{}")],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    folder = created(tmp_path)
    folder.best(INPUT, measured(500.0))
    (folder.path / name).write_text(content)
    read = {"manifest.json": folder.manifest, "baseline.json": folder.baseline, "best.json": folder.winner}[name]
    with pytest.raises(JournalDamaged, match=name) as failure:
        read()
    assert "\n" not in str(failure.value)


def test_a_journal_files_an_attempt_s_experience_once_however_often_it_is_repeated(tmp_path: Path) -> None:
    folder = created(tmp_path)
    memory = MemoryFile(tmp_path / "rewrites.json", print)
    experience = Experience("hoist", "s", "hoist", speedup=1.5)
    RunJournal(folder, memory).remember(experience, "r001t1", ())
    resumed = RunJournal(folder, memory)  # killed before the attempt was written: the round is played again
    resumed.remember(experience, "r001t1", ())
    assert [known.confirmed for known in resumed.recall().experiences] == [1]
    resumed.remember(experience, "r002t1", ())
    (known,) = resumed.recall().experiences
    assert (known.confirmed, known.run) == (2, folder.run_id)


def test_a_run_that_was_killed_before_it_began_can_begin_again(tmp_path: Path) -> None:
    unborn = created(tmp_path)
    unborn.close()
    (unborn.path / "manifest.json").unlink()
    (unborn.path / ".config.json.1.abcd.tmp").write_text("half")
    again = created(tmp_path)
    assert again.manifest().run_id == unborn.run_id and not list(again.path.glob(".*.tmp"))


def test_candidates_side_by_side_are_told_apart_and_one_gone_through_again_leaves_the_other(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest("r"), {})

    def tried(lane: str, number: int, us: float) -> Attempt:
        entry = attempted(1, measured(us), 500.0, number=number)
        candidate = Candidate(f"r001{lane}t{number}", f"x = {us}\n", "input", "p")
        return replace(entry, lane=lane, lanes=2, candidate=candidate)

    for entry in (tried("b", 1, 300.0), tried("a", 1, 400.0), tried("a", 2, 390.0), tried("a", 1, 350.0)):
        folder.attempt(entry)
    assert [(t.lane, t.number, t.candidate.id) for t in folder.attempts() if t.candidate] == [
        ("a", 1, "r001at1"), ("b", 1, "r001bt1")
    ]  # fmt: skip
    folder.attempt(attempted(1, measured(200.0), 500.0))
    assert [(t.lane, t.lanes) for t in folder.attempts()] == [("", 1)], "gone through again at another width"
    assert {path.stem for path in (folder.path / "candidates").iterdir()} >= {"r001at1", "r001at2", "r001bt1"}


def test_two_calls_at_once_get_two_numbers(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest("r"), {})
    threads = [threading.Thread(target=lambda: folder.keep_exchange("planner", "{}")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list((folder.path / "exchanges").iterdir())) == 8


def test_a_choice_is_on_file_before_anything_is_sent_and_handed_to_whoever_chooses_again(tmp_path: Path) -> None:
    folder = created(tmp_path)
    journal = RunJournal(folder, MemoryFile(tmp_path / "rewrites.json", print))
    made = (
        Choice("aa", Predicted(12.5, "dma"), True),
        Choice("bb", Predicted(90.0, ""), False),
        Choice("cc", None, True),
    )
    handed: list[tuple[Choice, ...]] = []

    def choose(filed: tuple[Choice, ...]) -> tuple[Choice, ...]:
        handed.append(filed)
        return filed or made

    assert journal.chosen(3, 1, choose) == made
    resumed = RunJournal(RunFolder(folder.path), MemoryFile(tmp_path / "rewrites.json", print))
    assert resumed.chosen(3, 1, choose) == made and handed == [(), made]
    assert RunFolder(folder.path).chosen(3, 2) == () == RunFolder(folder.path).chosen(4, 1)


def on_a_device(number: int, us: float, predicted_us: float | None, bound_by: str = "dma") -> Attempt:
    entry = attempted(number, measured(us, simulated=False), 500.0)
    return replace(entry, predicted=None if predicted_us is None else Predicted(predicted_us, bound_by))


def test_what_a_device_showed_of_the_simulator_is_there_for_the_next_run_on_it(tmp_path: Path) -> None:
    folder, memory = created(tmp_path), MemoryFile(tmp_path / "m" / "rewrites.json", print)
    here = ResidualFile(memory.path, "trn2-1", "sim-1")
    assert here.of_other_runs("next") == ()
    for time in (1, 2):  # as a run that was killed before the attempt was on file, and goes through the round again
        RunJournal(folder, memory, here).attempt(on_a_device(1, 200.0, 100.0))
    journal = RunJournal(folder, memory, here)
    for attempt in (on_a_device(2, 90.0, 90.0, "tensor"), on_a_device(3, 80.0, None)):
        journal.attempt(attempt)
    journal.attempt(replace(on_a_device(4, 70.0, 60.0), decision=None))  # not decided yet: it comes again
    journal.attempt(replace(on_a_device(2, 90.0, 90.0), last_check=on_a_device(2, 90.0, 90.0).evaluation))
    assert here.of_other_runs("next") == (Residual.of("dma", 100.0, 200.0), Residual("tensor", 0.0))
    assert here.of_other_runs(folder.run_id) == (), "a run knows its own from its attempts"
    for other in (ResidualFile(memory.path, "trn2-2", "sim-1"), ResidualFile(memory.path, "trn2-1", "sim-2")):
        assert other.of_other_runs("next") == ()
    assert here.path == tmp_path / "m" / "rewrites.residuals.jsonl"
    first = json.loads(here.path.read_text().splitlines()[0])
    assert (first["run_id"], first["candidate"], first["predicted_us"]) == (folder.run_id, "r001t1", 100.0)


def test_an_attempt_of_before_there_were_predictions_is_read(tmp_path: Path) -> None:
    folder = created(tmp_path)
    folder.attempt(on_a_device(1, 200.0, 100.0))
    lines = folder.path / "experiments.jsonl"
    old = json.loads(lines.read_text())
    assert old.pop("predicted") == {"latency_us": 100.0, "bound_by": "dma", "contested": []}
    lines.write_text(json.dumps(old) + "\n")
    (read,) = folder.attempts()
    assert (read.predicted, read.latency_us, read.id) == (None, 200.0, "r001t1")
