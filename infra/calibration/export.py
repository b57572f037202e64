"""Rows to send back: a table in the form of `benchmarks/data/trn2_device`, with no name of a host, user or folder."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from infra.calibration.constants import in_order_of_worth
from infra.calibration.kernel import CalibrationKernel
from infra.calibration.rows import Row, RowFile
from infra.journal import JournalError, replace_file

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
