"""Any target, with the seconds it is busy told to somebody who counts them."""

from __future__ import annotations

import time
from collections.abc import Callable

from accelopt_core.evaluation import Evaluation
from accelopt_core.ports import EvaluationRequest, Progress, Target, TargetInfo


class MeteredTarget:
    """Any target, with the seconds it was busy told to `used`."""

    def __init__(self, target: Target, used: Callable[[float], None]) -> None:
        self._target = target
        self._used = used

    @property
    def width(self) -> int:
        return self._target.width

    def describe(self) -> TargetInfo:
        return self._target.describe()

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        began = time.monotonic()
        try:
            return self._target.evaluate(request, progress)
        finally:
            self._used(time.monotonic() - began)

    def close(self) -> None:
        self._target.close()
