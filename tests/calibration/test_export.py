"""What a person is told of a calibration, and rows to send back, in which nobody is named."""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from accelopt_core.evaluation import CompileFailed
from infra.calibration.calibrating import Calibrated, truth_of
from infra.calibration.constants import NOT_MEASURED, in_order_of_worth
from infra.calibration.file import CalibrationRecord, ConstantRecord, KernelRecord
from infra.calibration.report import print_outcome
from infra.calibration.rows import COLUMNS, RowFile, as_csv, export, row_of
from infra.journal import utc_now
from tests.calibration.devices import INFO, INSTALLED, KERNELS, ScriptedDevice, model
from tests.house.structure import ROOT

SECRETS = ("alice", "10.0.0.1", "ubuntu", "secret", "/home", "trn2-f00d", "ssh")


@pytest.fixture
def rows(tmp_path: Path) -> RowFile:
    """Two measured, one refused with a message that names a person and a folder; and one of an earlier kernel."""
    file = RowFile(tmp_path / "trn2-2.32-nki_0.6.1.rows.jsonl")
    device = ScriptedDevice({}, refuses=(KERNELS[1].name,))
    for kernel in KERNELS[:3]:
        request = kernel.request(model().programs[kernel.name])
        file.append(row_of(kernel, INFO, device.evaluate(request, lambda step, detail: None), 12.0, utc_now()))
    said = CompileFailed("NCC_IBIR229 in /home/alice")
    file.append(row_of(KERNELS[3], INFO, said, 3.0, utc_now()))
    return file


def parsed(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_columns_are_those_of_the_published_rows(rows: RowFile) -> None:
    text = as_csv(rows.read(), in_order_of_worth())
    for name in ("ladder_fp32.csv", "streams.csv"):
        published = (ROOT / "benchmarks/data/trn2_device" / name).read_text(encoding="utf-8").splitlines()[0]
        assert text.splitlines()[0] == published == ",".join(COLUMNS)
    first, refused, *_ = parsed(text)
    assert (first["kernel"], first["grid"], first["dtype"], first["captures"]) == ("nothing", "micro", "float32", "5")
    assert float(first["min_us"]) < float(first["measured_us"]) < float(first["max_us"])
    assert first["dma_busy"] == "0.5000" and first["correct_on_device"] == "yes"
    assert "SDK 2.32" in first["source"] and "trn2.3xlarge" in first["source"]
    assert refused["measured_us"] == refused["correct_on_device"] == "" and "NCC_EGCA111" in refused["error_kind"]


def test_nobody_and_no_folder_is_named(rows: RowFile, tmp_path: Path) -> None:
    assert any(secret in rows.path.read_text() for secret in SECRETS), "what is kept here may name them"
    said = export(tmp_path / "rows.csv", None, tmp_path)
    text = (tmp_path / "rows.csv").read_text()
    assert "4 rows" in said and len(parsed(text)) == 4
    for secret in (*SECRETS, os.environ.get("USER", "root") + "@", str(tmp_path)):
        assert secret not in text, secret
    assert not re.search(r"\d+\.\d+\.\d+\.\d+|@|/", text.replace("0.6.1", ""))


def test_the_newest_measurements_or_the_named_ones(rows: RowFile, tmp_path: Path) -> None:
    other = RowFile(tmp_path / "trn2-2.31-nki_0.5.0.rows.jsonl")
    other.append(rows.read()[0])
    os.utime(rows.path, (1, 1))
    assert "1 rows of trn2-2.31" in export(tmp_path / "a.csv", None, tmp_path)
    assert "4 rows of trn2-2.32" in export(tmp_path / "b.csv", rows.path, tmp_path)


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
