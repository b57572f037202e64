"""A calibration, from its beginning or from where an earlier call stopped: measure, fit, check, keep.

What is not truer than the shipped model on kernels that were not fitted is not kept, and that is said.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import nki_sim
from accelopt_core.evaluation import Evaluation, Step
from accelopt_core.ports import Progress, Target, TargetInfo, TargetMisconfigured
from infra.calibration.constants import CONSTANTS, in_order_of_worth, kernels_of
from infra.calibration.file import CalibrationRecord, Calibrations, ConstantRecord, KernelRecord, save
from infra.calibration.fitting import Fit, fit
from infra.calibration.kernel import CalibrationKernel
from infra.calibration.model import TimingModel
from infra.calibration.rows import Row, RowFile, row_of
from infra.journal import FileLock, make_folder, utc_now
from nki_sim.program.program import Program

WORSE_BY = 0.01
"""The median error on unfitted kernels may grow by so much before it counts as worse: that much is chance."""
FEWEST_UNFITTED = 2
FEWEST_FITTED = 6
LOCK_PATIENCE_S = 5.0


class Device(Target, Protocol):
    """A target that can be calibrated: what is under way there survives this process."""

    def remember_in(self, folder: Path) -> None: ...


class View(Protocol):
    """Told what happens."""

    def begins(self, target: str, left: int, kernels: int, used_s: float, budget_s: float) -> None: ...

    def row(self, number: int, kernels: int, row: Row, shipped_us: float, used_s: float) -> None: ...

    def step(self, text: str) -> None:
        """What goes on now, until the next is told."""
        ...


@dataclass(frozen=True)
class Truth:
    """How far predictions of kernels that were not fitted are off."""

    kernels: int
    shipped: float
    """Median error, as a fraction."""
    calibrated: float

    @property
    def holds(self) -> bool:
        return self.kernels >= FEWEST_UNFITTED and self.calibrated <= self.shipped + WORSE_BY


@dataclass(frozen=True)
class Calibrated:
    record: CalibrationRecord
    truth: Truth
    left: tuple[str, ...]
    """Kernels for which the time did not suffice."""
    path: Path | None
    """Where it is kept; None where it is not truer than what is shipped, or too little was measured to know."""


def calibrate(target: Device, calibrations: Calibrations, *, budget_s: float, again: bool, view: View) -> Calibrated:
    """Raises TargetError and JournalError; rows that are measured by then are kept, and a later call goes on.

    Closes the target. budget_s: of the device's time, all calls together. again: what was measured before is set aside.
    """
    view.step("asking what it is")
    try:
        info = target.describe()
        if info.simulated:
            raise TargetMisconfigured(f"{info.name} is simulated, with nothing to calibrate: name a Trainium instance")
        path = calibrations.path_of(info.machine, info.installed)
        rows = RowFile(calibrations.rows_of(info.machine, info.installed))
        make_folder(calibrations.folder)
        kernels = in_order_of_worth()
        model = TimingModel(info.machine, kernels, CONSTANTS)
        with FileLock(path.with_suffix(".lock"), timeout_s=LOCK_PATIENCE_S):
            if again and rows.path.exists():
                rows.path.rename(rows.path.with_name(f"{rows.path.name}.{utc_now():%Y%m%d-%H%M%S}"))
            target.remember_in(path.with_suffix(".remote"))
            left = _measure(target, info, rows, model, kernels, budget_s, view)
    finally:
        target.close()  # which ends what time ran out for
    found = rows.of(info.fingerprint, kernels)
    fitted = [kernel for kernel in kernels if not kernel.held_out and _latency(found, kernel) is not None]
    if len(fitted) < FEWEST_FITTED:
        raise TargetMisconfigured(
            f"{len(fitted)} kernels could be measured on {info.name}, which is too few: "
            f"{_first_refusal(found) or 'give more of --calibrate-minutes'}"
        )
    view.step(f"fitting {len(CONSTANTS)} constants to {len(fitted)} kernels")
    record = _record(model, kernels, found)
    truth = truth_of(record)
    if truth.holds:
        save(path, record)
    return Calibrated(record, truth, tuple(kernel.name for kernel in left), path if truth.holds else None)


def _measure(
    target: Device, info: TargetInfo, rows: RowFile, model: TimingModel, kernels: Sequence[CalibrationKernel],
    budget_s: float, view: View,
) -> tuple[CalibrationKernel, ...]:  # fmt: skip
    """Those that are left."""
    known = rows.of(info.fingerprint, kernels)
    used_s = sum(row.device_s for row in known.values())
    view.begins(info.name, len(kernels) - len(known), len(kernels), used_s, budget_s)
    told = _teller(view, model, len(known), len(kernels))
    return Measuring(target, info, rows, model.programs, budget_s, told, _steps(view)).measure(kernels)


def truth_of(record: CalibrationRecord) -> Truth:
    unfitted = [each for each in record.kernels if each.held_out and each.measured_us is not None]

    def median(predicted: Callable[[KernelRecord], float]) -> float:
        return statistics.median(abs(predicted(each) / (each.measured_us or 1.0) - 1) for each in unfitted)

    if not unfitted:
        return Truth(0, 0.0, 0.0)
    return Truth(len(unfitted), median(lambda each: each.shipped_us), median(lambda each: each.calibrated_us))


def _record(model: TimingModel, kernels: Sequence[CalibrationKernel], rows: Mapping[str, Row]) -> CalibrationRecord:
    measured = {kernel.name: us for kernel in kernels_of() if (us := _latency(rows, kernel)) is not None}
    found: Fit = fit(model, measured, {name: rows[name].spread / 2 for name in measured})
    latest = max(rows.values(), key=lambda row: row.measured_at)
    return CalibrationRecord(
        latest.machine,
        latest.installed,
        latest.measured_at[:10],
        latest.fingerprint,
        round(sum(row.device_s for row in rows.values()), 1),
        nki_sim.__version__,
        tuple(
            ConstantRecord(
                each.name, each.shipped, each.value, each.decided,
                each.spread if each.spread < 1.0 else None, each.why,
            )
            for each in found.constants
        ),
        tuple(
            KernelRecord(
                kernel.name, _latency(rows, kernel), round(model.exact_time(kernel.name, {}), 3),
                round(model.exact_time(kernel.name, found.values), 3), kernel.held_out, kernel.name in found.distrusted,
                "" if rows[kernel.name].latency_us is not None else rows[kernel.name].said,
            )
            for kernel in kernels
            if kernel.name in rows
        ),
    )  # fmt: skip


def _latency(rows: Mapping[str, Row], kernel: CalibrationKernel) -> float | None:
    return rows[kernel.name].latency_us if kernel.name in rows else None


def _first_refusal(rows: Mapping[str, Row]) -> str:
    return next((f"{row.kernel}: {row.said}" for row in rows.values() if row.latency_us is None), "")


def _teller(
    view: View, model: TimingModel, known: int, kernels: int
) -> Callable[[CalibrationKernel, Row, float], None]:
    count = known

    def told(kernel: CalibrationKernel, row: Row, used_s: float) -> None:
        nonlocal count
        count += 1
        view.row(count, kernels, row, model.exact_time(kernel.name, {}), used_s)

    return told


def _steps(view: View) -> Progress:
    def told(step: Step, detail: str) -> None:
        view.step(f"{step.value}: {detail}")

    return told


FIRST_ESTIMATE_S = 20.0
"""What one kernel takes before any was measured: compiling it, four captures, six profiles read."""
_CAUTION = 1.2


@dataclass(frozen=True)
class Measuring:
    """What there is to measure with. `measure` may be called again after anything: rows are durable one by one."""

    target: Target
    info: TargetInfo
    rows: RowFile
    programs: Mapping[str, Program]
    """By kernel: they tell the work that a task declares."""
    budget_s: float
    """Of the device's time, that of earlier calls included."""
    on_row: Callable[[CalibrationKernel, Row, float], object]
    """Told of each row as it comes, with the device time used so far."""
    progress: Progress = lambda step, detail: None
    clock: Callable[[], float] = time.monotonic

    def measure(self, kernels: Sequence[CalibrationKernel]) -> tuple[CalibrationKernel, ...]:
        """Those that are left because the time is used up. Raises TargetError; what is measured by then is kept.

        What is still being evaluated when the time is up is left alone: closing the target ends it.
        """
        known = self.rows.of(self.info.fingerprint, kernels)
        waiting = deque(kernel for kernel in kernels if kernel.name not in known)
        before_s = sum(row.device_s for row in known.values())
        took = [row.device_s for row in known.values()]
        begun = last = self.clock()
        running: dict[Future[Evaluation], CalibrationKernel] = {}
        threads = ThreadPoolExecutor(max(1, self.target.width), "calibrate")
        try:
            while waiting or running:
                used_s = before_s + self.clock() - begun
                estimate_s = _CAUTION * statistics.median(took) if took else FIRST_ESTIMATE_S
                while waiting and len(running) < self.target.width and used_s + estimate_s <= self.budget_s:
                    kernel = waiting.popleft()
                    request = kernel.request(self.programs[kernel.name])
                    running[threads.submit(self.target.evaluate, request, self.progress)] = kernel
                if not running:
                    break
                done, _ = wait(running, max(0.0, self.budget_s - used_s), FIRST_COMPLETED)
                if not done:
                    break
                for future in done:
                    kernel = running.pop(future)
                    now = self.clock()
                    row = row_of(kernel, self.info, future.result(), now - last, utc_now())
                    last = now
                    took.append(row.device_s)
                    self.rows.append(row)
                    self.on_row(kernel, row, before_s + now - begun)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
        return (*running.values(), *waiting)
