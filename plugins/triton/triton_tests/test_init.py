"""`init` for a Triton kernel: what its text and a trace without a GPU tell, and nothing of NKI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orchestrator
from infra.tasks.seed_index import load_seed


def written(path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, Any]]:
    path.write_text(load_seed("rmsnorm").kernel_source, encoding="utf-8")
    status = orchestrator.main(["init", str(path), *arguments])
    said = capsys.readouterr()
    assert status == 0, said.err
    text = path.with_name(f"{path.stem}_reference.py").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(text, "reference", "exec"), names)
    return text, names


def test_shapes_come_from_a_trace_and_the_formula_is_a_todo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, names = written(tmp_path / "norm.py", capsys)
    x, weight = names["get_inputs"]()
    assert x.shape == (names["M"], names["N"]) and isinstance(weight, np.ndarray)
    with pytest.raises(NotImplementedError, match="TODO: what norm.py computes of x, weight"):
        names["forward"](x, weight)
    assert "# the kernel returns float32 [M, N]" in text and "nki" not in text


def test_shapes_that_are_given_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, names = written(tmp_path / "norm.py", capsys, "--shape", "64x1000", "1000")
    assert [each.shape for each in names["get_inputs"]()] == [(64, 1000), (1000,)]
