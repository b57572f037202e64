"""Measuring the kernels of a calibration on a target, until all are done or the device's time is used up."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from accelopt_core.evaluation import Evaluation
from accelopt_core.ports import Progress, Target, TargetInfo
from infra.calibration.kernel import CalibrationKernel
from infra.calibration.rows import Row, RowFile, row_of
from infra.journal import utc_now
from nki_sim.program import Program

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
