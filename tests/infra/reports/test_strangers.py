"""The table of strangers is well-formed, and its figures say what happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelopt_core.judging.reference.verification import Reference
from accelopt_core.task import Task
from benchmarks.strangers import Row, kernel_file, means, table
from benchmarks.strangers_cases import REFERENCES, STRANGERS, Half, Stranger, completed, cut_out
from infra.tasks.seed_index import task_from_files

STRANGER = STRANGERS[0]
NOT_COMPARED = {"attention_causal": 2, "attention_causal_heads": 2}
"""Outputs of a kernel that its reference leaves aside."""


@pytest.mark.parametrize("half", Half)
def test_each_half_is_large_and_of_many_kinds_authors_and_eras(half: Half) -> None:
    rows = [each for each in STRANGERS if each.half is half]
    assert len(rows) >= 20
    assert len({each.kind for each in rows}) >= 8
    assert len({each.repository for each in rows}) >= 8
    assert all(count >= 10 for count in Counter(each.migrate for each in rows).values())


def test_the_table_is_well_formed() -> None:
    assert len({(each.repository, each.file, each.function) for each in STRANGERS}) == len(STRANGERS)
    assert {path.stem for path in REFERENCES.glob("*.py")} == {each.reference for each in STRANGERS}
    rows = [each for each in STRANGERS if each.half is Half.UNTOUCHED]
    assert max(Counter(each.repository for each in rows).values()) <= 2
    assert max(Counter(each.kind for each in rows).values()) <= 4


@pytest.mark.parametrize("name", sorted({each.reference for each in STRANGERS}))
def test_a_reference_computes_something_at_its_smallest_shape(name: str) -> None:
    task: Task = task_from_files(REFERENCES / f"{name}.py")
    assert task.full.work is not None
    reference = Reference(task, task.presets[0])
    inputs = reference.inputs(task.seeds[0])
    assert reference.kernel_arguments(inputs)
    expected = reference.expected(inputs)
    assert all(part.size and part.dtype.name == "float64" for part in expected)
    aside = [np.zeros(1)] * NOT_COMPARED.get(name, 0)
    outputs = reference.outputs([*(part.copy() for part in expected), *aside], expected)
    assert [part.shape for part in outputs] == [part.shape for part in expected]


def test_a_kernel_without_imports_is_completed_beside_the_checkout(tmp_path: Path) -> None:
    bare = "@nki.jit\ndef solution(x):\n    return x\n"
    assert completed(STRANGER, bare).startswith("import math\n\nimport nki\n")
    assert "neuronxcc" in completed(replace(STRANGER, migrate=True), bare)
    whole = "import nki\n\n" + bare
    assert completed(STRANGER, whole) == whole
    for text, copied in ((bare, True), (whole, False)):
        path = tmp_path / "checkout" / STRANGER.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        kernel = kernel_file(STRANGER, tmp_path / "checkout", tmp_path)
        assert (kernel != path) is copied
        assert path.read_text() == text


def test_a_kernel_is_cut_out_with_what_it_uses() -> None:
    """Of a file that would not import: helpers and constants come along, what they do not need stays behind."""
    text = """import math
import torch

SIDE = 4
AREA = SIDE * SIDE

class Model(torch.nn.Module):
    @staticmethod
    def kernel(x: torch.Tensor):
        return half(x) + AREA + math.floor(0.5)

def half(x):
    return x / 2

def other():
    return torch.zeros(1)
"""
    names: dict[str, Any] = {}
    exec(cut_out(text, "kernel"), names)
    assert names["kernel"](2) == 17
    assert "other" not in names


def test_a_row_that_failed_counts_as_no_gain() -> None:
    rows = [_row(STRANGER, speedup=4.0, after_percent=40.0), Row(STRANGER, failed="wrong: output 0")]
    (said,) = means(rows, 180.0)
    assert "geometric mean speed-up 2.00x" in said
    assert "1 (50 %) improved" in said
    assert "1 failed" in said
    assert "**failed**: wrong: output 0" in "\n".join(table(rows, 180.0))


def _row(stranger: Stranger, speedup: float = 1.0, after_percent: float = 0.0) -> Row:
    return Row(stranger, 100.0, 100.0 / speedup, speedup, 10.0, after_percent)
