"""Rows to send back: the columns of the published ones, and nothing that names a person, a host or a folder."""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path

import pytest

from accelopt_core.evaluation import CompileFailed
from infra.calibration.constants import in_order_of_worth
from infra.calibration.rows import COLUMNS, RowFile, as_csv, export, row_of
from infra.journal import utc_now
from tests.calibration.devices import INFO, KERNELS, ScriptedDevice, model
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
