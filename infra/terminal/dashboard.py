"""What a person sees while a run goes on: a live view on a terminal, plain lines in a pipe or in CI.

Each view is an `accelopt_core.loop.events.RunObserver`. `open_view` chooses one; close it before printing the result.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from accelopt_core.evaluation import ROUND_STEPS, Measured, Step
from accelopt_core.loop.events import BASELINE_ROUND, Event, Notice, RunObserver
from infra.runs.lineage import Lineage
from infra.terminal import wording
from infra.terminal.family_tree import path_line
from infra.terminal.run_state import LaneState, PlainProgress, RunState
from infra.terminal.wording import LatencyRow, latency_table, one_line
from ka_extensions.outcome import Outcome

WIDEST = 100
_FRAMES = "◐◓◑◒"
_PLAIN_FRAMES = "|/-\\"


class View(RunObserver, Protocol):
    def close(self) -> None: ...


def open_view(kind: str = "auto", console: Console | None = None, environment: Mapping[str, str] = os.environ) -> View:
    """`kind`: auto, live, plain or quiet (config.VIEWS); auto is live only where somebody can watch."""
    console = console or Console()
    if kind == "auto":
        watched = console.is_terminal and not console.is_dumb_terminal and not environment.get("CI")
        kind = "live" if watched else "plain"
    if kind == "live":
        return LiveDashboard(console)
    return PlainProgress(console, quiet=kind == "quiet")


# --- live -----------------------------------------------------------------------------------------


class LiveDashboard:
    """Redraws itself in place; disappears when closed, so that the final report stands alone."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._state = RunState()
        self._lock = threading.RLock()  # the handler of Ctrl-C may tell something in the middle of telling
        self._live = Live(
            get_renderable=self._frame, console=console, refresh_per_second=5, transient=True, vertical_overflow="crop"
        )
        self._live.start()

    def tell(self, event: Event) -> None:
        with self._lock:
            self._state.apply(event, self._clock())
        if isinstance(event, Notice):  # above the view, where it stays when the view is gone
            style = "yellow" if event.level == "warning" else "dim"
            self._console.print(Text(one_line(event.message), style=style))

    def close(self) -> None:
        self._live.stop()

    def _frame(self) -> RenderableType:
        return Frame(self._state, self._clock(), self._lock)


class Frame:
    """One picture of a state, made for the size of the terminal it is drawn on."""

    def __init__(self, state: RunState, now: float, lock: AbstractContextManager[object] | None = None) -> None:
        self._state = state
        self._now = now
        self._lock = lock or nullcontext()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        with self._lock:
            yield draw(
                self._state, self._now, width=min(options.max_width, WIDEST), height=height,
                ascii_only=options.ascii_only,
            )  # fmt: skip


MOST_LANES_SHOWN = 6
"""Of a round, those at work first; a search from several kernels may have a hundred."""


def draw(state: RunState, now: float, *, width: int, height: int, ascii_only: bool = False) -> RenderableType:
    started = state.started
    if started is None:
        return Text(" starting ...", style="dim")
    inside = width - 4
    dot = "-" if ascii_only else "·"
    title = Text.assemble((one_line(started.task, 30), "bold"), (f" {dot} {one_line(started.shape, 34)}", "dim"))
    subtitle = Text(f"{one_line(started.target.name, 34)} {dot} {one_line(started.proposer, 30)}", style="dim")
    parts: list[RenderableType] = [_now_part(state, now, inside, ascii_only)]
    space = height - 17 - min(len(state.lanes), MOST_LANES_SHOWN + 1)
    if state.baseline is not None:
        parts += ["", _latencies(state, inside, ascii_only)]
        notes = wording.notes(state.baseline, state.best)
        parts += [Text(one_line(note, inside, ascii_only=ascii_only), style="dim") for note in notes]
        space -= max(0, len(notes) - 1)
    lineage = state.lineage
    if lineage is not None and state.rounds and space >= 2:
        parts += ["", _lineage(lineage, state.parent_id, inside, ascii_only)]
        space -= 2
    if state.rounds and space >= 1:
        parts += ["", _rounds(state, min(space, 10), inside, ascii_only)]
    gaps = _gaps(state, inside, ascii_only)
    if gaps is not None and space - min(len(state.rounds), 10) >= 6:
        parts += ["", Text("Time still to be won in the best kernel", style="dim"), gaps]
    parts += ["", _spent(state, now, dot)]
    body = Padding(Group(*parts), (0, 1))
    return Panel(body, title=title, subtitle=subtitle, title_align="left", subtitle_align="left", width=width,
                 border_style="dim", padding=(0, 0))  # fmt: skip


def _now_part(state: RunState, now: float, width: int, ascii_only: bool) -> RenderableType:
    """Round, plan and step: three lines that keep their place, and one that says what is going on."""
    assert state.started is not None
    total = state.started.rounds
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", width=5, no_wrap=True)
    grid.add_column(no_wrap=True)
    if state.round == BASELINE_ROUND:
        grid.add_row("Round", Text.assemble("measuring the input kernel", (f"  of {total} rounds to come", "dim")))
    else:
        place, left = f"{state.round} of {total}", _left(state, now)
        if state.final_check:
            place = "checking the winner on every seed"
        line = Table.grid(padding=(0, 2, 0, 0))
        cells: list[RenderableType] = [Text(place, style="bold"), Text(left, style="dim")]
        space = width - 7 - len(place) - len(left) - 4
        if space >= 8:
            done = min(state.rounds_done, total)
            bar = ProgressBar(total=total, completed=done, width=space, complete_style="cyan", finished_style="green")
            cells.insert(1, bar)
        line.add_row(*cells)
        grid.add_row("Round", line)
    if len(state.lanes) > 0 and not state.final_check:
        at_work = sorted(state.lanes.items(), key=lambda item: (item[1].step is None, item[0]))
        for name, lane in sorted(at_work[:MOST_LANES_SHOWN]):
            grid.add_row(f"Try {name}" if len(name) == 1 else f"{name:>5}", _lane(lane, now, width - 7, ascii_only))
        if len(at_work) > MOST_LANES_SHOWN:
            grid.add_row("", Text(f"and {len(at_work) - MOST_LANES_SHOWN} more of this round", style="dim"))
        return grid
    plan = Text("-", style="dim")
    if state.plan is not None:
        gain = f"  expects {wording.latency(state.plan.expected_gain_us)} less"
        plan = Text.assemble(
            one_line(state.plan.title, width - 7 - len(gain), ascii_only=ascii_only), (gain, "dim")
        )  # fmt: skip
    grid.add_row("Plan", plan)
    grid.add_row("Step", _steps(state.step, state.step_began_at, now, ascii_only))
    grid.add_row("", Text(one_line(state.detail, width - 7, ascii_only=ascii_only) or " ", style="dim"))
    return grid


def _lane(lane: LaneState, now: float, width: int, ascii_only: bool) -> Text:
    """One of several candidates: its step, and what it is about."""
    text = _steps(lane.step, lane.step_began_at, now, ascii_only)
    title = lane.plan.title if lane.plan is not None else ""
    text.append(f"  {one_line(title, max(0, width - len(text) - 2), ascii_only=ascii_only)}", style="dim")
    text.truncate(width)
    return text


def _lineage(lineage: Lineage, parent_id: str, width: int, ascii_only: bool) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", width=5, no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_row("From", path_line(lineage, parent_id, width - 7, ascii_only=ascii_only))
    return grid


def _steps(step: Step | None, began_at: float, now: float, ascii_only: bool) -> Text:
    done_mark, open_mark = ("#", ".") if ascii_only else ("●", "○")
    frames = _PLAIN_FRAMES if ascii_only else _FRAMES
    at = ROUND_STEPS.index(step) if step is not None else -1
    text = Text()
    for number in range(len(ROUND_STEPS)):
        if number == at:
            text.append(frames[int(now * 5) % len(frames)], style="bold cyan")
        else:
            text.append(done_mark if number < at else open_mark, style="cyan" if number < at else "dim")
    if step is not None:
        text.append(f"  {at + 1} of {len(ROUND_STEPS)}  ", style="dim")
        text.append(step.value, style="bold")
        text.append(f"  {wording.duration(now - began_at)}", style="dim")
    return text


def _left(state: RunState, now: float) -> str:
    elapsed = wording.duration(now - state.started_at)
    left = state.seconds_left(now)
    return f"{elapsed}, {wording.no_more_than(left)} left" if left is not None else elapsed


def _latencies(state: RunState, width: int, ascii_only: bool) -> Table:
    assert state.baseline is not None
    best_remark = f"round {state.best_round}" if state.best_round != BASELINE_ROUND else "the input"
    current = state.current if isinstance(state.current, Measured) else None
    remark = ""
    if state.current is not None:
        remark = f"round {state.current_round}" + ("" if current else f", {_kind(state)}")
    rows = [
        LatencyRow("input", state.baseline),
        LatencyRow("best", state.best, best_remark, "bold green" if state.best_round != BASELINE_ROUND else "bold"),
        LatencyRow("current", current, remark),
    ]
    return latency_table(rows, state.baseline, width, ascii_only=ascii_only)


def _kind(state: RunState) -> str:
    return wording.outcome_words(Outcome(state.current.kind)).label if state.current is not None else ""


def _rounds(state: RunState, most: int, width: int, ascii_only: bool) -> Table:
    """The last rounds, newest first."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="dim", width=5, no_wrap=True)
    table.add_column(width=18, no_wrap=True)
    table.add_column(justify="right", width=14, no_wrap=True)
    table.add_column(no_wrap=True)
    for ended in reversed(state.rounds[-most:]):
        attempt = ended.attempt
        words = wording.outcome_words(attempt.outcome)
        mark = words.plain_mark if ascii_only else words.mark
        table.add_row(
            f"{attempt.round}{attempt.lane}",
            Text(f"{mark} {words.label}", style=words.style),
            wording.latency(attempt.latency_us),
            Text(one_line(attempt.title or attempt.summary, max(8, width - 43), ascii_only=ascii_only)),
        )
    return table


def _gaps(state: RunState, width: int, ascii_only: bool) -> Table | None:
    """Where the best kernel's time could still be won."""
    if state.best is None or not state.best.profile.gaps:
        return None
    gaps = sorted(state.best.profile.gaps, key=lambda gap: -gap.cost_us)[:3]
    widest = max(gap.cost_us for gap in gaps)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, max_width=width - 40)
    table.add_column(justify="right", width=14, no_wrap=True)
    table.add_column(no_wrap=True)
    for gap in gaps:
        length = max(1, round(20 * gap.cost_us / widest)) if widest > 0 else 0
        bar = Text(("=" if ascii_only else "▬") * length, style="cyan")
        table.add_row(one_line(gap.name), wording.latency(gap.cost_us), bar)
    return table


def _spent(state: RunState, now: float, dot: str) -> Text:
    budget = state.budget
    parts = []
    if budget.usage.total_tokens or budget.unpriced_calls:
        parts.append(f"tokens {wording.tokens(budget.usage)}")
        parts.append(f"cost {wording.cost(budget.cost_usd, budget.unpriced_calls)}")
    else:
        parts.append("no model calls")
    if budget.device_s:
        parts.append(f"target {wording.duration(budget.device_s)}")
    if state.round == BASELINE_ROUND:
        parts.append(wording.duration(now - state.started_at))
    return Text(f" {dot} ".join(parts), style="dim")
