"""The benchmark that compares the model with hardware meets its targets and leaves no row out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import calibration_instructions, timing_accuracy, timing_page, timing_rows
from nki_sim.machine import TRN2
from nki_sim.timing.schedule import schedule

QUICK = ("tutorial_matmul", "adamw", "ladder_fp32", "qwen_bf16", "streams", "attention_fp32", "micro")


def missed(names: Sequence[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Prints all targets of these families; those that are missed."""
    status = timing_accuracy.main(["--quick", *[word for name in names for word in ("--family", name)]])
    lines = [line for line in capsys.readouterr().out.splitlines() if "(at most" in line]
    found = [line for line in lines if "MISSED" in line]
    assert lines and status == (1 if found else 0)
    return found


def test_the_targets_of_small_families_are_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert not missed(QUICK, capsys)


@pytest.mark.slow
def test_every_target_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert not missed((), capsys)


def test_every_published_row_is_predicted() -> None:
    assert [row.id for row in timing_rows.published_rows()] == [
        row["id"] for row in timing_rows.read("trn2_kernels.csv")
    ]
    predicted = {row[0] for row in calibration_instructions._TABLE}
    assert predicted == {row["id"] for row in timing_rows.read("trn2_micro.csv")}


def test_row_ids_are_of_one_row_each() -> None:
    ids = [row.id for row in timing_rows.all_rows()]
    assert len(ids) == len(set(ids))


def test_a_figure_with_the_launch_is_compared_with_one() -> None:
    row = next(row for row in timing_rows.all_rows() if row.with_launch)
    programs = timing_rows.Programs()
    outcome = timing_rows.predict(row, programs, TRN2)
    alone = schedule(programs.of(row), TRN2).latency_us
    assert outcome.predicted == pytest.approx(alone + TRN2.launch_ns / 1e3)
    assert timing_rows.predict_us(row, programs, TRN2) == outcome.predicted


def test_an_unknown_family_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="no such family; there are tutorial_matmul"):
        timing_accuracy.main(["--quick", "--family", "nothing"])


def test_what_is_written_is_about_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    for extra in (["--quick"], ["--family", "micro"]):
        with pytest.raises(SystemExit):
            timing_accuracy.main(["--write-intervals", *extra])
        assert "leave --quick and --family away" in capsys.readouterr().err


def test_a_document_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="families: begin"):
        timing_page.write(page, ["a"])
    assert page.read_text() == "nothing"


def test_the_table_shows_left_out_figures_before_those_fitted_with(tmp_path: Path) -> None:
    apart = [
        timing_rows.Outcome("X1", "f", "g", "", 100.0, 130.0, side="faster"),
        timing_rows.Outcome("X2", "f", "g", "", 200.0, 220.0, side="inside"),
    ]
    together = [replace(row, predicted=row.measured, side=None) for row in apart]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{timing_page.BEGIN}\nold\n{timing_page.END}\nafter\n")
    timing_page.write(page, timing_page.table(apart, together, {"f": together}))
    head, _, family, halves = page.read_text().splitlines()[2:-2]
    assert head.count("|") == family.count("|") == halves.count("|")
    cells = [cell.strip() for cell in family.split("|")[1:-1]]
    assert cells[:5] == ["f", "2", "20.0", "28.0", "100 % of 1"]
    assert cells[7] == "50 %" and cells[-2:] == ["0.0", "0.0"]
    assert "other half of its grids" in halves
    assert page.read_text().startswith("before\n") and page.read_text().endswith("after\n")
