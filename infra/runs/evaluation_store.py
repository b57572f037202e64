"""What each request came to, so that none is paid for twice.

An evaluation depends on the kernel's text, the task, the target's fingerprint and the limits; a latency also on the
kernel it was timed beside, where time is not exact: what lost to one incumbent on a device that drifts says nothing
about another. Each run keeps its own, in `checkpoints/<run-id>/requests/`, so that runs at the same time cannot take
each other's place. A resumed run comes by the same kernels again and is served from there; what other runs measured
serves only when asked to (`--replay`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelopt_core.evaluation import CompileFailed, Evaluation, Implausible, Incorrect, Measured
from accelopt_core.ports import EvaluationRequest
from infra.journal import JournalDamaged, explained, make_folder, replace_file
from infra.records import from_document, to_document
from infra.runs.evaluations import Evaluations, evaluation_from

LASTING = (CompileFailed, Incorrect, Implausible, Measured)
"""What serves other runs too. A time-out or a crash may be the machine's fault: another run tries again."""

EVALUATIONS, REQUESTS = "evaluations", "requests"
_EARLIER = "evaluated"
"""Where an earlier layout kept both together."""


@dataclass(frozen=True)
class Stored:
    run_id: str
    at: str
    """ISO time, UTC."""
    target: str
    evaluation: Evaluation
    seconds: float = 0.0
    """How long the target was busy with it."""


@dataclass(frozen=True)
class _Record:
    """`Stored` as it is on disk: the evaluation by its digest."""

    run_id: str
    at: str
    target: str
    evaluation: str
    seconds: float


class EvaluationStore:
    """One run's evaluations, and a look into those of the runs beside it. Raises JournalError."""

    def __init__(self, checkpoints: Path, run_id: str) -> None:
        self.run_id = run_id
        self._checkpoints = checkpoints
        self._folder = checkpoints / run_id

    def get(self, key: str) -> Stored | None:
        return _read(self._folder / REQUESTS / f"{key}.json") or _read(self._folder / _EARLIER / f"{key}.json")

    def of_others(self, key: str) -> tuple[Stored, ...]:
        """Newest first."""
        found = []
        for kind in (REQUESTS, _EARLIER):
            for path in sorted(self._checkpoints.glob(f"*/{kind}/{key}.json")):
                stored = _read(path) if path.parent.parent != self._folder else None
                if stored is not None:
                    found.append(stored)
        return tuple(sorted(found, key=lambda stored: stored.at, reverse=True))

    def put(self, key: str, stored: Stored) -> None:
        digest = Evaluations(self._folder / EVALUATIONS).keep(stored.evaluation)
        record = _Record(stored.run_id, stored.at, stored.target, digest, stored.seconds)
        make_folder(self._folder / REQUESTS)
        replace_file(self._folder / REQUESTS / f"{key}.json", json.dumps(to_document(record), indent=1) + "\n")

    def seconds(self) -> float:
        """The target's time that this run has already used."""
        paths = [path for kind in (REQUESTS, _EARLIER) for path in (self._folder / kind).glob("*.json")]
        return sum(float(_document(path).get("seconds", 0.0)) for path in paths)


def _read(path: Path) -> Stored | None:
    if not path.exists():
        return None
    document = _document(path)
    if isinstance(document.get("evaluation"), dict):  # of an earlier layout
        inline = evaluation_from(document["evaluation"], str(path))
        record = from_document(_Record, {"seconds": 0.0, **document, "evaluation": ""}, str(path))
        return Stored(record.run_id, record.at, record.target, inline, record.seconds)
    record = from_document(_Record, document, str(path))
    evaluation = Evaluations(path.parent.parent / EVALUATIONS).get(record.evaluation)
    return Stored(record.run_id, record.at, record.target, evaluation, record.seconds)


def _document(path: Path) -> dict[str, Any]:
    with explained(path, "read"):
        text = path.read_bytes()
    try:
        document = json.loads(text)
    except ValueError as error:
        raise JournalDamaged(f"{path}: {error}: delete it to measure again") from error
    if not isinstance(document, dict):
        raise JournalDamaged(f"{path} is no JSON object: delete it to measure again")
    return document


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
