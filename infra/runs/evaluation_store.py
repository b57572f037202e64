"""What each request came to, so that none is paid for twice.

An evaluation depends on the kernel's text, the task, the fingerprints of target and judge, and the limits; a latency
also on the kernel it was timed beside, where time is not exact: what lost to one incumbent on a device that drifts says
nothing about another. Each run keeps its own, in `checkpoints/<run-id>/evaluations/`, so that runs at the same time
cannot take each other's place. A resumed run comes by the same kernels again and is served from there.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from accelopt_core.ports import EvaluationRequest
from infra.runs.earlier_layout import EVALUATED
from infra.runs.evaluations import Evaluations, Stored, read_document, stored_from

EVALUATIONS = "evaluations"


class EvaluationStore:
    """One run's evaluations. Raises JournalError."""

    def __init__(self, checkpoints: Path, run_id: str) -> None:
        self.run_id = run_id
        self._folder = checkpoints / run_id
        self._own = Evaluations(self._folder / EVALUATIONS)

    def get(self, key: str) -> Stored | None:
        return self._own.of_request(key) or _of_earlier_layout(self._folder, key)

    def put(self, key: str, stored: Stored) -> None:
        self._own.put(key, stored)

    def seconds(self) -> float:
        """The target's time that this run has already used."""
        earlier = (self._folder / EVALUATED).glob("*.json")
        return self._own.seconds() + sum(stored_from(read_document(path), path).seconds for path in earlier)


def _of_earlier_layout(folder: Path, key: str) -> Stored | None:
    path = folder / EVALUATED / f"{key}.json"
    return stored_from(read_document(path), path) if path.exists() else None


def evaluation_key(request: EvaluationRequest, fingerprint: str) -> str:
    """`fingerprint`: of the target, and of whoever judges there.

    Seeds drawn afresh are not part of it; whether it is the final check is, and then against what.

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
    if request.original is not None:
        depends_on.append(request.original.content_hash)
    if request.is_input:
        depends_on.append("the input kernel")
    if request.cores not in (None, 1):
        depends_on.append(request.cores)
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode("utf-8", "backslashreplace")).hexdigest()[:32]
