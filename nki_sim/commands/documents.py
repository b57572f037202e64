"""What `profile --json` and `check --json` print: each document a frozen type; plain JSON, no NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nki_sim.lint.findings import Finding
from nki_sim.machine import machine
from nki_sim.profile.profile import LineCost, Measurement
from nki_sim.profile.waiting import Stall
from nki_sim.timing.intervals import Interval


@dataclass(frozen=True)
class ProfileDocument:
    """A kernel's simulated latency, and where it goes. Nothing here was measured on a device."""

    kernel: str
    """As it was named."""
    machine: str
    latency_us: float
    resource_bound_us: float
    """What the busiest engine, queue or DMA engine needs at least."""
    likely: Interval
    """Where a device's latency would lie."""
    rests_on: tuple[str, ...]
    """What that does, one line each."""
    caveat: str
    """What must be said wherever the latency is shown; empty for a calibrated machine."""
    exact: bool
    """Always: every instruction is scheduled; earlier releases left the middle of long loops out."""
    error_percent: float
    """Always 0."""
    cores: int
    """NeuronCores that it runs on at once."""
    matmul_flops: int
    vector_ops: int
    io_bytes: int
    low_precision: tuple[str, ...]
    """Floating-point dtypes below float32 that it read or wrote."""
    lines: tuple[LineCost, ...]
    """The most expensive first."""
    stalls: tuple[Stall, ...]
    """The longest first."""
    fields: dict[str, float | None]
    """The profiler's summary, by its names and in its units: seconds, bytes, fractions of 1."""
    timeline: str | None
    """The file written for ui.perfetto.dev."""
    schema: Literal["nki-optimizer/profile/1"] = "nki-optimizer/profile/1"


@dataclass(frozen=True)
class CheckDocument:
    """What a version's compiler rejects of a kernel, or warns of."""

    kernel: str
    nki: str
    errors: int
    warnings: int
    hints: int
    findings: tuple[Finding, ...]
    schema: Literal["nki-optimizer/check/1"] = "nki-optimizer/check/1"


@dataclass(frozen=True)
class ErrorDocument:
    """In place of what was asked for, where that could not be had."""

    error: str
    """One line for people, as on standard error."""
    exit_code: int
    schema: Literal["nki-optimizer/error/1"] = "nki-optimizer/error/1"


def profile_document(kernel: str, measured: Measurement, timeline: str | None) -> ProfileDocument:
    core = machine(measured.machine)
    return ProfileDocument(
        kernel, measured.machine, measured.latency_us, measured.resource_bound_us, measured.interval,
        measured.rests_on, "" if core.calibrated else core.calibration, True, 0.0,
        measured.cores, measured.matmul_flops, measured.vector_ops, measured.io_bytes, measured.low_precision,
        measured.lines, measured.stalls, dict(measured.fields), timeline,
    )  # fmt: skip


def check_document(kernel: str, version: str, findings: Sequence[Finding]) -> CheckDocument:
    count = {kind: sum(finding.severity == kind for finding in findings) for kind in ("error", "warning", "hint")}
    return CheckDocument(kernel, version, count["error"], count["warning"], count["hint"], tuple(findings))


def as_json(document: ProfileDocument | CheckDocument | ErrorDocument) -> str:
    return json.dumps(finite(asdict(document)), indent=1, allow_nan=False)


def finite(value: Any) -> Any:
    """Plain JSON types, with null for NaN and infinities: JSON has no word for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, (list, tuple)) else value
