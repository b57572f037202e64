"""The benchmark that compares the model with hardware meets its targets."""

from __future__ import annotations

import csv
import sys

import pytest

from benchmarks import timing_accuracy


def test_every_calibration_target_is_met(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["timing_accuracy.py", "--quick"])
    status = timing_accuracy.main()
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "MISSED" not in printed


def test_every_calibration_row_is_predicted() -> None:
    kernels = {row["id"] for row in timing_accuracy.read("trn2_kernels.csv")}
    assert kernels == set(timing_accuracy.kernel_programs())
    with open(timing_accuracy.DATA / "trn2_micro.csv", newline="", encoding="utf-8") as file:
        micro = [row["id"] for row in csv.DictReader(file)]
    predicted = {row[0] for row in timing_accuracy.instructions._TABLE}
    assert predicted == set(micro)


def test_rank_correlation_is_spearmans() -> None:
    assert timing_accuracy.rank_correlation([1, 2, 3], [10, 20, 30]) == 1
    assert timing_accuracy.rank_correlation([1, 2, 3], [30, 20, 10]) == -1
