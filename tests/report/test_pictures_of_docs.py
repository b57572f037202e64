"""docs/make_pictures.py draws what the views of today look like, from a run's folder and its log."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from accelopt_core.candidate import Candidate
from accelopt_core.loop.events import BaselineMeasured, RoundEnded
from infra.runs.event_log import EventLog
from infra.runs.run_folder import RunFolder
from tests.infra.samples import manifest, run_events

SCRIPT = Path(__file__).parents[2] / "docs" / "make_pictures.py"


def make_pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_pictures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_are_drawn_from_a_run_as_it_is_kept(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest("run"), {"run": {"patience": 5}})
    with EventLog(folder.log) as log:
        for event in run_events():
            if isinstance(event, BaselineMeasured):
                folder.best(Candidate("input", "x = 0\n"), event.result)
            if isinstance(event, RoundEnded):
                folder.attempt(event.attempt)
            log.tell(event)
    folder.end("finished", "done")
    folder.close()
    drawing = make_pictures()
    live = drawing.live_picture(folder).export_text()
    assert "Round  3 of 10" in live and "Hoist the rhs load" in live and "of 9" in live
    assert "250.0 µs" in live, "the best as the run's folder has it"
    report = drawing.report_picture(folder).export_text()
    assert "finished: done" in report and "500.0 µs" in report
