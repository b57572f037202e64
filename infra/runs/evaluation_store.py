"""Every evaluation, kept by what it depends on; so that none is paid for twice.

An evaluation depends on the kernel's text, the task, the target's fingerprint and the limits; a latency also on the
kernel it was timed beside, where time is not exact: what lost to one incumbent on a device that drifts says nothing
about another. Each run keeps its own, in `checkpoints/<run-id>/evaluated/`, so that runs at the same time cannot take each other's place. A resumed run comes
by the same kernels again and is served from there; what other runs measured serves only when asked to (`--replay`).
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from accelopt_core.evaluation import CompileFailed, Evaluation, Implausible, Incorrect, Measured
from accelopt_core.ports import EvaluationRequest, Progress, Step, Target, TargetInfo
from infra.journal import JournalDamaged, explained, make_folder, replace_file, utc_now
from infra.records import BadRecord, from_document, to_document

LASTING = (CompileFailed, Incorrect, Implausible, Measured)
"""What serves other runs too. A time-out or a crash may be the machine's fault: another run tries again."""


@dataclass(frozen=True)
class Stored:
    run_id: str
    at: str
    """ISO time, UTC."""
    target: str
    evaluation: Evaluation
    seconds: float = 0.0
    """How long the target was busy with it."""


class EvaluationStore:
    """One run's evaluations, and a look into those of the runs beside it. Raises JournalError."""

    def __init__(self, checkpoints: Path, run_id: str) -> None:
        self.run_id = run_id
        self._checkpoints = checkpoints
        self._folder = checkpoints / run_id / "evaluated"

    def get(self, key: str) -> Stored | None:
        return _read(self._folder / f"{key}.json")

    def of_others(self, key: str) -> tuple[Stored, ...]:
        found = []
        for path in sorted(self._checkpoints.glob(f"*/evaluated/{key}.json")):
            stored = _read(path) if path.parent != self._folder else None
            if stored is not None:
                found.append(stored)
        return tuple(sorted(found, key=lambda stored: stored.at, reverse=True))

    def put(self, key: str, stored: Stored) -> None:
        make_folder(self._folder)
        replace_file(self._folder / f"{key}.json", json.dumps(to_document(stored), indent=1) + "\n")

    def seconds(self) -> float:
        """The target's time that this run has already used."""
        return sum(stored.seconds for path in self._folder.glob("*.json") if (stored := _read(path)) is not None)


def _read(path: Path) -> Stored | None:
    with explained(path, "read"):
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        return from_document(Stored, json.loads(text), str(path))
    except (BadRecord, ValueError) as error:
        raise JournalDamaged(f"{path}: {error}: delete it to measure again") from error


def evaluation_key(request: EvaluationRequest, fingerprint: str) -> str:
    """Seeds drawn afresh are not part of it; whether it is the final check is, and then against what.

    The user's own kernel is judged by milder rules than a proposed one of the same text.
    """
    depends_on = [
        request.candidate.source,
        request.candidate.parent_id is None,
        request.task.content_hash,
        fingerprint,
        asdict(request.limits),
        len(request.extra_seeds),
        request.final,
        request.incumbent.content_hash if request.final and request.incumbent is not None else "",
    ]
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode("utf-8", "backslashreplace")).hexdigest()[:32]


class RememberingTarget:
    """Any target, in front of which stands the store."""

    def __init__(
        self,
        target: Target,
        store: EvaluationStore,
        *,
        replay: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`replay`: also serve what other runs have stored."""
        self._target = target
        self._store = store
        self._replay = replay
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
        key = evaluation_key(request, info.fingerprint)
        with self._turns[key]:
            return self._evaluate(key, request, info, progress)

    def _evaluate(self, key: str, request: EvaluationRequest, info: TargetInfo, progress: Progress) -> Evaluation:
        stored = self._stored(key, request, info.simulated)
        if stored is not None:
            progress(Step.VERIFY, f"stored: evaluated {stored.at[:19]} on {stored.target} in run {stored.run_id}")
            return stored.evaluation
        began = self._clock()
        result = self._target.evaluate(request, progress)
        now = utc_now().isoformat(timespec="milliseconds")
        self._store.put(key, Stored(self._store.run_id, now, info.name, result, self._clock() - began))
        return result

    def _stored(self, key: str, request: EvaluationRequest, simulated: bool) -> Stored | None:
        own = self._store.get(key)
        if own is not None and _serves(own, request, simulated):
            return own
        others = self._store.of_others(key) if self._replay else ()
        return next((s for s in others if isinstance(s.evaluation, LASTING) and _serves(s, request, simulated)), None)

    def close(self) -> None:
        self._target.close()


def _serves(stored: Stored, request: EvaluationRequest, simulated: bool) -> bool:
    """A fault always does. A latency must have been timed against the same incumbent, unless time is exact there.

    One whose full shape was not verified serves only where that would not be verified now either.
    """
    result = stored.evaluation
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
    return result.verified_full or (limit is not None and result.latency_us >= limit)
