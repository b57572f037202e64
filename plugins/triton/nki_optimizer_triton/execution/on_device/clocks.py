"""The GPU's clocks while it is timed, through NVML where its Python bindings are (nvidia-ml-py).

Numbers of throttle reasons: nvml.h, nvmlClocksEventReason*. Not counted as throttling: idle, and clocks that somebody
has set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

THROTTLING = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "power brake",
}  # fmt: skip


@dataclass
class Seen:
    """Over one block of timed executions."""

    clocks_mhz: list[float] = field(default_factory=list)
    reasons: int = 0
    hottest_c: float = 0.0

    def as_json(self) -> dict[str, Any]:
        if not self.clocks_mhz:
            return {}
        return {
            "sm_clock_mhz_min": min(self.clocks_mhz),
            "sm_clock_mhz_max": max(self.clocks_mhz),
            "temperature_c": self.hottest_c,
            "throttled": [name for bit, name in THROTTLING.items() if self.reasons & bit],
        }


class Clocks:
    """Of one device; `why_not` says why nothing is seen, and is empty where something is."""

    def __init__(self, uuid: bytes) -> None:
        self.why_not = ""
        self.driver = ""
        """The driver's own version, e.g. `550.54.15`; the CUDA version that it supports is another number."""
        self._nvml: Any = None
        try:
            import pynvml
        except ImportError:
            self.why_not = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            self._device = pynvml.nvmlDeviceGetHandleByUUID(_text(uuid))
            self.driver = _as_text(pynvml.nvmlSystemGetDriverVersion())
            self._nvml = pynvml
        except pynvml.NVMLError as error:
            self.why_not = f"NVML: {error}"

    def look(self, seen: Seen) -> None:
        if self._nvml is None:
            return
        nvml = self._nvml
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        if reasons is None:  # as it was called up to release 12
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        try:
            seen.clocks_mhz.append(float(nvml.nvmlDeviceGetClockInfo(self._device, nvml.NVML_CLOCK_SM)))
            seen.reasons |= int(reasons(self._device))
            degrees = nvml.nvmlDeviceGetTemperature(self._device, nvml.NVML_TEMPERATURE_GPU)
            seen.hottest_c = max(seen.hottest_c, float(degrees))
        except nvml.NVMLError as error:
            self.why_not, self._nvml = f"NVML: {error}", None


def _as_text(said: Any) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)  # bytes up to release 11.5


def _text(uuid: bytes) -> str:
    digits = uuid.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "GPU-" + "-".join(parts)
