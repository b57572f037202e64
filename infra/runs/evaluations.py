"""Evaluations by their content: each is on disk once, and whatever speaks of it names its digest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from accelopt_core.evaluation import Evaluation
from infra.journal import JournalDamaged, explained, make_folder, replace_file
from infra.records import from_document, to_document
from infra.runs.earlier_layout import renamed_evaluation

_EVALUATION: Any = Evaluation


class Evaluations:
    """`<folder>/<digest>.json`. Raises JournalError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, evaluation: Evaluation) -> str:
        """Durable when it returns; the digest under which `get` finds it."""
        document = evaluation_document(evaluation)
        digest = digest_of(document)
        path = self._folder / f"{digest}.json"
        if not path.exists():
            make_folder(self._folder)
            replace_file(path, json.dumps(document, indent=1) + "\n")
        return digest

    def get(self, digest: str) -> Evaluation:
        path = self._folder / f"{digest}.json"
        with explained(path, "read"):
            data = path.read_bytes()
        try:
            document = json.loads(data)
        except ValueError as error:
            raise JournalDamaged(f"{path}: {error}: delete it and what names it to measure again") from error
        if not isinstance(document, dict) or digest_of(document) != digest:
            raise JournalDamaged(f"{path} is not what its name says: delete it and what names it to measure again")
        return evaluation_from(document, str(path))


def evaluation_document(evaluation: Evaluation) -> dict[str, Any]:
    return to_document(evaluation)


def evaluation_from(document: dict[str, Any], source: str) -> Evaluation:
    """Also of an earlier layout. Raises BadRecord."""
    evaluation: Evaluation = from_document(_EVALUATION, renamed_evaluation(document), source)
    return evaluation


def digest_of(document: dict[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
