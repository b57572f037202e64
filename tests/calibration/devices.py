"""Devices of these tests: constants moved at random, and a target that times kernels by them without any process."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from accelopt_core.evaluation import Bounds, CompileFailed, Evaluation, Installed, Measured, Profile, Step
from accelopt_core.ports import EvaluationRequest, Progress, TargetInfo, TargetUnreachable
from infra.calibration.constants import CONSTANTS, in_order_of_worth
from infra.calibration.kernel import CalibrationKernel
from infra.calibration.model import TimingModel
from nki_sim.machine import TRN2
from nki_sim.timing.calibration import constant_of, is_whole

INSTALLED = Installed("2.32", "nki 0.6.1", "trn2.3xlarge")
INFO = TargetInfo("ubuntu@10.0.0.1, trn2", "trn2-f00d", False, "trn2", "", INSTALLED)

KERNELS: tuple[CalibrationKernel, ...] = in_order_of_worth()
FITTED = tuple(kernel for kernel in KERNELS if not kernel.held_out)
UNFITTED = tuple(kernel for kernel in KERNELS if kernel.held_out)


@cache
def model() -> TimingModel:
    """Of every kernel; traced once for all tests."""
    return TimingModel("trn2", KERNELS, CONSTANTS)


_INSIDE = 1.03
"""A constant at the very edge of what is plausible is refused, and so is of no device here."""
_HIDDEN = 3.3
"""Columns of weights a cycle from which on the narrowest product hides that they are loaded, however far apart."""


def moved(seed: int) -> dict[str, float]:
    """Every constant up to a factor of two from what is shipped, as far as it is plausible and can be told.

    The throttle slows Tensor down by half at least, and a busy array warms up, which it never does where 1 / factor is
    below the threshold.
    """
    drawn = random.Random(seed)
    values = {}
    for each in CONSTANTS:
        value = constant_of(TRN2, each.name) * 2 ** drawn.uniform(-1, 1)
        most = each.most if each.most == 1.0 else each.most / _INSIDE
        value = min(most, max(each.least * _INSIDE, value))
        values[each.name] = float(round(value)) if is_whole(each.name) else value
    threshold = min(0.6, values["throttle_utilization"])
    factor = max(1.5, min(values["throttle_factor"], 0.9 / threshold))
    weights = min(_HIDDEN, values["stationary_columns_per_cycle"])
    return {
        **values,
        "throttle_utilization": threshold,
        "throttle_factor": factor,
        "stationary_columns_per_cycle": weights,
    }


def measured_on(values: Mapping[str, float], seed: int, jitter: float = 0.001) -> dict[str, float]:
    """us by kernel on a device of these constants, each a little off."""
    drawn = random.Random(seed)
    return {kernel.name: model().exact_time(kernel.name, values) * drawn.gauss(1, jitter) for kernel in KERNELS}


class ScriptedDevice:
    """Answers with the simulator's time for the constants it has. `before` each answer a test may do what it likes."""

    def __init__(
        self,
        values: Mapping[str, float],
        before: Callable[[str], object] = lambda kernel: None,
        refuses: tuple[str, ...] = (),
        info: TargetInfo = INFO,
        width: int = 1,
    ) -> None:
        self.width = width
        self.asked: list[str] = []
        self.closed = threading.Event()
        self.records: Path | None = None
        self._values, self._before, self._refuses, self._info = values, before, refuses, info

    def describe(self) -> TargetInfo:
        return self._info

    def remember_in(self, folder: Path) -> None:
        self.records = folder

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        kernel = request.candidate.id
        progress(Step.COMPILE, kernel)
        self.asked.append(kernel)
        self._before(kernel)
        if self.closed.is_set():
            raise TargetUnreachable("closed")
        if kernel in self._refuses:
            return CompileFailed("[NCC_EGCA111] /home/alice/secret.py: too much")
        us = model().exact_time(kernel, self._values)
        profile = Profile({"total_time": us / 1e6, "dma_active_time": us / 2e6}, Bounds(1.0, 1.0, 1.0, "declared"))
        return Measured(us, us * 0.999, us * 1.001, 5, False, "trn2 (NKI 0.6.1)", profile)

    def close(self) -> None:
        self.closed.set()


class Told:
    """A view that remembers."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.began: tuple[int, int] | None = None

    def begins(self, target: str, left: int, kernels: int, used_s: float, budget_s: float) -> None:
        self.began = (left, kernels)

    def row(self, number: int, kernels: int, row: object, shipped_us: float, used_s: float) -> None:
        self.rows.append(getattr(row, "kernel"))  # noqa: B009  # any row

    def step(self, text: str) -> None:
        """Nobody watches."""
