"""An attempt as a line of experiments.jsonl, and back: its evaluations by their digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from accelopt_core.candidate import Attempt
from accelopt_core.evaluation import Evaluation
from infra.records import BadRecord, from_document, to_document
from infra.runs.earlier_layout import joined_attempt
from infra.runs.evaluations import evaluation_from


def attempt_document(attempt: Attempt, keep: Callable[[Evaluation], str]) -> dict[str, Any]:
    """`keep` stores an evaluation and returns its digest."""
    document = to_document(replace(attempt, evaluation=None, last_check=None))
    for name, evaluation in (("evaluation", attempt.evaluation), ("last_check", attempt.last_check)):
        document[name] = None if evaluation is None else keep(evaluation)
    return document


def attempt_from(record: Mapping[str, Any], get: Callable[[str], Evaluation], source: str) -> Attempt:
    """Also of an earlier layout. Raises BadRecord, and what `get` raises for a digest."""
    try:
        record = joined_attempt(record)
    except (KeyError, TypeError) as error:
        raise BadRecord(
            f"{source}: no attempt of an earlier layout ({error!r}): repair it, or move the file away"
        ) from error
    attempt = from_document(Attempt, {**record, "evaluation": None, "last_check": None}, source)
    return replace(
        attempt,
        evaluation=referred(record.get("evaluation"), get, source),
        last_check=referred(record.get("last_check"), get, source),
    )


def referred(reference: object, get: Callable[[str], Evaluation], source: str) -> Evaluation | None:
    """The evaluation behind a digest; an earlier layout had it in place."""
    if reference is None:
        return None
    if isinstance(reference, dict):
        return evaluation_from(reference, source)
    if isinstance(reference, str):
        return get(reference)
    raise BadRecord(f"{source}: {reference!r} names no evaluation: repair it, or move the file away")
