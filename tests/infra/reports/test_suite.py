"""A suite is read from its runs' folders: what is done counts, what is missing is named."""

from __future__ import annotations

import io
import math
import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from rich.console import Console

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Bounds, Measured, Profile
from accelopt_core.ports import TargetInfo
from infra.command_line import read
from infra.commands.suite_side_by_side import at_once_of, share_of
from infra.documents.run_document import suite_document
from infra.records import from_document, to_document
from infra.runs.run_folder import Manifest, RunFolder, RunNotFound
from infra.runs.suite import SuiteTable, geometric_mean, latest_suite, longest_first, ranking_of, run_of, table_of_runs
from infra.tasks.seed_index import seed_index
from infra.terminal.suite_table import markdown, print_suite

TASKS = ("matmul", "silu", "mamba")
SUITE = ["--suite", "nkibench"]


@pytest.mark.parametrize(
    ("flags", "cpus", "memory_gib", "tasks", "processes"),
    [
        (["--provider", "catalogue"], 2, 24, 2, 1),
        (["--provider", "catalogue"], 16, 24, 3, 5),
        (["--provider", "catalogue"], 4, 4, 1, 4),
        (["--provider", "catalogue", "--tasks-at-once", "1"], 2, 24, 1, 2),
        (["--provider", "catalogue", "--tasks-at-once", "4", "--processes", "3"], 2, 24, 4, 3),
        (["--provider", "catalogue", "--host", "u@h"], 2, 24, 1, 2),
        (["--provider", "mailbox", "--mailbox", "m"], 2, 24, 1, 2),
        (["--provider", "catalogue", "--engine", "ray"], 2, 24, 4, 1),
    ],
)
def test_tasks_go_side_by_side_where_nothing_but_this_machine_is_waited_for_and_share_its_cpus(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], cpus: int, memory_gib: int, tasks: int, processes: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": memory_gib << 18, "SC_PAGE_SIZE": 4096}[name])
    settings = read([*SUITE, *flags]).settings
    assert at_once_of(settings) == tasks
    assert share_of(settings, tasks) == processes


def test_of_tasks_side_by_side_those_that_take_longest_to_check_begin() -> None:
    order = longest_first(seed_index())
    assert sorted(order) == sorted(seed.name for seed in seed_index())
    assert set(order[:2]) == {"matmul", "lora"}
    assert order.index("gqa_full") < order.index("mamba") < order.index("silu")
    silu, matmul = (next(seed for seed in seed_index() if seed.name == name) for name in ("silu", "matmul"))
    unknown = replace(matmul, presets=tuple(replace(preset, work=None) for preset in matmul.presets))
    assert longest_first([unknown, silu]) == ("silu", "matmul")


CHECKS = ("small (M256): 7 seeds, worst relative L2 1e-7 <= 2e-05", "full (M4096): 2 seeds, worst ...")


def measured(latency_us: float, checks: tuple[str, ...] = CHECKS) -> Measured:
    fields = {"total_time": latency_us / 1e6, "tensor_engine_active_time": 0.5 * latency_us / 1e6}
    profile = Profile(fields, Bounds(10.0, 1.0, 5.0, "declared"))
    return Measured(latency_us, latency_us, latency_us, 1, True, "simulated trn2", profile, checks)


def a_run(checkpoints: Path, task: str, before_us: float | None, after_us: float | None = None) -> RunFolder:
    manifest = Manifest(
        run_of(checkpoints, "s1", task).run_id, datetime(2026, 1, 1, tzinfo=timezone.utc).isoformat(), task, "M4096",
        "kernel.py", TargetInfo("simulated trn2", "x", True, "trn2"), "catalogue", {}, 5,
    )  # fmt: skip
    folder = RunFolder.create(checkpoints, manifest, {})
    if before_us is not None:
        folder.best(Candidate("input", "before"), measured(before_us))
    if after_us is not None:
        folder.best(Candidate("r001t1", "after"), measured(after_us))
    folder.end("finished" if before_us is not None else "failed", "wrong: output 0")
    folder.close()
    return folder


def test_every_task_has_a_row_or_a_reason(tmp_path):
    a_run(tmp_path, "matmul", 40.0, 20.0)
    a_run(tmp_path, "silu", None)
    table = table_of_runs(tmp_path, "s1", TASKS)
    (row,) = table.rows
    assert (row.task, row.before.percent_of_peak, row.limiter) == ("matmul", 25.0, "matmul")
    assert row.after is not None and row.after.percent_of_peak == 50.0
    assert table.missing == {"silu": "wrong: output 0", "mamba": "not begun"}


def test_a_task_that_nothing_made_faster_counts_with_its_input_kernel(tmp_path):
    a_run(tmp_path, "matmul", 40.0, 10.0)
    a_run(tmp_path, "silu", 40.0)
    table = table_of_runs(tmp_path, "s1", TASKS)
    assert table.rows[1].after is None
    assert table.before_percent == pytest.approx(25.0)
    assert table.after_percent == pytest.approx(50.0)  # of 100 and 25
    a_run(tmp_path / "beyond", "matmul", 40.0, 8.0)
    beyond = table_of_runs(tmp_path / "beyond", "s1", ["matmul"])
    assert beyond.rows[0].after.percent_of_peak == 125.0 and beyond.after_percent == pytest.approx(100.0)


def test_what_rests_on_a_contested_fact_has_a_column_and_a_mean_of_its_own(tmp_path):
    folder = a_run(tmp_path, "matmul", 40.0, 20.0)
    fastest = replace(measured(10.0), contested=("4-byte dma_transpose",))
    folder.counterpart((Candidate("r002t1", "faster"), fastest))
    a_run(tmp_path, "silu", 40.0, 20.0)
    table = table_of_runs(tmp_path, "s1", ["matmul", "silu"])
    assert table.rows[0].counterpart == ranking_of(fastest) and table.rows[1].counterpart is None
    assert table.after_percent == pytest.approx(50.0)
    assert table.counterpart_percent == pytest.approx(math.sqrt(100.0 * 50.0))
    out = io.StringIO()
    print_suite(Console(file=out, width=60), table)
    document = suite_document("s1", table)
    assert (document.after_percent, document.counterpart_percent) == (table.after_percent, table.counterpart_percent)
    assert "70.7" in out.getvalue() and "70.7" in markdown(table)
    assert "| 100.0 (4-byte dma_transpose) |" in markdown(table)
    folder.counterpart(None)
    assert table_of_runs(tmp_path, "s1", ["matmul"]).rows[0].counterpart is None


def test_tasks_side_by_side_took_what_passed_meanwhile_not_the_sum_of_their_times(tmp_path):
    for task in TASKS:
        manifest = a_run(tmp_path, task, 40.0, 20.0).manifest()
    begun, ended = (datetime.fromisoformat(text) for text in (manifest.created, manifest.updated))
    assert table_of_runs(tmp_path, "s1", TASKS).seconds == pytest.approx((ended - begun).total_seconds())


def test_a_suite_that_has_not_measured_anything_is_refused_by_name(tmp_path):
    with pytest.raises(RunNotFound, match="s1"):
        table_of_runs(tmp_path, "s1", TASKS)


def test_the_latest_suite_is_found_among_other_runs(tmp_path):
    a_run(tmp_path, "matmul", 40.0)
    (tmp_path / "s1.matmul").rename(tmp_path / "20260101-000000-nkibench-1234.matmul")
    with pytest.raises(RunNotFound, match="--suite nkibench"):
        latest_suite(tmp_path, ("silu",))
    assert latest_suite(tmp_path, TASKS) == "20260101-000000-nkibench-1234"


def test_a_table_survives_its_json(tmp_path):
    a_run(tmp_path, "matmul", 40.0, 20.0)
    table = table_of_runs(tmp_path, "s1", TASKS)
    assert from_document(SuiteTable, to_document(table), "here") == table


@pytest.mark.parametrize(("values", "mean"), [([4.0, 9.0], 6.0), ([7.0], 7.0), ([], 0.0), ([1e300, 1e-300, 1.0], 1.0)])
def test_geometric_mean(values, mean):
    assert geometric_mean(values) == pytest.approx(mean)


def test_an_unverified_shape_is_not_claimed():
    assert ranking_of(measured(20.0, CHECKS[:1])).verified == ("small",)
    assert ranking_of(measured(20.0, ())).verified == ()
    assert ranking_of(measured(20.0)).engine_percent == {"tensor": pytest.approx(50.0)}
