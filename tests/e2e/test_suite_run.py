"""A suite as a user runs it: what is done is not run again, and one table closes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from accelopt_core.optimization_memory import Experience
from infra.runs.memory_file import MemoryFile
from infra.runs.run_folder import RunFolder
from infra.tasks.seed_index import seed_index
from tests.e2e.run import orchestrate, orchestrate_here
from tests.infra.reports.test_suite import a_run

TASKS = [seed.name for seed in seed_index()]


@pytest.mark.slow
def test_a_suite_goes_on_with_the_task_it_was_at(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    for task in TASKS:
        if task != "silu":
            a_run(checkpoints, task, 40.0, 20.0)
    ran = orchestrate(
        "--suite", "nkibench", "--resume", "s1", "--preset", "small", "--rounds", "1", "--provider", "catalogue",
        folder=tmp_path,
    )  # fmt: skip
    assert ran.status == 0, ran.errors
    assert [path.parent.name for path in checkpoints.glob("*/run.log")] == ["s1.silu"], "only what was missing is run"
    assert RunFolder(checkpoints / "s1.silu").manifest().status == "finished"
    assert all(f"\n{task} " in ran.output for task in TASKS)
    assert "over 14 tasks: " in ran.output and "simulated" in ran.output


@pytest.mark.slow
def test_two_tasks_side_by_side_end_as_one_after_the_other(tmp_path: Path) -> None:
    for name, at_once in (("alone", "1"), ("beside", "2")):
        for task in TASKS:
            if task not in ("silu", "rmsnorm_matmul"):
                a_run(tmp_path / name / "checkpoints", task, 40.0, 20.0)
        ran = orchestrate(
            "--suite", "nkibench", "--resume", "s1", "--preset", "small", "--rounds", "2", "--provider", "catalogue",
            "--tasks-at-once", at_once, folder=tmp_path / name,
        )  # fmt: skip
        assert ran.status == 0, ran.errors
        assert "over 14 tasks: " in ran.output
    for task in ("silu", "rmsnorm_matmul"):
        alone, beside = (
            tmp_path / name / "checkpoints" / f"s1.{task}" / "best_kernel.py" for name in ("alone", "beside")
        )
        assert alone.read_bytes() == beside.read_bytes()


@pytest.mark.slow
def test_a_task_that_begins_when_another_has_ended_plans_with_what_that_one_planned_with(tmp_path: Path) -> None:
    checkpoints, shared = tmp_path / "checkpoints", MemoryFile(tmp_path / "memory" / "rewrites.json", print)
    before = Experience("Widen the rows", "of an earlier run", technique="fill-partitions", speedup=1.2)
    shared.record(before, "earlier/r001t1")
    for task in TASKS:
        a_run(checkpoints, task, 40.0, 20.0)
    known = {before.key}
    for task in ("silu", "rmsnorm_matmul"):
        shutil.rmtree(checkpoints / f"s1.{task}")  # the one that is to do in this session
        ran = orchestrate(
            "--suite", "nkibench", "--resume", "s1", "--preset", "small", "--rounds", "1", "--provider", "catalogue",
            "--tasks-at-once", "2", folder=tmp_path,
        )  # fmt: skip
        assert ran.status == 0, ran.errors
        own = MemoryFile(checkpoints / f"s1.{task}" / "memory.json", print).load().experiences
        begun = [each for each in ran.events() if each["event"] == "RunStarted"]
        assert ran.folder.name == f"s1.{task}" and [each["experiences"] for each in begun] == [1]
        assert {each.kernel for each in own if each.key != before.key} == {task}, "it learned, and from itself alone"
        known |= {each.key for each in own}
        assert {each.key for each in shared.load().experiences} == known, "later runs know all of it"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tasks-at-once", "2"], "give --suite NAME too"),
        (["--suite", "mybench"], "nkibench"),
        (["--suite", "nkibench", "--task", "silu"], "leave --task away"),
        (["--suite", "nkibench", "--resume"], "no suite in"),
        (["--suite", "nkibench", "--preset", "huge"], "huge"),
    ],
)
def test_a_suite_that_cannot_be_run_is_refused_in_one_line(tmp_path: Path, flags: list[str], said: str) -> None:
    ran = orchestrate_here(*flags, folder=tmp_path)
    assert ran.status == 2
    assert said in ran.errors and ran.errors.count("\n") == 1, ran.errors
