"""The page of a suite: its table and its gains; complete in itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from accelopt_core.candidate import Candidate
from infra.documents.run_document import suite_document
from infra.report.page_file import Written, suite_html
from infra.report.suite_page import suite_page
from infra.runs.suite import table_of_runs
from infra.tasks.seed_index import seed_index
from tests.infra.reports.test_suite import a_run, measured
from tests.report.pages import Reader

TASKS = [seed.name for seed in seed_index()]


def suite_of(checkpoints: Path) -> str:
    """All tasks but two: one found nothing faster, one was wrong."""
    for number, task in enumerate(TASKS[1:-1]):
        a_run(checkpoints, task, 400.0, 400.0 / (1.2 + 0.1 * number))
    a_run(checkpoints, TASKS[0], 40.0)
    a_run(checkpoints, TASKS[-1], None)
    document = suite_document("s1", table_of_runs(checkpoints, "s1", TASKS))
    return suite_html(suite_page(document), Written("0.1.0", "2026-11-23T18:00:00+00:00"))


def test_every_task_has_its_line_or_its_reason(tmp_path: Path) -> None:
    html = suite_of(tmp_path)
    page = Reader(html)
    assert all(f"{task}" in page.text for task in TASKS) and len(TASKS) == 14
    for wanted in ("over 13 tasks", "1.20x", "2.30x", "400.0 µs", "2.5 %", f"{TASKS[-1]}: wrong: output 0"):
        assert wanted in page.text, wanted
    assert page.outside == [] and "script" not in page.tags and not page.running
    assert len(html.encode()) < 500_000


def test_what_stands_beside_the_best_kernels_has_a_column_and_a_mean(tmp_path: Path) -> None:
    folder = a_run(tmp_path, "silu", 40.0, 20.0)
    folder.counterpart((Candidate("r002t1", "x"), replace(measured(12.5), contested=("4-byte dma_transpose",))))
    document = suite_document("s1", table_of_runs(tmp_path, "s1", TASKS))
    page = Reader(suite_html(suite_page(document), Written("0.1.0", "now")))
    assert "50.0 % now , 80.0 % if contested facts hold" in page.text
    assert "Best rests on no contested fact of the machine" in page.text
