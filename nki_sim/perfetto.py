"""A timeline as a trace file for ui.perfetto.dev or chrome://tracing: engines and DMA queues as tracks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from nki_sim.cost import RESOURCES
from nki_sim.program import Program
from nki_sim.schedule import Timeline

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
