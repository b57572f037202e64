"""What a user reads whose kernel is refused as wrong: which of two files to mend, and how."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import config
from accelopt_core.evaluation import CheckFailure, Incorrect
from accelopt_core.task import PrecisionPolicy
from infra.commands.evaluate import evaluation
from infra.terminal.rejected import rejected

ROUNDED = CheckFailure(0, "full", 0, "outputs differ", rel_l2=0.00168, tolerance=1.91e-06, distribution="reference")
"""As a kernel comes out that returns bfloat16, and is right."""
DECLARE = 'let the reference declare PRECISION = "bf16-allowed" and TOLERANCE = 5e-3 (docs/tasks.md)'


def said(failure: CheckFailure, precision: PrecisionPolicy = PrecisionPolicy.FLOAT32_FAITHFUL) -> str:
    return rejected(Incorrect(failure), "mine.py", "ref.py", alone=True, precision=precision)


def test_what_16_bits_explain_is_told_how_to_be_declared_where_it_is_not() -> None:
    assert DECLARE in said(ROUNDED)
    assert "PRECISION" not in said(ROUNDED, PrecisionPolicy.BF16_ALLOWED)


@pytest.mark.parametrize(
    "failure",
    [replace(ROUNDED, rel_l2=1.27), replace(ROUNDED, rel_l2=None), replace(ROUNDED, distribution="mixed")],
    ids=["far off", "not compared", "right on its own inputs"],
)
def test_what_16_bits_do_not_explain_is_not(failure: CheckFailure) -> None:
    assert "PRECISION" not in said(failure)


KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=3.0)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=5.0)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""
REFERENCE = """
import ml_dtypes
import numpy as np


def get_inputs():
    return [np.random.normal(size=(128, 64)).astype(ml_dtypes.bfloat16)]


def forward(x):
    return 15 * x
"""


def test_a_bfloat16_kernel_is_right_once_its_reference_declares_what_the_verdict_said(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KERNEL)
    (tmp_path / "mine_reference.py").write_text(REFERENCE)
    settings = config.from_keywords({"kernel": tmp_path / "mine.py", "view": "quiet"}).settings
    before = evaluation(settings, "mine.py", lambda step, detail: None)
    assert not before.right and DECLARE in before.said, before.said
    declared = REFERENCE + 'PRECISION = "bf16-allowed"\nTOLERANCE = 5e-3\n'
    (tmp_path / "mine_reference.py").write_text(declared)
    after = evaluation(settings, "mine.py", lambda step, detail: None)
    assert after.right, after.said
