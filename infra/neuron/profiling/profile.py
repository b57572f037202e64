"""What the profiler prints, as numbers: the summary, and where each source line spent its time. Shipped.

The schema changes between versions (profile-schema-reference.rst: 7.4.0 with SDK 2.31, 12.0.1 with 2.33): fields come
and go and are passed on as they are, but a summary without a believable `total_time` is an error by name.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelopt_core.evaluation import HotLine
from nki_sim.machine import Machine

LONGEST_EXECUTION_S = 3600.0
"""A `total_time` above this is in another unit."""

_CLOCK_HZ = (1e8, 1e10)
"""`neuroncore_cycle_count / total_time` must be a clock of this order; else one of the units has changed."""

_SETUP_OPCODES = frozenset(
    {
        "NOP",
        "SET_ORDERING_MODE",
        "EVENT_SEMAPHORE",
        "EVENT_SEMAPHORE_RANGE_CLEAR",
        "NOTIFY",
        "COMPARE_BRANCH",
        "DRAIN",
        "WRITE",
        "TENSOR_LOAD",
    }
)
"""Set-up, synchronisation and control; everything else is work (as nki-library's metrics collector counts it)."""

_LOW_PRECISION_OPERAND = re.compile(
    r"\b(bf16|bfloat16|fp16|float16|fp8\w*|float8\w*|cfp8\w*|fp4\w*)(?=[@\[:\s]|$)", re.I
)
_LOW_PRECISION_NAMES = {"bf16": "bfloat16", "fp16": "float16"}


class ProfileUnreadable(Exception):
    """The profiler's output is not what any known version prints: the message says what is missing."""


def parse_summary(text: str) -> dict[str, float]:
    """The numeric fields of one execution, in the profiler's units (seconds, bytes, fractions of 1).

    Accepts log lines around the object, `{"n_<hash>": {...}}` of any number of graphs (the slowest is the
    one that decides), the flat object and the `{"summary": [...]}` of older versions.
    Raises ProfileUnreadable.
    """
    candidates = [fields for found in _objects(text) for fields in _summaries(found)]
    if not candidates:
        raise ProfileUnreadable(f"no summary in the profiler's output: {_excerpt(text)}")
    return max((_checked(fields) for fields in candidates), key=lambda fields: fields["total_time"])


def summary_of_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The same from table Summary: one row per execution, the slowest decides. Raises ProfileUnreadable."""
    if not rows:
        raise ProfileUnreadable("the table Summary is empty")
    return max((_checked(row) for row in rows), key=lambda fields: fields["total_time"])


def _objects(text: str) -> Iterable[dict[str, Any]]:
    """The outermost JSON objects of a text that may also have log lines."""
    decoder, position = json.JSONDecoder(), 0
    while (position := text.find("{", position)) >= 0:
        try:
            found, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        if isinstance(found, dict):
            yield found


def _summaries(found: dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(found.get("summary"), list):
        return [entry for entry in found["summary"] if isinstance(entry, dict)]
    if any(not isinstance(value, (dict, list)) for value in found.values()):
        return [found]
    return [entry for entry in found.values() if isinstance(entry, dict)]


def _checked(fields: Mapping[str, Any]) -> dict[str, float]:
    numbers = {
        str(name): float(value)
        for name, value in fields.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
    if "total_time" not in numbers:
        raise ProfileUnreadable(f"the summary has no number named total_time (it has {_excerpt(', '.join(fields))})")
    total_s = numbers["total_time"]
    if not 0 < total_s < LONGEST_EXECUTION_S:
        raise ProfileUnreadable(f"total_time is {total_s:g}: not the seconds of an execution")
    cycles = numbers.get("neuroncore_cycle_count", 0.0)
    if cycles > 0 and not _CLOCK_HZ[0] <= cycles / total_s <= _CLOCK_HZ[1]:
        raise ProfileUnreadable(
            f"{cycles:g} cycles in total_time {total_s:g} s are {cycles / total_s:.3g} Hz: a unit has changed"
        )
    return numbers


def narrow_matmuls(fields: Mapping[str, float]) -> str | None:
    """What the summary alone says about matmuls below float32; None when all are float32 or it does not say.

    `adjusted_hardware_flops` counts float32 four times, 16-bit and tf32 once and fp8 half (schema 7.4.0).
    """
    try:
        flops = fields["hardware_flops"] - fields["transpose_flops"]
        adjusted = fields["adjusted_hardware_flops"] - fields["adjusted_transpose_flops"]
    except KeyError:
        return None
    if flops <= 0 or adjusted >= 3.99 * flops:
        return None
    return "below-float32 matmul operands"


def resource_bound_us(summary: Mapping[str, float], machine: Machine) -> float | None:
    """What the profiler's own counters need at least: HBM traffic and matmuls at the machine's peak rates.

    Copies within HBM count as read and written, so the DMA engines move twice their rate there.
    """
    bounds_us = []
    if "adjusted_hardware_flops" in summary:  # bfloat16-equivalent, whatever the dtype
        bounds_us.append(summary["adjusted_hardware_flops"] / machine.matmul_bf16_flops_per_ns / 1e3)
    if "hbm_read_bytes" in summary and "hbm_write_bytes" in summary:
        moved = summary["hbm_read_bytes"] + summary["hbm_write_bytes"]
        bounds_us.append(moved / max(machine.hbm_bytes_per_ns, 2 * machine.dma_bytes_per_ns) / 1e3)
    return max(bounds_us, default=None)


@dataclass(frozen=True)
class InstructionFacts:
    hot_lines: tuple[HotLine, ...]
    low_precision: tuple[str, ...]


def parse_instructions(text: str, *, source_name: str, total_time_s: float) -> InstructionFacts:
    """Busy time per source line and narrow dtypes, from `view --output-format json`. Raises ProfileUnreadable.

    Newer versions name their unit (`duration_ns`). Older ones print `duration` in nanoseconds or
    picoseconds: which, follows from `total_time_s`, since instructions cannot span more than the execution.
    """
    try:
        rows = json.loads(text)["instruction"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProfileUnreadable(f"no instruction table in the profiler's JSON: {error!r}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProfileUnreadable("the instruction table of the profiler's JSON is not a list of objects")
    return instruction_facts(rows, source_name=source_name, total_time_s=total_time_s)


def instruction_facts(rows: Sequence[Mapping[str, Any]], *, source_name: str, total_time_s: float) -> InstructionFacts:
    """The same from rows of table Instruction, wherever they were read from. Raises ProfileUnreadable."""
    work = [row for row in rows if str(row.get("opcode", "")).upper() not in _SETUP_OPCODES]
    spans = [_span(row) for row in work]
    scale_us = _scale_us(work, spans, total_time_s)
    where = re.compile(re.escape(source_name) + r"[\"']?:(\d+)")
    busy: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    narrow: set[str] = set()
    for row, (start, end) in zip(work, spans):
        for found in _LOW_PRECISION_OPERAND.findall(str(row.get("operands", ""))):
            narrow.add(_LOW_PRECISION_NAMES.get(found.lower(), found.lower()))
        location = where.search(str(row.get("nki_source_location") or row.get("bir_debug_info_source_location") or ""))
        if location:
            busy[int(location.group(1)), _engine(row)].append((start, end))
    return InstructionFacts(_hot_lines(busy, scale_us), tuple(sorted(narrow)))


def _span(row: Mapping[str, Any]) -> tuple[float, float]:
    try:
        if "start_ts" in row:
            return float(row["start_ts"]), float(row["end_ts"])
        start = float(row["timestamp"])
        return start, start + float(row["duration"])
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileUnreadable(f"an instruction of the profiler's JSON has no times: {error!r}") from None


def _scale_us(work: Sequence[Mapping[str, Any]], spans: Sequence[tuple[float, float]], total_time_s: float) -> float:
    """Microseconds per tick of the table."""
    if not work or "duration_ns" in work[0] or "start_ts" in work[0]:
        return 1e-3
    extent = max(end for _, end in spans) - min(start for start, _ in spans)
    fits = [scale for scale in (1e-3, 1e-6) if 0.01 * total_time_s < extent * scale * 1e-6 < 1.5 * total_time_s]
    if len(fits) != 1:
        raise ProfileUnreadable(f"the instructions span {extent:g} ticks of an unknown unit in {total_time_s:g} s")
    return fits[0]


def _engine(row: Mapping[str, Any]) -> str:
    label = str(row.get("engine") or row.get("label") or "unknown")
    return re.sub(r"(Matrix)?(E|Engine)?$", "", label).lower() or "unknown"


def _hot_lines(busy: Mapping[tuple[int, str], Sequence[tuple[float, float]]], scale_us: float) -> tuple[HotLine, ...]:
    """For each line its busiest engine; the hottest line first."""
    best: dict[int, HotLine] = {}
    for (line, engine), intervals in busy.items():
        active_us = scale_us * _union(intervals)
        if line not in best or active_us > best[line].active_us:
            best[line] = HotLine(line, engine, active_us, len(intervals))
    return tuple(sorted(best.values(), key=lambda hot: (-hot.active_us, hot.line)))


def _union(intervals: Sequence[tuple[float, float]]) -> float:
    total, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _excerpt(text: str) -> str:
    words = " ".join(text.split())
    return repr(words[:200] + ("…" if len(words) > 200 else ""))
