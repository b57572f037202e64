"""benchmarks/nkibench.py: what it measures, what it says of what it cannot, and the block of a page it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import nkibench
from benchmarks.nkibench import BEGIN, END, Depth, main, measure, with_block
from infra.records import from_document
from infra.runs.suite import Ranking, SuiteRow, SuiteTable
from infra.tasks.seed_index import load_seed
from infra.terminal.suite_table import markdown
from nki_sim.machine import TRN2

TABLE = SuiteTable(
    "simulated trn2",
    True,
    "the peaks",
    (
        SuiteRow("matmul", "M4096", 10.0, "matmul", Ranking(40.0, 25.0, {"tensor": 60.0})),
        SuiteRow("silu", "N7", 10.0, "memory", Ranking(20.0, 50.0, {}), Ranking(11.0, 90.9, {}, ("small", "full"))),
    ),
    {"mamba": "not begun"},
)


@pytest.mark.slow
def test_a_verified_kernel_is_timed_against_its_declared_work():
    silu = load_seed("silu")
    table = measure([silu], "small", Depth.CANDIDATE)
    (row,) = table.rows
    work = silu.presets[0].work
    assert row.bound_us == pytest.approx(work.hbm_bytes / TRN2.dma_bytes_per_ns / 1e3)
    assert row.before.percent_of_peak == pytest.approx(100 * row.bound_us / row.before.latency_us)
    assert row.before.verified == ("small",)
    assert measure([silu], "small", Depth.TIMED).rows[0].before.verified == ()


def test_a_task_that_the_suite_has_not_run_counts_with_its_input_kernel_and_says_so(monkeypatch):
    mamba = SuiteRow("mamba", "M7", 10.0, "vector", Ranking(20.0, 50.0, {}))
    monkeypatch.setattr(nkibench, "measure", lambda seeds, preset, depth: replace(TABLE, rows=(mamba,), missing={}))
    table = nkibench.filled(TABLE, [load_seed(name) for name in ("mamba", "matmul", "silu")])
    assert [row.task for row in table.rows] == ["mamba", "matmul", "silu"] and not table.missing
    assert "| mamba | M7 | 20 | not run yet | 50.0 | 50.0 |  | vector | not verified |" in markdown(table)
    assert "1 of the 3 tasks have no optimized kernel yet" in markdown(table)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "sily"], "no seed is called sily"),
        (["--runs", "s9", "--checkpoints", "{folder}"], "no run of suite s9"),
        (["--runs", "--checkpoints", "{folder}"], "no suite in"),
        (["--from", "{folder}/none.json"], "none.json"),
        (["--from", "{folder}/bad.json"], "bad.json"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, arguments, said):
    (tmp_path / "bad.json").write_text('{"machine": 5}')
    assert main([argument.format(folder=tmp_path) for argument in arguments]) == 2
    errors = capsys.readouterr().err
    assert said in errors and errors.count("\n") == 1


def test_only_the_block_of_the_page_changes():
    text = f"before\n{BEGIN}\nearlier\n{END}\nafter\n"
    once = with_block(text, markdown(TABLE))
    assert once.startswith(f"before\n{BEGIN}\n") and once.endswith(f"{END}\nafter\n")
    assert "earlier" not in once and "| silu | N7 | 20 | 11 | 50.0 | 90.9 |  | memory | small + full |" in once
    assert with_block(once, markdown(TABLE)) == once


def test_the_page_shows_the_stored_results():
    """The table is never edited by hand: benchmarks/nkibench.py --from benchmarks/data/nkibench.json --page."""
    root = Path(__file__).resolve().parents[3]
    stored = from_document(SuiteTable, json.loads((root / "benchmarks/data/nkibench.json").read_bytes()), "stored")
    page = (root / "docs/nkibench.md").read_text(encoding="utf-8")
    assert with_block(page, markdown(stored)) == page
    readme = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    assert f"from {stored.before_percent:.0f} to {stored.after_percent:.0f} percent of peak" in readme
    assert f"{stored.counterpart_percent:.0f} if contested facts hold" in readme, "both means"
