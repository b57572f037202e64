"""The pictures of a page, each from its facts. All words in them are plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.prediction.timelines import EngineTimeline
from infra.report.drawing import AFTER, BAD, BEFORE, GOOD, GRID, INK, MUTED, WARN, Picture, picture
from infra.report.roofline import Roofline
from infra.report.run_page import GapBar, Try
from infra.report.suite_page import SuiteLine
from infra.runs.lineage import INPUT
from ka_extensions.outcome import Outcome

LOGARITHMIC_FROM = 4.0
"""Largest over smallest latency of a run; below, steps show better on a plain scale."""
LONGEST_LABEL = 60
"""Characters."""

_TRACKS = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma.sync", "dma.scalar", "dma.gpsimd")


@dataclass(frozen=True)
class _Mark:
    label: str
    marker: str
    colour: str
    filled: bool


_IMPROVED = _Mark("improved", "o", GOOD, True)
_KEPT = _Mark("kept, no best", "o", AFTER, False)
_SLOWER = _Mark("no improvement", "o", MUTED, False)
_REVERTED = _Mark("reverted", "v", WARN, False)
_DROPPED = _Mark("failed its last check", "X", BAD, True)
_FAILED = _Mark("failed", "x", BAD, False)
_MARKS = (_IMPROVED, _KEPT, _SLOWER, _REVERTED, _DROPPED, _FAILED)


def _mark(each: Try) -> _Mark:
    if each.dropped:
        return _DROPPED
    if each.latency_us is None:
        return _FAILED
    known = {Outcome.IMPROVED: _IMPROVED, Outcome.KEPT: _KEPT, Outcome.REVERTED: _REVERTED}
    return known.get(each.outcome, _SLOWER)


# --- latency over rounds ----------------------------------------------------------------------------


def latency_over_rounds(baseline_us: float, tries: Sequence[Try], label: str) -> Picture | None:
    """None before the first try has ended. `label`: what stands before a latency, `simulated ` or nothing."""
    if not tries:
        return None
    places: dict[str, tuple[float, float]] = {INPUT: (0.0, baseline_us)}
    rounds: dict[int, int] = {}
    for each in tries:
        rounds[each.round] = rounds.get(each.round, 0) + 1
    seen: dict[int, int] = {}
    spots: list[tuple[Try, float]] = []
    for each in tries:
        number = seen.get(each.round, 0)
        seen[each.round] = number + 1
        width = rounds[each.round]
        at = each.round + (0.0 if width == 1 else 0.6 * (number / (width - 1) - 0.5))
        spots.append((each, at))
        if each.latency_us is not None:
            places[each.id] = (at, each.latency_us)
    known = [us for _, us in places.values()]
    logarithmic = max(known) > LOGARITHMIC_FROM * min(known)

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.add_subplot()
        if logarithmic:
            axes.set_yscale("log")
        axes.grid(axis="y")
        for on_path, colour, width in ((False, MUTED, 0.5), (True, GOOD, 1.6)):
            xs, ys = _edges(tries, places, on_path)
            if xs:
                axes.plot(xs, ys, color=colour, linewidth=width, zorder=2 + on_path)
        axes.plot([0], [baseline_us], linestyle="", marker="s", color=BEFORE, label="input", zorder=5, clip_on=False)
        for mark in _MARKS:
            own = [(each, at) for each, at in spots if _mark(each) is mark and each.latency_us is not None]
            if own:
                axes.plot(
                    [at for _, at in own], [each.latency_us for each, _ in own], linestyle="", marker=mark.marker,
                    markerfacecolor=mark.colour if mark.filled else "none", markeredgecolor=mark.colour,
                    label=mark.label, zorder=4,
                )  # fmt: skip
        failed = [at for each, at in spots if each.latency_us is None]
        if failed:
            where = axes.get_xaxis_transform()
            axes.plot(
                failed, [0.03] * len(failed), linestyle="", marker="x", color=BAD, label="failed (no latency)",
                transform=where, zorder=4, clip_on=False,
            )  # fmt: skip
        low, high = min(known), max(known)
        if not logarithmic:
            margin = 0.08 * ((high - low) or high)
            axes.set_ylim(low - (2.2 if failed else 1) * margin, high + margin)
        elif failed:
            axes.set_ylim(low * (low / high) ** 0.18, high * (high / low) ** 0.06)
        if logarithmic:
            _plain_ticks(axes.yaxis)
        _with_thousands(axes.yaxis)
        last = max(each.round for each in tries)
        axes.set_xlim(-0.5, last + 0.7)
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axes.set_xlabel("round (0: the input kernel)")
        axes.set_ylabel(f"{label}latency, µs")
        _legend(figure, axes, 2 if narrow else 6)

    improved = sum(_mark(each) is _IMPROVED for each in tries)
    failed = sum(each.latency_us is None for each in tries)
    words = (
        f"Latency over {last_round(tries)} rounds: {len(tries)} tries, of which {improved} improved and {failed} have "
        "no latency; lines lead from each kernel to those made from it, the thick ones to the best."
    )
    return picture("rounds", words, 3.4, draw)


def last_round(tries: Sequence[Try]) -> int:
    return max((each.round for each in tries), default=0)


def _edges(
    tries: Sequence[Try], places: dict[str, tuple[float, float]], on_path: bool
) -> tuple[list[float], list[float]]:
    """Of each try the line from its parent, as one path with breaks."""
    xs: list[float] = []
    ys: list[float] = []
    for each in tries:
        begin, end = places.get(each.parent_id), places.get(each.id)
        if begin is None or end is None or each.on_path is not on_path or each.latency_us is None:
            continue
        xs += [begin[0], end[0], math.nan]
        ys += [begin[1], end[1], math.nan]
    return xs, ys


# --- bars -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bars:
    """Before and after of one thing; the label stands above, so that it may be long."""

    label: str
    before: float | None
    after: float | None
    note: str = ""
    """At the end of the longer one."""


def gaps(bars: Sequence[GapBar], label: str, two: bool) -> Picture | None:
    """None without gaps. `two`: the best is another kernel than the input."""
    if not bars:
        return None
    shown = [_Bars(bar.name, bar.before_us, bar.after_us if two else None) for bar in bars]
    names = ("input", "best" if two else "")
    words = "Gaps, in µs that closing each alone could gain: " + "; ".join(
        f"{bar.name} {_us(bar.before_us)} before" + (f", {_us(bar.after_us)} after" if two else "") for bar in bars
    )
    return _bars("gaps", words, shown, f"{label}µs that closing it alone could gain", names, _us)


def gains(lines: Sequence[SuiteLine], label: str) -> Picture | None:
    """Of a suite: percent of peak, first and best, task by task; the speed-up stands beside them. `label`: as above."""
    if not lines:
        return None
    shown = [_Bars(each.task, each.before_percent, each.after_percent, each.speedup) for each in lines]
    words = "Percent of peak, first and best: " + "; ".join(
        f"{each.task} {_percent(each.before_percent)} to {_percent(each.now_percent)}, {each.speedup}" for each in lines
    )
    return _bars("gains", words, shown, f"{label}% of peak", ("input", "best"), _percent)


def _us(value: float | None) -> str:
    return "none" if value is None else f"{value:,.1f} µs"


def _percent(value: float | None) -> str:
    return "nothing faster" if value is None else f"{value:.1f} %"


def _bars(name: str, words: str, bars: Sequence[_Bars], axis: str, names: tuple[str, str], said: Any) -> Picture:
    """Top to bottom. Each takes a line for its label and a line for each of its two bars."""
    thick, step = 0.26, 1.0
    two = any(bar.after is not None for bar in bars)
    longest = max(max(bar.before or 0.0, bar.after or 0.0) for bar in bars)

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.add_subplot()

        def beside(at: tuple[float, float], text: str, colour: str) -> None:
            axes.annotate(text, at, xytext=(4, 0), textcoords="offset points", va="center", color=colour)

        for number, bar in enumerate(bars):
            top = -step * number
            axes.text(0, top, _cut(bar.label, 44 if narrow else LONGEST_LABEL), ha="left", va="bottom")
            note = f"; {bar.note}" if bar.note else ""
            axes.barh(top - 0.18, bar.before or 0.0, thick, color=BEFORE, label=names[0] if not number else None)
            beside((bar.before or 0.0, top - 0.19), said(bar.before), MUTED)
            if two:
                axes.barh(top - 0.5, bar.after or 0.0, thick, color=AFTER, label=names[1] if not number else None)
                beside((bar.after or 0.0, top - 0.51), f"{said(bar.after)}{note}", INK)
        axes.set_ylim(-step * (len(bars) - 1) - 0.75, 0.4)
        axes.set_xlim(0, longest * (1.45 if narrow else 1.16))
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(axis)
        _with_thousands(axes.xaxis)
        if narrow:
            axes.xaxis.get_major_locator().set_params(nbins=4)
        _legend(figure, axes, 2)

    return picture(name, words, 0.9 + (0.62 if two else 0.46) * len(bars), draw)


# --- engines ----------------------------------------------------------------------------------------


def engines(timelines: Sequence[tuple[str, EngineTimeline]]) -> Picture | None:
    """One below the other on one axis, so that what is faster is shorter. None where none is."""
    if not timelines:
        return None
    tracks = {name: [track for track in _TRACKS if track in line.busy] for name, line in timelines}
    if not any(tracks.values()):
        return None
    end_us = max(line.shown_us for _, line in timelines)
    colours = {"input": BEFORE}

    def draw(figure: Any, narrow: bool) -> None:
        shares = [max(1, len(tracks[name])) for name, _ in timelines]
        panels = figure.subplots(len(timelines), 1, sharex=True, squeeze=False, height_ratios=shares)[:, 0]
        for axes, (name, line) in zip(panels, timelines):
            every = 2 if narrow else 1
            for place, track in enumerate(tracks[name]):
                xs, ys = _outline(line, track, every)
                base = -float(place)
                colour = colours.get(name, AFTER)
                axes.fill_between(xs, base, [base + 0.82 * y for y in ys], color=colour, linewidth=0)
                axes.axhline(base, color=GRID, linewidth=0.6, zorder=0)
            axes.set_yticks([0.4 - place for place in range(len(tracks[name]))], tracks[name])
            axes.tick_params(axis="y", length=0)
            axes.set_ylim(-len(tracks[name]) + 0.9, 1.0)
            axes.spines["left"].set_visible(False)
            axes.axvline(line.shown_us, color=INK, linewidth=0.8, linestyle=":")
            axes.set_title(f"{_cut(name, 30)}: {line.latency_us:,.1f} µs simulated")
        panels[-1].set_xlim(0, end_us * 1.01)
        _with_thousands(panels[-1].xaxis)
        panels[-1].set_xlabel("simulated µs; height: busy share of each slice of time")
        if narrow:
            panels[-1].set_xlabel("simulated µs")
            panels[-1].xaxis.get_major_locator().set_params(nbins=4)

    count = sum(len(each) for each in tracks.values())
    words = "When engines and DMA queues are busy: " + "; ".join(
        f"{name} " + ", ".join(f"{track} {100 * _mean(line.busy[track]):.0f} %" for track in tracks[name])
        for name, line in timelines
    )
    return picture("engines", words, 1.0 + 0.45 * len(timelines) + 0.3 * count, draw)


def _outline(line: EngineTimeline, track: str, every: int) -> tuple[list[float], list[float]]:
    """Steps: each slice from its begin to its end; `every` slices drawn as one, equal neighbours as one."""
    shares = line.busy[track]
    joined = [_mean(shares[first : first + every]) for first in range(0, len(shares), every)]
    xs: list[float] = []
    ys: list[float] = []
    for number, share in enumerate(joined):
        begin = line.shown_us * number / len(joined)
        if ys and ys[-1] == share:
            xs[-1] = line.shown_us * (number + 1) / len(joined)
        else:
            xs += [begin, line.shown_us * (number + 1) / len(joined)]
            ys += [share, share]
    return xs, ys


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


# --- roofline ---------------------------------------------------------------------------------------


def roofline(found: Roofline, label: str) -> Picture:
    """Both axes logarithmic."""
    highest = found.roofs[-1].per_second
    ridge = highest / found.bytes_per_second
    at = [point.per_byte for point in found.points]
    if found.least_traffic is not None:
        at.append(found.least_traffic)
    left, right = min(*at, ridge) / 3, max(*at, ridge) * 3
    unit = {"FLOP": ("FLOP", "TFLOPS", 1e12), "op": ("operations", "Gop/s", 1e9)}[found.unit]

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(axis="both")
        for number, roof in enumerate(found.roofs):
            corner = roof.per_second / found.bytes_per_second
            xs, ys = ([left, corner, right], [left * found.bytes_per_second, roof.per_second, roof.per_second])
            if number:  # the slope is drawn already, as far as the roof below reaches
                below = found.roofs[number - 1].per_second
                xs, ys = [below / found.bytes_per_second, corner, right], [below, roof.per_second, roof.per_second]
            axes.plot(xs, [y / unit[2] for y in ys], color=INK, linewidth=1.2)
            axes.annotate(
                f"{roof.name}, {roof.per_second / unit[2]:,.3g} {unit[1]}", (right, roof.per_second / unit[2]),
                ha="right", va="bottom", xytext=(0, 2), textcoords="offset points",
            )  # fmt: skip
        if found.least_traffic is not None:
            axes.axvline(found.least_traffic, color=MUTED, linestyle=":", linewidth=1.0, label="no byte moved twice")
        for point, colour, marker in zip(found.points, (BEFORE, AFTER), "so"):
            axes.plot(
                [point.per_byte], [point.per_second / unit[2]], marker=marker, markersize=8, linestyle="",
                color=colour, label=point.name, zorder=5,
            )  # fmt: skip
        lowest = min(point.per_second for point in found.points)
        axes.set_xlim(left, right)
        axes.set_ylim(min(lowest, left * found.bytes_per_second) / unit[2] / 1.5, highest / unit[2] * 2.5)
        axes.set_xlabel(f"{unit[0]} for each byte moved ({found.bytes_per_second / 1e9:,.0f} GB/s)")
        axes.set_ylabel(f"{label}{unit[1]}")
        _plain_ticks(axes.xaxis, narrow)
        _plain_ticks(axes.yaxis)
        _legend(figure, axes, 2 if narrow else 3)

    words = f"Roofline, {unit[0]}: " + "; ".join(
        f"{point.name} {point.per_second / unit[2]:,.3g} {unit[1]} at {point.per_byte:,.3g} for each byte"
        for point in found.points
    )
    return picture("roofline", words, 3.4, draw)


# --- all --------------------------------------------------------------------------------------------


def _plain_ticks(axis: Any, few: bool = False) -> None:
    """Of a logarithmic axis whose limits are set. Powers of ten as they are: as such they would be formulas."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades <= (1.5 if few else 2.5) else (1.0, 3.0) if decades <= 3 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=5 if few else 9))
    axis.set_minor_locator(NullLocator())
    _with_thousands(axis)


def _with_thousands(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.10g}"))


def _legend(figure: Any, axes: Any, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, handletextpad=0.4, columnspacing=1.2)


def _cut(text: str, most: int = LONGEST_LABEL) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
