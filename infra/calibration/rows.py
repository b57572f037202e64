"""Measurements as they come: one line each, durable at once, so that a killed calibration goes on where it was."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from accelopt_core.evaluation import Evaluation, Installed, Measured, explain
from accelopt_core.ports import TargetInfo
from infra.calibration.constants import in_order_of_worth
from infra.calibration.kernel import CalibrationKernel
from infra.journal import JournalError, JsonLines, make_folder, replace_file
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


COLUMNS = (
    "id", "grid", "kernel", "shape", "dtype", "params", "measured_us", "min_us", "max_us", "captures", "tensor_busy",
    "dma_busy", "dma_bytes", "dma_transfers", "correct_on_device", "error_kind", "source", "commit",
)  # fmt: skip
"""Those of `ladder_fp32.csv` and `streams.csv` there."""


def export(path: Path, rows: Path | None, folder: Path) -> str:
    """Writes the table of that file of rows, or of the newest in the folder; what it did, one line.

    Raises JournalError where there are none, or it cannot be written.
    """
    newest = max(folder.glob("*.rows.jsonl"), key=lambda each: each.stat().st_mtime, default=None)
    source = rows or newest
    found = RowFile(source).read() if source is not None else ()
    if source is None or not found:
        raise JournalError(
            f"{source or folder} holds no measurements yet: orchestrator.py calibrate USER@HOST makes some"
        )
    text = as_csv(found, in_order_of_worth())
    replace_file(path, text)
    return f"{text.count(chr(10)) - 1} rows of {source.name} are in {path}; they name no host, user or folder"


def as_csv(rows: Sequence[Row], kernels: Sequence[CalibrationKernel]) -> str:
    """The rows of these kernels' present texts; `commit` is a kernel's digest."""
    known = {(kernel.name, kernel.digest): kernel for kernel in kernels}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for number, row in enumerate((row for row in rows if (row.kernel, row.digest) in known), 1):
        writer.writerow(_line(number, row, known[row.kernel, row.digest]))
    return text.getvalue()


def _line(number: int, row: Row, kernel: CalibrationKernel) -> dict[str, object]:
    total_s = row.fields.get("total_time", 0.0)

    def share(field: str) -> str:
        return f"{row.fields[field] / total_s:.4f}" if total_s and field in row.fields else ""

    def whole(field: str) -> str:
        return f"{row.fields[field]:.0f}" if field in row.fields else ""

    measured = row.kind == "measured"
    return {
        "id": f"U{number:03d}",
        "grid": kernel.held_out or "micro",
        "kernel": kernel.name,
        "shape": " ".join("x".join(map(str, shape)) for shape in kernel.shapes),
        "dtype": "float32",
        "params": f"repeats={kernel.repeats}" if kernel.repeats else "",
        "measured_us": f"{row.latency_us:.6f}" if row.latency_us is not None else "",
        "min_us": f"{row.min_us:.6f}" if row.min_us is not None else "",
        "max_us": f"{row.max_us:.6f}" if row.max_us is not None else "",
        "captures": row.samples or "",
        "tensor_busy": share("tensor_engine_active_time"),
        "dma_busy": share("dma_active_time"),
        "dma_bytes": whole("dma_transfer_total_bytes"),
        "dma_transfers": whole("dma_transfer_count"),
        "correct_on_device": "yes" if measured else "",
        "error_kind": "" if measured else _kind(row),
        "source": f"calibrate: {row.machine}, {row.instance}, SDK {row.sdk}, {row.compiler}",
        "commit": row.digest,
    }


def _kind(row: Row) -> str:
    """The compiler's own code where it gave one; its sentences may name folders, and stay here."""
    code = re.search(r"\bNCC_[A-Z]+\d+\b", row.said)
    return f"{row.kind} {code.group(0)}" if code else row.kind
