"""Every evaluation, kept by what it depends on; so that none is paid for twice.

An evaluation depends on the kernel's text, the task, the target's fingerprint and the limits. Within a run a stored one
is always used (a resumed run comes by the same kernels again); across runs only when asked to (`--replay`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from accelopt_core.evaluation import CompileFailed, Evaluation, Implausible, Incorrect, Measured
from accelopt_core.ports import EvaluationRequest, Progress, Step, Target, TargetInfo
from infra.journal import JournalDamaged, explained, make_folder, replace_file, utc_now
from infra.records import BadRecord, from_document, to_document

KEPT = (CompileFailed, Incorrect, Implausible, Measured)
"""A time-out or a crash may be the machine's fault and is tried again."""


@dataclass(frozen=True)
class Stored:
    run_id: str
    at: str
    """ISO time, UTC."""
    target: str
    evaluation: Evaluation


class EvaluationStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> Stored | None:
        """Raises JournalDamaged for a file that cannot be read back."""
        path = self._folder / f"{key}.json"
        with explained(path, "read"):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            return from_document(Stored, json.loads(text), str(path))
        except (BadRecord, ValueError) as error:
            raise JournalDamaged(f"{path}: {error}: delete it to measure again") from error

    def put(self, key: str, stored: Stored) -> None:
        make_folder(self._folder)
        replace_file(self._folder / f"{key}.json", json.dumps(to_document(stored), indent=1) + "\n")


def evaluation_key(request: EvaluationRequest, fingerprint: str) -> str:
    """Seeds drawn afresh are not part of it; whether it is the final check is."""
    depends_on = [
        request.candidate.source,
        request.task.content_hash,
        fingerprint,
        asdict(request.limits),
        len(request.extra_seeds),
        request.final,
    ]
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode("utf-8", "backslashreplace")).hexdigest()[:32]


class RememberingTarget:
    """Any target, in front of which stands the store."""

    def __init__(self, target: Target, store: EvaluationStore, run_id: str, *, replay: bool) -> None:
        """`replay`: also serve what other runs have stored."""
        self._target = target
        self._store = store
        self._run_id = run_id
        self._replay = replay

    def describe(self) -> TargetInfo:
        return self._target.describe()

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        key = evaluation_key(request, self.describe().fingerprint)
        stored = self._store.get(key)
        if stored is not None and (self._replay or stored.run_id == self._run_id) and _serves(stored, request):
            progress(Step.VERIFY, f"stored: evaluated {stored.at[:19]} on {stored.target} in run {stored.run_id}")
            return stored.evaluation
        result = self._target.evaluate(request, progress)
        if isinstance(result, KEPT):
            now = utc_now().isoformat(timespec="milliseconds")
            self._store.put(key, Stored(self._run_id, now, self.describe().name, result))
        return result

    def close(self) -> None:
        self._target.close()


def _serves(stored: Stored, request: EvaluationRequest) -> bool:
    """A latency whose full shape was not verified serves only where it would not be verified now either."""
    result = stored.evaluation
    if not isinstance(result, Measured) or result.verified_full:
        return True
    limit = request.verify_full_below_us
    return limit is not None and result.latency_us >= limit
