"""A timeline as text: one row per engine and queue, how busy it is in each slice of time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from nki_sim.machine import machine
from nki_sim.profile.profile import Measurement
from nki_sim.profile.waiting import resource_numbers
from nki_sim.program.program import Program
from nki_sim.timing.cost import RESOURCES
from nki_sim.timing.schedule import Timeline

_SHADES = " ░▒▓█"
_ASCII_SHADES = " .:+#"


def gantt(timeline: Timeline, width: int = 72, ascii_only: bool = False) -> str:
    """Lines of `width` slices of time; a shade is the share of the slice the resource is busy."""
    end_us = shown_us(timeline)
    if end_us <= 0:
        return "nothing happens\n"
    shades = _ASCII_SHADES if ascii_only else _SHADES
    lines = [f"{'':10}0.0 us{f'{end_us:,.1f} us':>{width - len('0.0 us')}}"]
    for name, busy in activity(timeline, width).items():
        level = np.ceil(busy * (len(shades) - 1) - 1e-9).astype(int)
        lines.append(f"{name:<10}{''.join(shades[k] for k in level)}")
    return "\n".join(lines) + "\n"


def shown_us(timeline: Timeline) -> float:
    """Until the last instruction ends; 0.0 where there is none."""
    return float(timeline.end_ns.max()) / 1e3 if len(timeline.program) else 0.0


def activity(timeline: Timeline, slices: int) -> dict[str, np.ndarray]:
    """float64 [slices] by engine and queue, of those that do anything: its busy share, 0 to 1, of every slice of
    `shown_us`."""
    edges = np.linspace(0.0, shown_us(timeline) * 1e3, slices + 1)
    resources = resource_numbers(timeline)[timeline.program.template_ids]
    found = {}
    for number, name in enumerate(RESOURCES):
        chosen = resources == number
        if chosen.any() and edges[-1] > 0:
            busy = _busy(timeline.start_ns[chosen], timeline.end_ns[chosen], edges)
            found[name] = np.clip(busy, 0.0, 1.0)
    return found


def _busy(start: np.ndarray, end: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Share of every slice that is covered by at least one interval."""
    order = np.argsort(start, kind="stable")
    begin = start[order]
    reach = np.maximum.accumulate(end[order])
    covered_before = np.concatenate(([-np.inf], reach[:-1]))
    begin = np.maximum(begin, covered_before)
    length = np.maximum(reach - begin, 0.0)
    total = np.concatenate(([0.0], np.cumsum(length)))
    where = np.searchsorted(begin, edges, side="right")
    inside = np.where(
        where > 0, np.clip(edges - begin[np.maximum(where - 1, 0)], 0, length[np.maximum(where - 1, 0)]), 0
    )
    done = total[np.maximum(where - 1, 0)] + inside
    return np.diff(done) / np.diff(edges)


_LINES_SHOWN = 12


def report(measured: Measurement, source: dict[int, str]) -> str:
    """For a terminal: three times and how far to trust them, engines, what they wait for, the expensive lines."""
    text = [
        f"{measured.latency_us:,.1f} us on simulated {measured.machine}"
        f" (resource bound {measured.resource_bound_us:,.1f})"
    ]
    core, within = machine(measured.machine), measured.interval
    if not core.calibrated:
        text.append(core.calibration)
    held = f"a range that held {100 * within.level:.0f} % of " if core.calibrated else ""
    rests_on = "; ".join(measured.rests_on)
    text.append(f"a device: {within.low_us:,.1f} to {within.high_us:,.1f} us, {held}{rests_on}")
    text.append("")
    for engine in ("tensor", "vector", "scalar", "gpsimd"):
        share = measured.fields[f"{engine}_engine_active_time_percent"]
        count = measured.fields[f"{engine}_engine_instruction_count"]
        if count:
            text.append(f"{engine:<8}{100 * share:>6.1f} % busy {count:>12,.0f} instructions")
    moved = measured.fields["hbm_read_bytes"] + measured.fields["hbm_write_bytes"]
    text.append(
        f"{'dma':<8}{100 * measured.fields['dma_active_time_percent']:>6.1f} % busy "
        f"{measured.fields['dma_transfer_count']:>12,.0f} transfers, {moved / 1e6:,.1f} MB of HBM"
    )
    waits = [stall for stall in measured.stalls if stall.us > 0.01 * measured.latency_us][:6]
    if waits:
        text += ["", "idle, waiting"]
        text += [f"{stall.engine:<8}{stall.us:>10,.1f} us for {stall.waiting_on}" for stall in waits]
    text += ["", "line      engine      active us  instructions"]
    for cost in measured.lines[:_LINES_SHOWN]:
        code = source.get(cost.line, "")
        text.append(f"{cost.line:<10}{cost.engine:<10}{cost.active_us:>11,.1f}{cost.instructions:>14,}  {code[:60]}")
    return "\n".join(text) + "\n"


# --- a timeline as a file for ui.perfetto.dev -----------------------------------------------------


MOST_EVENTS = 200_000
"""Viewers become slow beyond that; the file then says how many instructions it leaves out."""


def write_timeline(
    timeline: Timeline, file: TextIO, most_events: int = MOST_EVENTS, lines: Mapping[int, str] | None = None
) -> None:
    """One event per line, so that the file can be read by eye and compared. `lines`: as `events` has it."""
    file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
    for number, event in enumerate(events(timeline, most_events, lines)):
        file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
    file.write("\n]}\n")


def events(
    timeline: Timeline, most_events: int = MOST_EVENTS, lines: Mapping[int, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Chrome trace events, times in µs: names of the tracks first, then instructions in program order.

    `lines`: text of the kernel's lines by number; None: read from the file that the program says it came of, which
    is to be trusted then.
    """
    program, machine_name = timeline.program, timeline.machine.name
    shown = min(len(program), most_events)
    left_out = len(program) - shown
    note = f", {left_out:,} more instructions not shown" if left_out else ""
    title = f"{program.kernel_name} on simulated {machine_name}{note}"
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": title}}
    for track, name in enumerate(RESOURCES):
        yield {"ph": "M", "pid": 0, "tid": track, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": 0, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}
    source = source_lines(program) if lines is None else lines
    described = []
    for template, price in zip(program.templates, timeline.costs):
        shapes = {operand.role: f"{list(operand.shape)} {operand.dtype}" for operand in template.operands}
        details: dict[str, Any] = {"line": template.line, "opcode": template.opcode, "operands": shapes}
        if price.transfer is not None:
            details["bytes"] = price.transfer.nbytes
            details["row bytes"] = price.transfer.row_bytes
        name = source.get(template.line, "") or f"{template.opcode} (line {template.line})"
        described.append((RESOURCES.index(price.resource), name, template.opcode, details))
    start, end, ready = timeline.start_ns.tolist(), timeline.end_ns.tolist(), timeline.ready_ns.tolist()
    cause = timeline.cause.tolist()
    for i, number in enumerate(program.template_ids[:shown].tolist()):
        track, name, category, details = described[number]
        arguments = {**details, "instruction": i, "operands ready": round(ready[i] / 1e3, 4)}
        if cause[i] >= 0:
            arguments["waited for"] = cause[i]
        yield {
            "ph": "X",
            "pid": 0,
            "tid": track,
            "ts": round(start[i] / 1e3, 4),
            "dur": round((end[i] - start[i]) / 1e3, 4),
            "name": name,
            "cat": category,
            "args": arguments,
        }


def source_lines(program: Program) -> dict[int, str]:
    """Text of the kernel's lines that issue instructions; empty when its file cannot be read."""
    try:
        text = Path(program.source_file).read_text(encoding="utf-8").splitlines() if program.source_file else []
    except (OSError, UnicodeDecodeError):
        return {}
    wanted = {template.line for template in program.templates}
    return {line: text[line - 1].strip() for line in sorted(wanted) if 0 < line <= len(text)}
