"""The registry: every constant a user's device decides, shown by kernels that depend on it and that are sound."""

from __future__ import annotations

import numpy as np
import pytest

from accelopt_core.judging.tolerance.closeness import relative_l2
from accelopt_core.languages.nki.static_checks import dialect, forbidden
from infra.calibration.constants import CONSTANTS, NOT_MEASURED, Constant, in_order_of_worth, kernels_of
from infra.calibration.kernel import TOLERANCE, CalibrationKernel
from nki_sim.execution.executor import execute
from nki_sim.machine import MACHINES, TRN2
from nki_sim.timing.calibration import constant_of
from tests.calibration.devices import FITTED, KERNELS, UNFITTED, model

HOLDERS = {name.partition(".")[0] for each in CONSTANTS for name in (each.name, *each.also)}


def test_every_fitted_field_of_trn2_is_measured_or_named_as_one_that_nobody_can() -> None:
    fitted = {name for name, source in TRN2.sources.items() if source.confidence == "fitted"}
    assert fitted <= HOLDERS | set(NOT_MEASURED), "add it to CONSTANTS, or to NOT_MEASURED with why"
    assert set(NOT_MEASURED) <= set(TRN2.sources), "a field that is gone"
    assert not HOLDERS & set(NOT_MEASURED) and all(NOT_MEASURED.values())


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_shipped_is_plausible(name: str) -> None:
    for each in CONSTANTS:
        for constant in (each.name, *each.also):
            constant_of(MACHINES[name], constant)
        assert each.least <= constant_of(MACHINES[name], each.name) <= each.most, each.name
    assert len({each.name for each in CONSTANTS}) == len(CONSTANTS)


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda each: each.name)
def test_its_kernels_show_a_constant(constant: Constant) -> None:
    """Somewhere within a factor of two the difference of its two kernels changes by more than the noise."""
    shipped = model().shipped[constant.name]

    def difference(value: float) -> float:
        values = {constant.name: constant.within(value)}
        more, *less = (model().exact_time(kernel.name, values) for kernel in constant.kernels)
        return more - sum(less)

    least = 0.01 * model().exact_time(constant.shown_by.name, {})
    assert max(abs(difference(factor * shipped) - difference(shipped)) for factor in (0.5, 2.0)) > least


def test_what_tells_most_comes_first_and_nothing_twice() -> None:
    assert len(set(KERNELS)) == len({kernel.name for kernel in KERNELS}) == len(KERNELS)
    assert set(FITTED) == set(kernels_of()) and len(UNFITTED) >= 6
    assert sum(bool(kernel.held_out) for kernel in KERNELS[:16]) >= 2, "time may run out early"
    one = in_order_of_worth(CONSTANTS[:1])
    assert {kernel.name for kernel in one if not kernel.held_out} == {"wide loads", "nothing"}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda each: each.name)
def test_a_kernel_is_right_and_such_as_the_newest_compiler_takes(kernel: CalibrationKernel) -> None:
    assert not forbidden(kernel.source) and not dialect(kernel.source)
    module: dict[str, object] = {}
    exec(kernel.reference, module)
    np.random.seed(0)
    inputs = module["get_inputs"]()  # type: ignore[operator]  # the reference's own
    expected = module["forward"](*(one.astype(np.float64) for one in inputs))  # type: ignore[operator]  # as above
    (found,) = execute(model().programs[kernel.name], list(inputs))
    assert relative_l2(found.reshape(expected.shape), expected) < TOLERANCE / 2
    assert [one.shape for one in inputs] == list(kernel.shapes)
    assert not np.allclose(expected, expected.reshape(-1)[0]), "else a kernel that writes one value would pass"
