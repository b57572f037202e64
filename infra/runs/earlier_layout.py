"""Records of runs that were written before the present layout: what is called otherwise now.

Everything here takes a document as it was read and returns it in the present form; what has it already is untouched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from accelopt_core.evaluation import Step

EVALUATED = "evaluated"
"""Where each run kept its evaluations, by the key of their request alone."""

_ONLY_MACHINE = "trn2"
"""That layout priced and prompted for this one, whatever its target was."""


def renamed_evaluation(document: Mapping[str, Any]) -> dict[str, Any]:
    """`rival` is `incumbent` now, and a step is one of `Step`: any words could stand there."""
    renamed = {"incumbent" if key == "rival" else key: value for key, value in document.items()}
    if renamed.get("step") not in (None, *(step.value for step in Step)):
        renamed["step"] = Step.VERIFY.value
    return renamed


def joined_attempt(record: Mapping[str, Any]) -> dict[str, Any]:
    """A line of experiments.jsonl held half of what it says in an `attempt` of its own, and a diagnosis was right or it
    was not."""
    reflexion = record.get("reflexion")
    if isinstance(reflexion, Mapping) and "diagnosis_right" in reflexion:
        said = {key: value for key, value in reflexion.items() if key != "diagnosis_right"}
        record = {**record, "reflexion": {**said, "diagnosis": "right" if reflexion["diagnosis_right"] else "wrong"}}
    if "attempt" not in record:
        return dict(record)
    half = record["attempt"]
    whole = {key: value for key, value in record.items() if key != "attempt"}
    whole.setdefault("lane", "")
    return {**whole, "parent_id": half["parent_id"] or "input", "outcome": half["outcome"], "summary": half["summary"]}


def kernel_by_reference(document: Mapping[str, Any]) -> dict[str, Any]:
    """best.json and baseline.json held the whole evaluation as `result`; now they name it."""
    return {"evaluation" if key == "result" else key: value for key, value in document.items()}


def target_with_machine(target: Mapping[str, Any]) -> dict[str, Any]:
    """The machine was part of the fingerprint only, e.g. `sim-trn2-0123456789ab`."""
    if "machine" in target:
        return dict(target)
    found = re.match(r"(?:sim-)?(trn\d+)-", str(target.get("fingerprint", "")))
    return {**target, "machine": found.group(1) if found else _ONLY_MACHINE}
