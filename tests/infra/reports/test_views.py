"""What a person sees while a run goes on: the right numbers, within the window, steered by nobody else."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
import select
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from accelopt_core.candidate import lane_names
from accelopt_core.evaluation import Step
from accelopt_core.loop.events import (
    Ending,
    Event,
    LastCheck,
    Notice,
    PlanMade,
    RoundEnded,
    RoundStarted,
    RunEnded,
    StepBegan,
    StepNote,
)
from accelopt_core.ports import Usage
from infra.assembly.following import A_PERSON, interruptible
from infra.llm.retry import Stopping
from infra.runs.event_log import EventLog, Observers
from infra.terminal import wording
from infra.terminal.dashboard import LiveDashboard, draw, open_view
from infra.terminal.run_state import PlainProgress, RunState
from ka_extensions.outcome import Outcome
from tests.infra.samples import PLAN, measured, run_events
from tests.processes import PATIENCE_S

ROOT = Path(__file__).parents[3]
SIZES = [(80, 24), (80, 40), (60, 18), (40, 12), (200, 60)]


def state_after(events: list[Event], step_s: float = 10.0) -> RunState:
    state = RunState()
    for number, event in enumerate(events):
        state.apply(event, number * step_s)
    return state


def drawn(state: RunState, now: float, width: int = 80, height: int = 40, ascii_only: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, force_terminal=False)
    console.print(draw(state, now, width=width, height=height, ascii_only=ascii_only))
    return console.file.getvalue()


def test_it_shows_what_the_run_is_about_and_how_it_stands() -> None:
    events = [*run_events(3), RoundStarted(4, "r001t1", 250.0), PlanMade(4, PLAN), StepNote(4, Step.VERIFY, "seed 42")]
    picture = drawn(state_after(events), 10.0 * len(events))
    for wanted in ("4 of 10", "Hoist the rhs load", "5 of 9", "seed 42", "500.0 µs", "250.0 µs", "2.00x", "40.0 %",
                   "tokens 3,000 in, 300 out", "cost $0.75", "input → r001t1*"):  # fmt: skip
        assert wanted in picture, wanted


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_at_every_moment_it_fits_the_window(width: int, height: int, ascii_only: bool) -> None:
    state = RunState()
    long = "a very long word " * 20
    events = [*run_events(10), RoundStarted(10, "x", 1e9), StepNote(10, Step.PLAN, long), StepBegan(11, Step.VERIFY)]
    for number, event in enumerate(events):
        state.apply(event, number * 100.0)
        picture = drawn(state, number * 100.0, width, height, ascii_only)
        assert max(len(line) for line in picture.splitlines()) <= width
        if height >= 24:
            assert len(picture.splitlines()) < height
        if ascii_only:
            inside = re.sub("[╭╮╰╯│─━╸╺µ…]", "", picture)  # rich sees to frame and bar, bootstrap.enter to µ
            assert inside.isascii(), inside


def wide_events() -> list[Event]:
    """A round with two candidates under way, after one that was won."""
    return [
        *run_events(1), RoundStarted(2, "r001t1", 250.0), StepBegan(2, Step.PLAN, "a"), PlanMade(2, PLAN, "a"),
        PlanMade(2, replace(PLAN, title="Widen the rows"), "b"), StepBegan(2, Step.EXECUTE, "b"),
        StepNote(2, Step.VERIFY, "seed 42", "a"),
    ]  # fmt: skip


def test_candidates_side_by_side_have_a_line_each() -> None:
    lines = drawn(state_after(wide_events()), 100.0).splitlines()
    (a,) = (line for line in lines if "Try a" in line)
    (b,) = (line for line in lines if "Try b" in line)
    assert "compile and verify" in a and "Hoist the rhs load" in a
    assert "execute" in b and "Widen the rows" in b
    for width, height in SIZES:
        picture = drawn(state_after(wide_events()), 100.0, width, height)
        assert max(len(line) for line in picture.splitlines()) <= width


def test_of_a_hundred_candidates_those_at_work_are_shown_and_the_others_counted() -> None:
    names = lane_names(100)
    waiting: list[Event] = [PlanMade(2, PLAN, name) for name in names]
    at_work: list[Event] = [StepBegan(2, Step.EXECUTE, name) for name in names[90:92]]
    state = state_after([*run_events(1), RoundStarted(2, "r001t1", 250.0), *waiting, *at_work])
    for width, height in SIZES:
        picture = drawn(state, 2000.0, width, height)
        if width >= 60:
            assert re.findall(r"^│    (\w\w)  ", picture, re.M) == ["aa", "ab", "ac", "ad", names[90], names[91]]
        assert "and 94 more" in picture
        assert height < 24 or len(picture.splitlines()) < height


def test_a_winner_that_was_dropped_never_looks_like_the_best() -> None:
    state = state_after([*run_events(3), LastCheck("r001t1", measured(250.0), False, "wrong")])
    assert state.best_id == "r003t1" and state.best is not None and state.best.latency_us == 251.0
    assert "dropped r001t1" in drawn(state, 0.0)
    told: list[Event] = []
    for event in run_events(3):
        if isinstance(event, RoundEnded) and event.attempt.id == "r001t1":
            attempt = replace(event.attempt, outcome=Outcome.INCORRECT, last_check=measured(250.0))
            event = replace(event, attempt=attempt)
        told.append(event)
    assert state_after(told).best_id == "input"
    told.append(LastCheck("r001t1", measured(250.0), False, "wrong"))
    state = state_after(told)
    assert state.best_id == "r003t1" and "dropped r001t1" in drawn(state, 0.0)


def test_neither_a_last_check_nor_rounds_of_before_an_interruption_count_for_the_time_left() -> None:
    events = [event for event in run_events(2) if not isinstance(event, RoundStarted)]
    state = state_after([*events, RoundStarted(3, "r001t1", 250.0)])
    assert state.rounds_done == 2 and state.seconds_left(1e6) is None
    events = [*run_events(10), StepBegan(11, Step.VERIFY)]
    picture = drawn(state_after(events), 0.0)
    assert "checking the winner on every seed" in picture and "left" not in picture


@pytest.mark.parametrize(
    ("rounds", "limit_h", "now", "left"),
    [(0, None, 0, None), (1, None, 0, 900.0), (2, None, 0, 800.0), (1, 0.1, 60.0, 300.0), (10, None, 0, 0.0)],
)
def test_time_left_goes_by_the_rounds_so_far(rounds, limit_h, now, left) -> None:
    state = RunState()
    events = list(run_events(rounds))
    state.apply(type(events[0])(**(vars(events[0]) | {"max_hours": limit_h})), 0.0)  # type: ignore[call-arg]
    state.round_seconds = [100.0] * rounds
    for event in events:
        if type(event).__name__ == "RoundEnded":
            state.rounds.append(event)  # type: ignore[arg-type]
    state.round = rounds
    assert state.seconds_left(now) == left


@pytest.mark.parametrize(
    ("kind", "terminal", "environment", "expected"),
    [
        ("auto", True, {}, LiveDashboard),
        ("auto", True, {"CI": "true"}, PlainProgress),
        ("auto", True, {"TERM": "dumb"}, PlainProgress),
        ("auto", False, {}, PlainProgress),
        ("plain", True, {}, PlainProgress),
        ("quiet", True, {}, PlainProgress),
        ("live", False, {}, LiveDashboard),
    ],
)
def test_the_live_view_is_for_those_who_can_watch(kind, terminal, environment, expected) -> None:
    term = {"TERM": environment.get("TERM", "xterm")}
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80, _environ=term)
    view = open_view(kind, console, environment)
    view.close()
    assert type(view) is expected


LIVE = """
import os, sys, time
from rich.console import Console
from accelopt_core.loop.events import Notice
from infra.terminal.dashboard import open_view
from tests.infra.samples import run_events
console = Console()
view = open_view("auto", console, {})
for event in run_events(5):
    view.tell(event)
    time.sleep(0.02)
view.tell(Notice("careful", "warning"))
view.close()
print("the end")
"""


def test_on_a_real_terminal_it_clears_itself_away_and_gives_the_cursor_back() -> None:
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30", "PYTHONPATH": str(ROOT)}
    for name in ("NO_COLOR", "CI"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", LIVE], cwd=ROOT, stdin=child, stdout=child, stderr=child, env=environment
    )
    os.close(child)
    output = b""
    while select.select([parent], [], [], 30)[0]:
        try:
            chunk = os.read(parent, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not chunk:
            break
        output += chunk
    os.close(parent)
    text = output.decode()
    assert process.wait(PATIENCE_S) == 0, text
    assert "round" in text.lower() and "careful" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # hidden and shown again
    assert text.rstrip().endswith("the end")
    assert "Traceback" not in text


def plain_lines(events: list[Event], quiet: bool = False, seconds_each: int = 0) -> list[str]:
    """`seconds_each`: what an event takes."""
    console = Console(file=io.StringIO(), width=80)
    clock = itertools.count(0, seconds_each)
    began = datetime(2026, 11, 20, 12, 54, 18)
    view = PlainProgress(console, quiet=quiet, now=lambda: began + timedelta(seconds=next(clock)))
    for event in events:
        view.tell(event)
    view.close()
    return console.file.getvalue().splitlines()


def test_a_round_is_a_line_with_the_time_and_a_step_is_one_where_it_takes_long() -> None:
    lines = plain_lines([*run_events(2), RunEnded(Ending.FINISHED, "all rounds are done")])
    assert all(line.startswith("12:54:18  ") for line in lines)
    now = "simulated 250.0 µs (200.0 to 275.0)"
    held = "a range that held 80 % of 149 measured kernels; 13 % by priors"
    said = f"simulated 500.0 µs (400.0 to 550.0), 20.0 % of the bound; {held}"
    assert [line[10:].partition("; tokens")[0] for line in lines[1:]] == [
        f"input kernel: {said}", f"round 1/10: improved at {now}; best {now} (2.00x)",
        f"round 2/10: wrong; best {now} (2.00x)",
    ]  # fmt: skip
    assert "; tokens 1,000 in, 100 out; cost $0.25: " in lines[2] and lines[2].endswith(": Hoist the rhs load")
    slow = "\n".join(plain_lines(wide_events(), seconds_each=30))
    assert "round 2b/10: execute" in slow and "round 2a/10: compile and verify: seed 42" in slow


def test_ctrl_c_says_which_step_it_lets_finish() -> None:
    heard: list[Event] = []

    class Ear:
        def tell(self, event: Event) -> None:
            heard.append(event)

    observers = Observers(Ear())
    observers.tell(StepBegan(3, Step.VERIFY))
    with interruptible(observers, A_PERSON, Stopping()) as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked()
    notice = heard[-1]
    assert isinstance(notice, Notice) and f"finishing this step ({Step.VERIFY.value})" in notice.message


def test_one_event_is_one_line_however_hostile_and_quiet_tells_warnings_only() -> None:
    hostile = "wrong\n\x1b[2J\x1b]0;title\x07" + "x" * 500 + " [bold red]markup[/] :smile:"
    (line,) = plain_lines([StepNote(1, Step.VERIFY, hostile)], seconds_each=30)
    assert "\x1b" not in line and "\x07" not in line
    assert "[bold red]markup[/] :smile:" in line and "\\x1b[2J" in line
    lines = plain_lines([*run_events(2), Notice("hello"), Notice("the disk is nearly full", "warning")], quiet=True)
    assert lines == ["12:54:18  warning: the disk is nearly full"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (wording.duration(7.9), "0:07"),
        (wording.duration(754), "12:34"),
        (wording.duration(3723), "1:02:03"),
        (wording.duration(-1), "0:00"),
        (wording.no_more_than(59), "under a minute"),
        (wording.roughly(360), "6 min"),
        (wording.roughly(9000), "2.5 h"),
        (wording.latency(None), "-"),
        (wording.latency(12345.67), "12,345.7 µs"),
        (wording.cost(0.0, 0), "$0.00"),
        (wording.cost(0.0, 1), "unknown (1 call of unknown price)"),
        (wording.cost(1.5, 2), "$1.50 + 2 calls of unknown price"),
        (wording.tokens(Usage(1000, 50, 200, 30)), "1,230 in (200 from cache), 50 out"),
        (wording.one_line("a\n  b\tc", 80), "a b c"),
        (wording.one_line("abcdef", 4, ascii_only=True), "a..."),
    ],
)
def test_words(said: str, expected: str) -> None:
    assert said == expected


def test_every_outcome_has_its_words() -> None:
    assert set(wording.OUTCOMES) == set(Outcome)


def test_the_log_holds_every_event_and_never_stops_a_run(tmp_path: Path) -> None:
    import json

    path = tmp_path / "run.log"
    with EventLog(path) as log:
        for event in run_events(2):
            log.tell(event)
        log.trace("Traceback: ...")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["event"] for record in records] == [*(type(e).__name__ for e in run_events(2)), "Trace"]
    assert records[0]["task"] == "matmul" and records[-2]["attempt"]["round"] == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_log_on_a_full_disk_keeps_quiet_and_keeps_the_reason() -> None:
    log = EventLog(Path("/dev/full"))
    for event in run_events(1):
        log.tell(event)
    log.close()
    assert log.failure is not None and "space" in str(log.failure)
