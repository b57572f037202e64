"""A page's model and its pictures as one HTML file: everything in it is escaped but the pictures and the style."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from accelopt_core.evaluation import latency_label
from infra.prediction.timelines import EngineTimeline
from infra.report import plots
from infra.report.run_page import RunPage
from infra.report.suite_page import SuitePage
from infra.terminal.wording import printable

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Written:
    """By what, and when: the page's last line."""

    version: str
    at: str
    """ISO time, UTC."""


@dataclass(frozen=True)
class TraceLink:
    name: str
    href: str
    """Relative to the page, quoted as an address is."""


@dataclass(frozen=True)
class Timelines:
    """Of the input and the best, as far as they could be simulated."""

    lines: tuple[tuple[str, EngineTimeline], ...] = ()
    notes: tuple[str, ...] = ()
    """What must be said of them, or why there is none."""
    traces: tuple[TraceLink, ...] = ()


def run_html(page: RunPage, timelines: Timelines, written: Written) -> str:
    """Raises NoPlots where matplotlib is missing."""
    baseline = page.document.baseline
    label = latency_label(baseline.simulated, baseline.caveat) if baseline is not None else ""
    pictures: dict[str, Any] = dict.fromkeys(("rounds", "gaps", "engines", "roofline"))
    if baseline is not None:
        pictures["rounds"] = plots.latency_over_rounds(baseline.latency_us, page.tries, label)
        pictures["gaps"] = plots.gaps(page.gaps, label, page.gaps_are_of_two)
    pictures["engines"] = plots.engines(timelines.lines)
    if page.roofline is not None:
        pictures["roofline"] = plots.roofline(page.roofline, label)
    return _filled(
        "run.html.j2",
        {"page": page, "pictures": pictures, "label": label, "timelines": timelines.lines,
         "timeline_notes": timelines.notes, "traces": timelines.traces},
        written,
    )  # fmt: skip


def suite_html(page: SuitePage, written: Written) -> str:
    """Raises NoPlots where matplotlib is missing."""
    label = latency_label(page.document.simulated, page.document.caveat)
    return _filled("suite.html.j2", {"page": page, "picture": plots.gains(page.lines, label), "label": label}, written)


def _filled(template: str, given: Mapping[str, Any], written: Written) -> str:
    made = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, finalize=_printable)
    made.filters["drawn"] = Markup  # SVG of our own: matplotlib escapes the words in it
    return made.get_template(template).render(given, version=written.version, written=written.at)


def _printable(value: Any) -> Any:
    """What a template writes: no sign that steers a terminal, turns text around, or ends a file early."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
