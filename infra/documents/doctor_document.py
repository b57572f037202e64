"""What `doctor` found, on this machine or on each host that was named, as a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.doctor import DoctorReport
from infra.triton.gpu_doctor import GpuReport


@dataclass(frozen=True)
class ExaminedMachine:
    host: str
    """As it was named; empty for this machine."""
    usable: bool
    """Kernels can be evaluated there as wanted."""
    error: str
    """Why it could not be examined; empty where it was."""
    report: DoctorReport | None
    """Everything that was found; null where it could not be examined, or was examined for Triton kernels."""
    clock_skew_s: float | None = None
    """Of that machine's clock against this one's."""
    calibration: str | None = None
    """What predictions on that host rest on, for people."""
    notes: tuple[str, ...] = ()
    """What a person should know of the way there, one line each."""
    gpu_report: GpuReport | None = None
    """What was found for Triton kernels (`--language triton`)."""

    @property
    def is_examined(self) -> bool:
        return self.report is not None or self.gpu_report is not None


@dataclass(frozen=True)
class DoctorDocument:
    usable: bool
    """All of them are."""
    machines: tuple[ExaminedMachine, ...]
    schema: Literal["nki-optimizer/doctor/1"] = "nki-optimizer/doctor/1"
