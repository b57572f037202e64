"""Measurements as they come: one line each, durable at once, so that a killed calibration goes on where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from accelopt_core.evaluation import Evaluation, Installed, Measured, explain
from accelopt_core.ports import TargetInfo
from infra.calibration.kernel import CalibrationKernel
from infra.journal import JsonLines, make_folder
from infra.records import from_document, to_document

_KEPT = (
    "total_time", "tensor_engine_active_time", "vector_engine_active_time", "scalar_engine_active_time",
    "gpsimd_engine_active_time", "dma_active_time", "dma_transfer_count", "dma_transfer_total_bytes", "throttle_time",
)  # fmt: skip
"""Fields of a profile that a row keeps."""


@dataclass(frozen=True)
class Row:
    """One kernel on one device: its latency, or what became of it instead."""

    kernel: str
    digest: str
    """Of the kernel's texts."""
    fingerprint: str
    """Of the device and its tools, as `TargetInfo` has it."""
    machine: str
    sdk: str
    compiler: str
    instance: str
    measured_at: str
    """ISO time, UTC."""
    device_s: float
    """What it took of the device's time, from compiling to the last profile."""
    kind: str
    """`measured`, or the kind of evaluation that it was instead."""
    said: str
    """For people, one line."""
    latency_us: float | None = None
    min_us: float | None = None
    max_us: float | None = None
    samples: int = 0
    fields: Mapping[str, float] = field(default_factory=dict)

    @property
    def installed(self) -> Installed:
        return Installed(self.sdk, self.compiler, self.instance)

    @property
    def spread(self) -> float:
        """(max - min) / min of the samples, 0 without any."""
        return (self.max_us - self.min_us) / self.min_us if self.max_us and self.min_us else 0.0


def row_of(
    kernel: CalibrationKernel, info: TargetInfo, evaluation: Evaluation, device_s: float, now: datetime
) -> Row:  # fmt: skip
    found = Row(
        kernel.name, kernel.digest, info.fingerprint, info.machine, info.installed.sdk, info.installed.compiler,
        info.installed.instance, now.isoformat(timespec="seconds"), round(device_s, 2), evaluation.kind,
        " ".join(explain(evaluation).split())[:500],
    )  # fmt: skip
    if not isinstance(evaluation, Measured):
        return found
    fields = {name: evaluation.profile.fields[name] for name in _KEPT if name in evaluation.profile.fields}
    return Row(
        **{
            **vars(found),
            "latency_us": evaluation.latency_us,
            "min_us": evaluation.min_us,
            "max_us": evaluation.max_us,
            "samples": evaluation.samples,
            "fields": fields,
        }
    )


class RowFile:
    """The rows of one machine, SDK and compiler. Raises JournalError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = JsonLines(path)

    def append(self, row: Row) -> None:
        make_folder(self.path.parent)
        self._lines.append(to_document(row))

    def read(self) -> tuple[Row, ...]:
        return tuple(
            from_document(Row, record, f"{self.path} line {number}")
            for number, record in enumerate(self._lines.read(), 1)
        )

    def of(self, fingerprint: str, kernels: Sequence[CalibrationKernel]) -> dict[str, Row]:
        """By kernel: the latest row of each that this very device gave, and of its present text."""
        digests = {kernel.name: kernel.digest for kernel in kernels}
        return {
            row.kernel: row
            for row in self.read()
            if row.fingerprint == fingerprint and digests.get(row.kernel) == row.digest
        }
