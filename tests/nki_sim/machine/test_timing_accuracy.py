"""The benchmark that compares the model with hardware meets its targets and leaves no row out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks import calibration_instructions, timing_accuracy, timing_rows
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
