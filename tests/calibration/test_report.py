"""What a person is told: every kernel, every constant, how true it is, what to do next."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from infra.calibration.calibrating import Calibrated, truth_of
from infra.calibration.constants import NOT_MEASURED
from infra.calibration.file import CalibrationRecord, ConstantRecord, KernelRecord
from infra.calibration.report import print_outcome
from tests.calibration.devices import INSTALLED

RECORD = CalibrationRecord(
    "trn2", INSTALLED, "2026-11-03", "f", 425.0, "0.1.0",
    (
        ConstantRecord("dma_completion_ns", 300.0, 450.0, True, 0.01),
        ConstantRecord("throttle_utilization", 0.5, 0.5, False, 0.2, "only known to 20 %"),
        ConstantRecord("stationary_columns_per_cycle", 1.86, 2.1, True, 0.3, "at least this"),
    ),
    (
        KernelRecord("matmul 2x2x4", 120.0, 150.0, 121.0, "matmul"),
        KernelRecord("matmul 1x1x1", 140.0, 145.0, 139.0, "matmul"),
        KernelRecord("stream 256", None, 70.0, 70.0, "stream", said="does not compile: NCC_EGCA111"),
        KernelRecord("hops", 55.0, 40.0, 41.0, distrusted=True),
    ),
)  # fmt: skip


def said(found: Calibrated) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_outcome(console, found, "ubuntu@trn2")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_kept_calibration(tmp_path: Path) -> None:
    text = said(Calibrated(RECORD, truth_of(RECORD), (), tmp_path / "trn2.json"))
    line = next(line for line in text.splitlines() if line.startswith("ns from the last byte to a reader"))
    assert line.split()[8:] == ["300", "450", "+50.0", "%", "1", "%"]
    assert "as shipped" in text and "only known to 20 %" in text and "at least this" in text
    for name in NOT_MEASURED:
        assert any(line.startswith(f"{name} ") and "not told: " in line for line in text.splitlines()), name
    assert "+25.0 %" in text and "+0.8 %" in text, "each kernel that was not fitted, before and after"
    assert "median error" in text and "14.3 %" in text
    assert "0 of 1" in text and "1 of 1" in text, "the pair of the grid comes into the right order"
    assert "hops is left out of account" in text and "stream 256 could not be measured" in text
    assert "2 of 3 constants refitted" in text and "7:05 of device time" in text
    assert f"Kept: {tmp_path / 'trn2.json'}" in text and "--export" in text and "--calibration" in text
