"""What a user reads whose kernel is refused as wrong: which of two files to mend, and how."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelopt_core.evaluation import CheckFailure, Incorrect
from accelopt_core.task import PrecisionPolicy
from infra.terminal.rejected import rejected

ROUNDED = CheckFailure(0, "full", 0, "outputs differ", rel_l2=0.00168, tolerance=1.91e-06, distribution="reference")
"""As a kernel comes out that returns bfloat16, and is right."""
DECLARE = 'let the reference declare PRECISION = "bf16-allowed" and TOLERANCE = 5e-3 (docs/tasks.md)'


def said(failure: CheckFailure, precision: PrecisionPolicy = PrecisionPolicy.FLOAT32_FAITHFUL) -> str:
    return rejected(Incorrect(failure), "mine.py", "ref.py", alone=True, precision=precision)


def test_what_16_bits_explain_is_told_how_to_be_declared() -> None:
    assert DECLARE in said(ROUNDED)


@pytest.mark.parametrize(
    "failure",
    [replace(ROUNDED, rel_l2=1.27), replace(ROUNDED, rel_l2=None), replace(ROUNDED, distribution="mixed")],
    ids=["far off", "not compared", "right on its own inputs"],
)
def test_what_16_bits_do_not_explain_is_not(failure: CheckFailure) -> None:
    assert "PRECISION" not in said(failure)


def test_nor_where_it_is_declared_already() -> None:
    assert "PRECISION" not in said(ROUNDED, PrecisionPolicy.BF16_ALLOWED)
