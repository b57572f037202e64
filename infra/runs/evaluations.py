"""Evaluations by their content: each is on disk once, in one step, and whatever speaks of it names its digest.

`<folder>/<digest>-<key>.json` came of a request to the target, whose key says what it depends on; `<digest>.json` is
one that only the run's other files name. One file, because a run may be killed between any two.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelopt_core.evaluation import Evaluation
from infra.journal import JournalDamaged, explained, make_folder, replace_file
from infra.records import BadRecord, from_document, to_document
from infra.runs.earlier_layout import renamed_evaluation

_EVALUATION: Any = Evaluation


@dataclass(frozen=True)
class Stored:
    run_id: str
    at: str
    """ISO time, UTC."""
    target: str
    evaluation: Evaluation
    seconds: float = 0.0
    """How long the target was busy with it."""


class Evaluations:
    """Of one run. Raises JournalError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, evaluation: Evaluation) -> str:
        """Durable when it returns; the digest under which `get` finds it."""
        document = to_document(evaluation)
        digest = _digest(document)
        if not self._named(f"{digest}*"):
            self._write(digest, {"evaluation": document})
        return digest

    def put(self, key: str, stored: Stored) -> None:
        """What the request of that key came to. Durable when it returns."""
        document = to_document(stored)
        self._write(f"{_digest(document['evaluation'])}-{key}", document)

    def get(self, digest: str) -> Evaluation:
        found = self._named(f"{digest}*")
        if not found:
            raise JournalDamaged(
                f"{self._folder} has no evaluation {digest}, which another file of the run names: restore it, or move "
                "the run's folder away"
            )
        return self._stored(found[0]).evaluation

    def of_request(self, key: str) -> Stored | None:
        """The newest, where a request was made again beside another incumbent."""
        found = self._named(f"*-{key}")
        return self._stored(max(found, key=lambda path: path.stat().st_mtime_ns)) if found else None

    def seconds(self) -> float:
        """The target's time for all of them."""
        return sum(self._stored(path).seconds for path in self._named("*-*"))

    def _named(self, pattern: str) -> list[Path]:
        return sorted(self._folder.glob(f"{pattern}.json"))

    def _write(self, name: str, document: dict[str, Any]) -> None:
        make_folder(self._folder)
        replace_file(self._folder / f"{name}.json", json.dumps(document, indent=1) + "\n")

    def _stored(self, path: Path) -> Stored:
        document = read_document(path)
        evaluation = document.get("evaluation")
        if not isinstance(evaluation, dict) or _digest(evaluation) != path.stem.partition("-")[0]:
            raise JournalDamaged(f"{path} is not what its name says: delete it to measure again")
        return stored_from(document, path)


def read_document(path: Path) -> dict[str, Any]:
    with explained(path, "read"):
        text = path.read_bytes()
    try:
        document = json.loads(text)
    except ValueError as error:
        raise JournalDamaged(f"{path}: {error}: delete it to measure again") from error
    if not isinstance(document, dict):
        raise JournalDamaged(f"{path} is no JSON object: delete it to measure again")
    return document


def stored_from(document: dict[str, Any], path: Path) -> Stored:
    """Also of an earlier layout. Raises BadRecord."""
    blank = {"run_id": "", "at": "", "target": "", "seconds": 0.0}
    said = {**blank, **document}
    evaluation = evaluation_from(said["evaluation"], str(path))
    try:
        return Stored(str(said["run_id"]), str(said["at"]), str(said["target"]), evaluation, float(said["seconds"]))
    except (TypeError, ValueError) as error:
        raise BadRecord(f"{path}: {error}: delete it to measure again") from error


def evaluation_from(document: dict[str, Any], source: str) -> Evaluation:
    """Also of an earlier layout. Raises BadRecord."""
    evaluation: Evaluation = from_document(_EVALUATION, renamed_evaluation(document), source)
    return evaluation


def _digest(document: dict[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
