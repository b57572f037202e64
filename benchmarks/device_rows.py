"""Every kernel of `data/trn2_device` that a program can be written for: what the device took, and the program.

`rows()` is the list. A row that did not run on the device has no time but the compiler's reason.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import device_matmuls as matmuls
from nki_sim.program import Program

DATA = Path(__file__).with_name("data") / "trn2_device"


@dataclass(frozen=True)
class DeviceRow:
    id: str
    family: str
    """Of kernels that are measured alike: what error is reported by, and what is left out together."""
    grid: str
    """Rows measured together, so that ranking among them makes sense."""
    what: str
    make: Callable[[], Program]
    """Raises NkiError where the simulator refuses the kernel."""
    measured_us: float | None
    """None where the device's compiler refused it; `refused` says why."""
    refused: str = ""
    with_launch: bool = False
    """The figure holds the runtime's launch, which a profile does not."""
    spilled_bytes: int | None = None
    """Moved by the compiler besides what the program asks for; below 0 where it left loads out."""
    tensor_busy: float | None = None
    """Share of the time."""
    tolerance: float = 0.0
    """How far the figure itself may be off, as a fraction, where its source gives reason to think so."""


def read(name: str) -> list[dict[str, str]]:
    with open(DATA / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _number(text: str) -> float | None:
    return float(text) if text else None


def blocked_rows() -> list[DeviceRow]:
    """Without the settings that the kernel's own assertion rejects: no compiler ever saw those."""
    found = []
    for row in read("blocked_fp32.csv"):
        if "assertion" in row["error_kind"]:
            continue
        sizes = [int(row[name]) for name in ("K", "M", "N", "tm", "tn", "tk")]
        found.append(
            DeviceRow(
                row["id"], "blocked_fp32", row["grid"], f"K{row['K']} M{row['M']} N{row['N']} {tuple(sizes[3:])}",
                partial(matmuls.blocked, *sizes),
                _number(row["measured_us"]), row["error_kind"],
                spilled_bytes=int(row["excess_bytes"]) if row["excess_bytes"] else None,
                tensor_busy=_number(row["tensor_busy"]),
            )
        )  # fmt: skip
    return found


def ladder_rows() -> list[DeviceRow]:
    makers: dict[str, Callable[[], Program]] = {
        "tiled": partial(matmuls.tiled, 2048, 2048, 2048),
        "row_resident": partial(matmuls.tiled, 2048, 2048, 2048, row_resident=True),
        "square_blocks": partial(matmuls.square_blocks, 2048, 2048, 2048, 2, 2),
        "blocked": partial(matmuls.blocked, 2048, 2048, 2048, 16, 2, 8),
    }
    return [
        DeviceRow(
            row["id"], "ladder_fp32", row["grid"], f"{row['kernel']} 2048^3", makers[row["kernel"]],
            _number(row["measured_us"]), tensor_busy=_number(row["tensor_busy"]),
        )
        for row in read("ladder_fp32.csv")
    ]  # fmt: skip


def qwen_rows() -> list[DeviceRow]:
    """Without the row that was numerically wrong on the device: it has no time."""
    found = []
    for row in read("qwen_bf16.csv"):
        if not row["measured_us"]:
            continue
        sizes = [int(size) for size in row["shapes"].split("x")]
        blocks = [int(row[name]) for name in ("tm", "tn", "tk") if row[name]]
        if row["kernel"] == "tiled":
            make = partial(matmuls.tiled, *sizes, row["dtype"])
        else:
            make = partial(matmuls.blocked, *sizes, *blocks, row["dtype"], row["acc"])
        found.append(
            DeviceRow(
                row["id"], "qwen_bf16", row["grid"], f"{row['kernel']} {row['shapes']} {tuple(blocks)} {row['acc']}",
                make, _number(row["measured_us"]), with_launch=True,
            )
        )  # fmt: skip
    return found


def rows() -> list[DeviceRow]:
    """Every family, in the order of the files."""
    return [*blocked_rows(), *ladder_rows(), *qwen_rows()]
