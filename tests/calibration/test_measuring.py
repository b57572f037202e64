"""Rows come one by one and stay; the device's time is kept to; what was begun is gone on with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.ports import TargetMisconfigured, TargetUnreachable
from infra.calibration import calibrating
from infra.calibration.calibrating import Calibrated, Measuring, calibrate
from infra.calibration.constants import CONSTANTS, kernels_of
from infra.calibration.file import Calibrations
from infra.calibration.kernel import CalibrationKernel
from infra.calibration.rows import Row, RowFile
from infra.journal import JournalLocked
from tests.calibration.devices import INFO, KERNELS, UNFITTED, ScriptedDevice, Told, model, moved
from tests.processes import PATIENCE_S

TIMES = ("hardware_issue_ns", "hardware_start_ns", "spread_ns", "completion_ns")
NAMES = ("profiler_ns", "dma_sustained", *(f"dma_{name}" for name in TIMES))
DMA = tuple(each for each in CONSTANTS if each.name in NAMES)
FEW = (*kernels_of(DMA), *(kernel for kernel in UNFITTED if kernel.held_out == "stream"))
TRUE = {name: value for name, value in moved(3).items() if name in NAMES}


class Clock:
    """Each kernel takes `took_s`."""

    def __init__(self, took_s: float) -> None:
        self.now, self.took_s = 100.0, took_s

    def __call__(self) -> float:
        return self.now

    def work(self, kernel: str) -> None:
        self.now += self.took_s


def measuring(
    device: ScriptedDevice, folder: Path, budget_s: float, clock: Callable[[], float], told: list[str]
) -> Measuring:
    def on_row(kernel: object, row: Row, used_s: float) -> None:
        told.append(row.kernel)

    rows = RowFile(folder / "rows.jsonl")
    return Measuring(device, INFO, rows, model().programs, budget_s, on_row, clock=clock)


def names(kernels: tuple[CalibrationKernel, ...]) -> list[str]:
    return [kernel.name for kernel in kernels]


@pytest.mark.parametrize(
    ("took_s", "budget_s", "expected"),
    [(20.0, 600.0, 29), (15.0, 10_000.0, len(KERNELS)), (40.0, 600.0, 14), (5.0, 19.0, 0), (100.0, 130.0, 1)],
)
def test_the_device_is_used_no_longer_than_it_was_agreed(took_s, budget_s, expected, tmp_path) -> None:
    """Before each kernel there must be time for it, by what those before it took and a fifth more."""
    clock = Clock(took_s)
    device = ScriptedDevice(TRUE, clock.work)
    told: list[str] = []
    left = measuring(device, tmp_path, budget_s, clock, told).measure(KERNELS)
    assert len(told) == expected and clock.now - 100 <= budget_s
    assert told + names(left) == names(KERNELS), "what tells most came first"


def test_a_kernel_that_does_not_end_is_left_when_the_time_is_up(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(calibrating, "FIRST_ESTIMATE_S", 0.1)
    stuck = threading.Event()
    device = ScriptedDevice(TRUE, lambda kernel: kernel == KERNELS[1].name and stuck.wait(PATIENCE_S))
    told: list[str] = []
    left = measuring(device, tmp_path, 2.0, time.monotonic, told).measure(KERNELS[:3])
    device.close()
    stuck.set()
    assert told == [KERNELS[0].name] and names(left) == names(KERNELS[1:3])


def test_what_was_measured_before_is_not_measured_again(tmp_path: Path) -> None:
    def fails_at_the_fourth(kernel: str) -> None:
        if len(first.asked) == 4:
            raise TargetUnreachable("the link is down")

    first, told = ScriptedDevice(TRUE, fails_at_the_fourth), list[str]()
    with pytest.raises(TargetUnreachable):
        measuring(first, tmp_path, 600, Clock(0), told).measure(FEW)
    assert told == names(FEW[:3]), "what came before the failure is kept"
    second = ScriptedDevice(TRUE)
    measuring(second, tmp_path, 600, Clock(0), told).measure(FEW)
    assert second.asked == names(FEW[3:])
    third = ScriptedDevice(TRUE, info=replace(INFO, fingerprint="trn2-other"))
    other = replace(measuring(third, tmp_path, 600, Clock(0), told), info=third.describe())
    other.measure(FEW[:2])
    assert third.asked == names(FEW[:2]), "rows of another device say nothing about this one"


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_row_torn_by_a_crash_is_measured_again(cut: int, tmp_path: Path) -> None:
    told: list[str] = []
    measuring(ScriptedDevice(TRUE), tmp_path, 600, Clock(0), told).measure(FEW[:3])
    path = tmp_path / "rows.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:cut])
    again = ScriptedDevice(TRUE)
    measuring(again, tmp_path, 600, Clock(0), told).measure(FEW[:3])
    assert again.asked == [FEW[2].name]
    assert [row.kernel for row in RowFile(path).read()] == names(FEW[:3])


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the constants of transfers: a second in place of ten."""
    monkeypatch.setattr(calibrating, "CONSTANTS", DMA)
    monkeypatch.setattr(calibrating, "in_order_of_worth", lambda: FEW)
    monkeypatch.setattr(calibrating, "kernels_of", lambda: kernels_of(DMA))


def run(device: ScriptedDevice, folder: Path, *, again: bool = False, told: Told | None = None) -> Calibrated:
    return calibrate(device, Calibrations(folder), budget_s=600, again=again, view=told or Told())


@pytest.mark.usefixtures("few")
def test_from_a_device_to_a_file_that_its_targets_find(tmp_path: Path) -> None:
    device = ScriptedDevice(TRUE)
    done = run(device, tmp_path)
    assert done.path is not None and done.truth.calibrated < 0.02 < done.truth.shipped and not done.left
    assert device.closed.is_set() and device.records is not None and device.records.parent == tmp_path
    found = Calibrations(tmp_path).for_device("trn2", INFO.installed)
    assert found is not None and "trn2.3xlarge" in found.on
    assert dict(found.constants)["dma_completion_ns"] == pytest.approx(TRUE["dma_completion_ns"], rel=0.05)
    assert Calibrations(tmp_path).for_device("trn2", replace(INFO.installed, sdk="2.33")) is None


@pytest.mark.usefixtures("few")
def test_ctrl_c_leaves_what_was_measured_and_ends_what_is_under_way(tmp_path: Path) -> None:
    class Interrupted(Told):
        def row(self, number: int, kernels: int, row: object, shipped_us: float, used_s: float) -> None:
            super().row(number, kernels, row, shipped_us, used_s)
            if len(self.rows) == 3:
                raise KeyboardInterrupt

    device, told = ScriptedDevice(TRUE), Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run(device, tmp_path, told=told)
    assert device.closed.is_set() and not list(tmp_path.glob("*.json"))
    second = ScriptedDevice(TRUE)
    assert run(second, tmp_path).path is not None
    assert not set(second.asked) & set(told.rows) and set(second.asked) | set(told.rows) == set(names(FEW))


@pytest.mark.usefixtures("few")
def test_a_kernel_that_a_device_refuses_is_said_and_the_rest_fitted(tmp_path: Path) -> None:
    done = run(ScriptedDevice(TRUE, refuses=("loads on scalar", "stream 256")), tmp_path)
    by_name = {each.name: each for each in done.record.constants}
    assert all(each.decided for each in by_name.values()), "another kernel shows the same"
    refused = [each for each in done.record.kernels if each.measured_us is None]
    assert {each.name for each in refused} == {"stream 256", "loads on scalar"}
    assert all("NCC_EGCA111" in each.said for each in refused)
    assert done.path is None and not done.truth.holds, "one kernel that was not fitted is too few to trust"


@pytest.mark.usefixtures("few")
def test_what_is_not_truer_on_unfitted_kernels_is_not_kept(tmp_path: Path) -> None:
    """A device that is as shipped, but was disturbed while the fitted kernels ran."""

    class Disturbed(ScriptedDevice):
        def evaluate(self, request, progress):  # type: ignore[no-untyped-def]  # as the one it overrides
            found = super().evaluate(request, progress)
            held_out = any(kernel.name == request.candidate.id for kernel in UNFITTED)
            factor = 1.0 if held_out else 1.6
            return replace(found, latency_us=factor * found.latency_us, min_us=factor * found.min_us,
                           max_us=factor * found.max_us)  # type: ignore[type-var]  # measured, all of them  # fmt: skip

    done = run(Disturbed({}), tmp_path)
    assert done.path is None and done.truth.calibrated > 0.03 > done.truth.shipped
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("device", "error"),
    [
        (ScriptedDevice({}, info=replace(INFO, simulated=True)), "is simulated"),
        (ScriptedDevice({}, refuses=tuple(kernel.name for kernel in FEW)), "too few: .*NCC_EGCA111"),
    ],
)
def test_a_target_that_cannot_be_calibrated_says_so_in_a_line(device, error, tmp_path) -> None:
    with pytest.raises(TargetMisconfigured, match=error) as raised:
        run(device, tmp_path)
    assert "\n" not in str(raised.value) and device.closed.is_set()


@pytest.mark.usefixtures("few")
def test_two_at_once_do_not_measure_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "LOCK_PATIENCE_S", 0.0)
    seen: list[type[Exception]] = []

    def meanwhile(kernel: str) -> None:
        if not seen:
            with pytest.raises(JournalLocked) as raised:
                run(ScriptedDevice(TRUE), tmp_path)
            seen.append(raised.type)

    run(ScriptedDevice(TRUE, meanwhile), tmp_path)
    assert seen == [JournalLocked]
