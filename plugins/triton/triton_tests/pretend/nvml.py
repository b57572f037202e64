"""`pynvml` (nvidia-ml-py): clocks, throttling, temperature."""

from __future__ import annotations

from typing import Any

from triton_tests.pretend import driver

NVML_CLOCK_SM = 1
NVML_TEMPERATURE_GPU = 0
_looks = 0


class NVMLError(Exception): ...


def _state() -> dict[str, Any]:
    return driver.device().state


def nvmlInit() -> None:
    if _state()["nvml"] != "works":
        raise NVMLError(_state()["nvml"])


def nvmlSystemGetDriverVersion() -> str:
    return "570.86.15"


def nvmlDeviceGetHandleByUUID(uuid: str) -> Any:
    assert uuid.startswith("GPU-00010203-0405-0607-0809-0a0b0c0d0e"), uuid
    return "handle"


def nvmlDeviceGetClockInfo(handle: Any, type: int) -> int:
    global _looks
    clocks = _state()["clocks_mhz"]
    _looks += 1
    return int(clocks[min(_looks, len(clocks)) - 1])


def nvmlDeviceGetCurrentClocksEventReasons(handle: Any) -> int:
    return int(_state()["throttle"])


def nvmlDeviceGetTemperature(handle: Any, sensor: int) -> int:
    return 61
