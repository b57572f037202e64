"""When a kernel's engines are at work on the simulated machine: slices of time for a picture, and a trace file.

Made by the process that prices kernels (`worker.py`), since the program is traced in a sandbox of its own.
"""

from __future__ import annotations

import base64
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nki_sim.commands import gantt
from nki_sim.timing.schedule import Timeline

SLICES = 240
"""Of a timeline: what a picture of a page's width can show."""
MOST_EVENTS = 50_000
"""Instructions in a trace file, some 20 bytes each; it says how many it leaves out."""


class NoTimeline(Exception):
    """The simulated machine cannot say when this kernel's engines work: why, in one line."""


@dataclass(frozen=True)
class EngineTimeline:
    """One kernel at the task's full shape, simulated; of two cores the first."""

    latency_us: float
    shown_us: float
    """What the slices cover together: until the last instruction ends."""
    busy: Mapping[str, tuple[float, ...]]
    """By engine and DMA queue, of those that do anything: the busy share of every slice, 0 to 1."""
    cores: int
    """That it runs on."""
    trace: bytes
    """A file for ui.perfetto.dev: JSON, in gzip."""


def engine_timeline(cores: Sequence[Timeline], source: str) -> EngineTimeline:
    """`source`: of the kernel, for the names in the trace."""
    first = cores[0]
    shares = gantt.activity(first, SLICES)
    busy = {name: tuple(round(share, 3) for share in shares[name].tolist()) for name in shares}
    latency_us = max(line.latency_us for line in cores)
    return EngineTimeline(latency_us, gantt.shown_us(first), busy, len(cores), _trace(first, source))


def _trace(timeline: Timeline, source: str) -> bytes:
    """The text is the source that was traced: the program's own word of its file is the candidate's."""
    lines = dict(enumerate(map(str.strip, source.splitlines()), 1))
    text = io.StringIO()
    gantt.write_timeline(timeline, text, MOST_EVENTS, lines)
    return gzip.compress(text.getvalue().encode("utf-8", "backslashreplace"), mtime=0)


def to_line(timeline: EngineTimeline) -> dict[str, Any]:
    """As it is answered by the worker."""
    return {**vars(timeline), "trace": base64.b64encode(timeline.trace).decode("ascii")}


def from_line(said: Mapping[str, Any]) -> EngineTimeline:
    busy = {str(name): tuple(map(float, shares)) for name, shares in said["busy"].items()}
    return EngineTimeline(
        float(said["latency_us"]), float(said["shown_us"]), busy, int(said["cores"]),
        base64.b64decode(said["trace"]),
    )  # fmt: skip
