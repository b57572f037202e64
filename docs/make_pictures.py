"""Draws pictures of the docs from a real run:   python3 docs/make_pictures.py [RUN-ID]   (the latest, if none)

docs/pictures/live.svg      the live view, while the run goes on
docs/pictures/report.svg    what `show` says of it; its last lines are those that it ended with
"""

from __future__ import annotations

import io
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.terminal_theme import MONOKAI

import config
from accelopt_core.evaluation import Step
from accelopt_core.loop.events import Event, PlanMade, RoundEnded, RunStarted, StepBegan
from infra.journal import JournalError, JsonLines, replace_file
from infra.records import from_document, to_document
from infra.runs.run_folder import RunFolder, find_run
from infra.terminal.dashboard import draw
from infra.terminal.report import print_report, summary_of
from infra.terminal.run_state import RunState

ROOT = Path(__file__).resolve().parents[1]

PICTURES = ROOT / "docs" / "pictures"
WIDTH, WIDE = 100, 150
EVENTS = {kind.__name__: kind for kind in get_args(Event)}


def main(arguments: list[str]) -> int:
    os.chdir(ROOT)  # paths in the pictures are relative to it
    try:
        folder = find_run(config.RunSettings().checkpoints, arguments[0] if arguments else config.LATEST)
        PICTURES.mkdir(parents=True, exist_ok=True)
        save(live_picture(folder), "live.svg", "./run.sh")
        save(report_picture(folder), "report.svg", "python3 orchestrator.py show")
    except JournalError as error:
        print(f"make_pictures: {error}", file=sys.stderr)
        return 2
    return 0


def live_picture(folder: RunFolder) -> Console:
    told = events_of(folder)
    moment = middle_of(told)
    state = RunState()
    for at, event in told[: moment + 1]:
        state.apply(event, at)
    console = recording()
    console.print(draw(state, told[moment][0] + 0.7, width=WIDTH, height=40))
    return console


def report_picture(folder: RunFolder) -> Console:
    console = recording(WIDE)
    print_report(console, summary_of(folder))
    return console


def events_of(folder: RunFolder) -> list[tuple[float, Event]]:
    """(seconds since the first, event); what is no event, such as a stack trace, is left out."""
    attempts = {(each.round, each.lane, each.number): each for each in folder.attempts()}
    told: list[tuple[float, Event]] = []
    begin: datetime | None = None
    for record in JsonLines(folder.log).read():
        kind: Any = EVENTS.get(record.pop("event"))
        at = datetime.fromisoformat(record.pop("at"))
        begin = begin or at
        if kind is RoundEnded:  # its attempt is there by name: the run's folder has the whole of it
            said = record["attempt"]
            record["attempt"] = to_document(attempts[said["round"], said["lane"], said["number"]])
        if kind is not None:
            told.append(((at - begin).total_seconds(), from_document(kind, record, str(folder.log))))
    if not any(isinstance(event, RunStarted) for _, event in told):
        raise JournalError(f"{folder.log} holds no run: choose another one")
    return told


def middle_of(told: list[tuple[float, Event]]) -> int:
    """Where the last planned candidate began to be verified: there is most to see then."""
    planned = max((number for number, (_, event) in enumerate(told) if isinstance(event, PlanMade)), default=0)
    wanted = [
        number
        for number, (_, event) in enumerate(told)
        if number > planned and isinstance(event, StepBegan) and event.step is Step.VERIFY
    ][:1]
    return min(wanted[-1] + 1, len(told) - 1) if wanted else len(told) - 1


def recording(width: int = WIDTH) -> Console:
    return Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")


def save(console: Console, name: str, title: str) -> None:
    replace_file(PICTURES / name, console.export_svg(title=title, theme=MONOKAI))
    print((PICTURES / name).relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
