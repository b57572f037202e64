"""What a person is told: every kernel, every constant, how true it is, what to do next."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from infra import command_line
from infra.calibration.calibrating import Calibrated, truth_of
from infra.calibration.constants import NOT_MEASURED
from infra.calibration.file import CalibrationRecord, ConstantRecord, KernelRecord
from infra.calibration.report import ConsoleView, print_outcome
from infra.calibration.rows import row_of
from infra.journal import utc_now
from tests.calibration.devices import INFO, INSTALLED, KERNELS, ScriptedDevice, model

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


def test_one_that_is_not_truer_says_what_to_do() -> None:
    worse = tuple(replace(each, calibrated_us=2 * each.shipped_us) for each in RECORD.kernels)
    record = replace(RECORD, kernels=worse)
    text = said(Calibrated(record, truth_of(record), (), None))
    assert "Not kept" in text and "--calibrate-again" in text and "Kept:" not in text


def test_kernels_left_for_lack_of_time_say_how_much_more_they_need(tmp_path: Path) -> None:
    left = tuple(kernel.name for kernel in KERNELS[10:])
    text = said(Calibrated(RECORD, truth_of(RECORD), left, tmp_path / "x.json"))
    assert f"{len(left)} kernels left" in text and "--calibrate-minutes " in text and "nothing twice" in text


def test_without_an_unfitted_kernel_nobody_knows() -> None:
    record = replace(RECORD, kernels=RECORD.kernels[3:])
    assert "nobody knows how true it is" in said(Calibrated(record, truth_of(record), (), None))


def test_each_kernel_is_a_line_as_it_comes() -> None:
    console = Console(file=io.StringIO(), width=120)
    view = ConsoleView(console)
    view.begins("ubuntu@trn2, trn2", 35, 37, 40.0, 600.0)
    device = ScriptedDevice({}, refuses=(KERNELS[1].name,))
    for number, kernel in enumerate(KERNELS[:2], 1):
        result = device.evaluate(kernel.request(model().programs[kernel.name]), lambda step, detail: None)
        view.step("compile: something")
        view.row(number, 37, row_of(kernel, INFO, result, 14.0, utc_now()), 3.3, 54.0)
    view.close()
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert "35 kernels to measure, 2 of 37 are measured already; 0:40 of 10:00 used" in lines[0]
    assert "  1/37  nothing" in lines[1] and "by the shipped model" in lines[1] and "0:54 of 10:00" in lines[1]
    assert "no time: does not compile" in lines[2] and "NCC_EGCA111" in lines[2] and len(lines) == 3


def test_help_teaches(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        command_line.read(["calibrate", "--help"], {}, tmp_path)
    text = capsys.readouterr().out
    assert left.value.code == 0
    for word in ("refits", "goes on where it was", "--calibrate-minutes", "--export", "examples:", "exit codes"):
        assert word in text, word
    assert text.index("what happens") < text.index("--calibrations DIR") < text.index("examples:")
    assert max(len(line) for line in text.splitlines()) <= 120


@pytest.mark.parametrize(
    ("words", "hosts"),
    [("calibrate u@h", ("u@h",)), ("calibrate --export rows.csv", ()), ("calibrate a b", ("a", "b"))],
)
def test_the_command_line(words: str, hosts: tuple[str, ...], tmp_path: Path) -> None:
    read = command_line.read(words.split(), {}, tmp_path)
    assert (read.command, read.settings.target.host) == ("calibrate", hosts)
