"""What a device showed of the predictions so far corrects the next ones, the more kernels the surer."""

from __future__ import annotations

import math

import pytest

from ka_extensions.residuals import Correction, Residual


def seen(kind: str, *ratios: float) -> list[Residual]:
    return [Residual.of(kind, 100.0, 100.0 * ratio) for ratio in ratios]


def test_without_a_measured_kernel_nothing_is_corrected() -> None:
    assert Correction().factor("dma") == 1.0 and Correction().kernels == 0


def test_one_kernel_is_believed_in_part_and_many_nearly_wholly() -> None:
    once = Correction(seen("dma", 2.0))
    assert once.factor("tensor") == pytest.approx(math.sqrt(2))
    assert once.factor("tensor") < once.factor("dma") < 2.0
    assert Correction(seen("dma", *[2.0] * 50)).factor("dma") == pytest.approx(2.0, rel=0.01)


def test_each_kind_has_its_own_and_a_new_kind_that_of_all() -> None:
    known = Correction([*seen("dma", *[2.0] * 20), *seen("tensor", *[0.5] * 20), *seen("vector", *[1.0] * 3)])
    assert known.factor("dma") > 1.8 and known.factor("tensor") < 0.6
    assert known.factor("scalar") == pytest.approx(1.0) and known.kernels == 43


def test_one_kernel_that_is_far_off_moves_little() -> None:
    usual = seen("dma", *[1.1] * 9)
    with_one = Correction([*usual, *seen("dma", 40.0)])
    assert with_one.factor("dma") == pytest.approx(Correction(usual).factor("dma"), rel=0.01)


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError):
        Residual.of("dma", 100.0, 0.0)
