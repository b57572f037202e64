"""The benchmark that compares the model with hardware meets its targets and leaves no row out."""

from __future__ import annotations

import pytest

from benchmarks import calibration_instructions, timing_accuracy, timing_rows
from nki_sim.machine import TRN2
from nki_sim.schedule import schedule


def test_every_target_of_the_published_rows_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    names = [word for family in ("tutorial_matmul", "adamw", "micro") for word in ("--family", family)]
    status = timing_accuracy.main(["--quick", *names])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "MISSED" not in printed and printed.count("at most") == len(timing_accuracy.TARGETS)


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
