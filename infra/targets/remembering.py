"""What stands in front of any target: the store, so that nothing is evaluated twice, and who counts its seconds."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable

from accelopt_core.evaluation import Duplicate, Evaluation, Measured, Step
from accelopt_core.judging.quoting import quoting, spoken
from accelopt_core.ports import EvaluationRequest, Progress, Target, TargetInfo
from infra.journal import utc_now
from infra.judging.shipment import judge_fingerprint
from infra.runs.evaluation_store import EvaluationStore, evaluation_key
from infra.runs.evaluations import Stored


class RememberingTarget:
    """Any target, in front of which stands the store."""

    def __init__(self, target: Target, store: EvaluationStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._store = store
        self._clock = clock
        self._turns: dict[str, threading.Lock] = defaultdict(threading.Lock)
        """By key: of two candidates of one round with the same kernel the second waits for what the first comes to."""

    @property
    def width(self) -> int:
        return self._target.width

    def describe(self) -> TargetInfo:
        return self._target.describe()

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        info = self.describe()
        key = evaluation_key(request, f"{info.fingerprint} judged by {judge_fingerprint(request.task.language)}")
        with self._turns[key]:
            return self._evaluate(key, request, info, progress)

    def _evaluate(self, key: str, request: EvaluationRequest, info: TargetInfo, progress: Progress) -> Evaluation:
        stored = self._store.get(key)
        if stored is not None and _serves(stored, request, info.simulated):
            progress(Step.VERIFY, f"stored: evaluated {stored.at[:19]} on {stored.target} in run {stored.run_id}")
            return spoken(quoting(stored.evaluation, request.candidate.source))  # an earlier layout left that to others
        began = self._clock()
        result = self._target.evaluate(request, progress)
        now = utc_now().isoformat(timespec="milliseconds")
        self._store.put(key, Stored(self._store.run_id, now, info.name, result, self._clock() - began))
        return result

    def close(self) -> None:
        self._target.close()


def _serves(stored: Stored, request: EvaluationRequest, simulated: bool) -> bool:
    """A fault always does; a duplicate, where what it is one of is known; a latency, where it was timed against the
    same incumbent or time is exact.

    One whose full shape was not executed serves only where it would not be now either.
    """
    result = stored.evaluation
    if isinstance(result, Duplicate):
        return any(known.candidate_id == result.of for known in request.known)
    if not isinstance(result, Measured):
        return True
    incumbent = request.incumbent.content_hash if request.incumbent is not None else None
    if (
        incumbent is not None
        and not simulated
        and (result.incumbent is None or result.incumbent.content_hash != incumbent)
    ):
        return False
    limit = request.verify_full_below_us
    waits = request.by_tool and result.is_proved_equal
    return result.verified_full or waits or (limit is not None and result.latency_us >= limit)


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
