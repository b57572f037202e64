"""The pretend bindings have the functions, parameters and constants of the real ones (which load without a driver)."""

from __future__ import annotations

import inspect
from enum import IntEnum

import pynvml
import pytest
from cuda.bindings import driver as real

from nki_optimizer_triton.execution.on_device.calls import OF_THE_KERNEL, STICKY
from nki_optimizer_triton.execution.on_device.clocks import THROTTLING
from triton_tests.pretend import driver, enums, nvml

FUNCTIONS = [
    name for name in vars(driver) if name.startswith("cu") and callable(getattr(driver, name)) and name[2].isupper()
]
ENUMS = [
    value
    for value in vars(enums).values()
    if isinstance(value, type) and issubclass(value, IntEnum) and value is not IntEnum
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_the_driver(name: str) -> None:
    assert list(inspect.signature(getattr(real, name)).parameters) == list(
        inspect.signature(getattr(driver, name)).parameters
    )


@pytest.mark.parametrize("pretend", ENUMS, ids=lambda enum: enum.__name__)
def test_constants_of_the_driver(pretend: type[IntEnum]) -> None:
    known = getattr(real, pretend.__name__)
    assert {member.name: int(getattr(known, member.name)) for member in pretend} == {m.name: int(m) for m in pretend}


def test_errors_that_are_told_are_errors() -> None:
    assert not [name for name in (*STICKY, *OF_THE_KERNEL) if name not in real.CUresult.__members__]


def test_structures_of_the_driver_take_what_is_set() -> None:
    """As `launching.py` fills them in."""
    config = real.CUlaunchConfig()
    for name in ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes"):
        setattr(config, name, 5)
        assert hasattr(driver.CUlaunchConfig(), name)
    attribute = real.CUlaunchAttribute()
    attribute.id = real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    dimension = attribute.value.clusterDim
    dimension.x, dimension.y, dimension.z = 4, 1, 1
    config.attrs, config.numAttrs = [attribute], 1
    assert config.attrs[0].value.clusterDim.x == 4 and config.gridDimX == 5
    assert real.CUtensorMapSwizzle(2) == real.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B and real.CUtensorMapDataType(
        7
    )
    assert real.CUresult(700).name == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert (
        real.cuuint64_t(5)
        and real.cuuint32_t(5)
        and hasattr(real.CUtensorMap, "getPtr")
        and hasattr(real.CUuuid, "bytes")
    )


@pytest.mark.parametrize("name", [name for name in vars(nvml) if name.startswith("nvml")])
def test_a_function_of_nvml(name: str) -> None:
    theirs, ours = (list(inspect.signature(getattr(module, name)).parameters) for module in (pynvml, nvml))
    assert len(theirs) == len(ours)


def test_constants_of_nvml() -> None:
    for name in ("NVML_CLOCK_SM", "NVML_TEMPERATURE_GPU"):
        assert getattr(pynvml, name) == getattr(nvml, name)
    names = {
        "nvmlClocksEventReasonSwPowerCap": "power cap",
        "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
        "nvmlClocksEventReasonSwThermalSlowdown": "software thermal slowdown",
        "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal slowdown",
        "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    }
    assert {getattr(pynvml, name): said for name, said in names.items()} == THROTTLING
