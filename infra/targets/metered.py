"""Any target, with the seconds it is busy told to somebody who counts them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from accelopt_core.evaluation import Evaluation
from accelopt_core.ports import EvaluationRequest, Progress, Target, TargetInfo


class WorkClock:
    """Seconds, as `time.monotonic` has them, less what a thread says that it only waited: for a place, for a cluster
    that was gone, or for work that was lost. Each thread has its own."""

    def __init__(self) -> None:
        self._own = threading.local()

    def __call__(self) -> float:
        return time.monotonic() - float(getattr(self._own, "left_out_s", 0.0))

    def leave_out(self, seconds: float) -> None:
        self._own.left_out_s = float(getattr(self._own, "left_out_s", 0.0)) + max(0.0, seconds)


class MeteredTarget:
    """Any target, with the seconds it was busy told to `used`."""

    def __init__(
        self, target: Target, used: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._used = used
        self._clock = clock

    @property
    def width(self) -> int:
        return self._target.width

    def describe(self) -> TargetInfo:
        return self._target.describe()

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        began = self._clock()
        try:
            return self._target.evaluate(request, progress)
        finally:
            self._used(self._clock() - began)

    def close(self) -> None:
        self._target.close()
