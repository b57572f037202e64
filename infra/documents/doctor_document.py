"""What `doctor` found, on this machine or on each host that was named, as a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from infra.doctor import DoctorReport


@dataclass(frozen=True)
class ExaminedMachine:
    host: str
    """As it was named; empty for this machine."""
    usable: bool
    """Kernels can be evaluated there as wanted."""
    error: str
    """Why it could not be examined; empty where it was."""
    report: DoctorReport | None
    """Everything that was found; null where it could not be examined, or was examined for a plugin's language."""
    clock_skew_s: float | None = None
    """Of that machine's clock against this one's."""
    calibration: str | None = None
    """What predictions on that host rest on, for people."""
    notes: tuple[str, ...] = ()
    """What a person should know of the way there, one line each."""
    gpu_report: dict[str, Any] | None = None
    """What a plugin found for kernels of its language (`--language`); the plugin says what is in it."""

    @property
    def is_examined(self) -> bool:
        return self.report is not None or self.gpu_report is not None


@dataclass(frozen=True)
class DoctorDocument:
    usable: bool
    """All of them are."""
    machines: tuple[ExaminedMachine, ...]
    schema: Literal["nki-optimizer/doctor/1"] = "nki-optimizer/doctor/1"
