"""`import nki_optimizer` in a user's program: optimize, evaluate, what is told on the way, and going on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nki_optimizer import (
    BaselineRejected,
    Ending,
    Measured,
    Outcome,
    SettingsError,
    TaskFault,
    TaskInvalid,
    evaluate,
    evaluation,
    events,
    optimize,
)
from tests.e2e.kernels import BROKEN, SLOW, WRONG
from tests.e2e.run import KEYS, ROOT, orchestrate
from tests.processes import PATIENCE_S

INPUTS = [(256, 2048), (128, 2048)]


def add_rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x + np.tile(y, (x.shape[0] // y.shape[0], 1))


def subtract_rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x - np.tile(y, (x.shape[0] // y.shape[0], 1))


def fails(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    raise RuntimeError("no such table")


@pytest.fixture
def optimized(tmp_path: Path) -> Callable[..., Outcome]:
    """`optimize` with everything kept below `tmp_path`."""
    (tmp_path / "mine.py").write_text(SLOW)

    def call(kernel: Any = tmp_path / "mine.py", reference: Any = add_rows, **rest: Any) -> Outcome:
        kept = {"checkpoints": tmp_path / "checkpoints", "memory": tmp_path / "memory.json"}
        given = {"inputs": INPUTS} if callable(reference) else {}
        return optimize(kernel, reference, **{**kept, "provider": "catalogue", "rounds": 2, **given, **rest})

    return call


@pytest.mark.slow
def test_a_function_stopped_after_its_first_round_is_gone_on_with_by_the_command(optimized, tmp_path, capfd) -> None:
    told: list[events.Event] = []
    first = optimized(
        on_event=told.append, should_stop=lambda: any(isinstance(each, events.RoundEnded) for each in told)
    )
    assert (first.ending, {attempt.round for attempt in first.attempts}) == (Ending.INTERRUPTED, {1})
    assert first.improved and first.speedup > 1 and first.best.latency_us < first.baseline.latency_us
    assert first.source == (first.folder / "best_kernel.py").read_text()
    assert first.diff == (first.folder / "best.diff").read_text()
    kinds = [type(each) for each in told]
    assert kinds[0] is events.RunStarted and kinds[-1] is events.RunEnded and events.PlanMade in kinds
    assert capfd.readouterr() == ("", ""), "a library prints nothing"
    (tmp_path / "mine.py").unlink()
    gone_on = orchestrate("--resume", first.run_id, "--json", folder=tmp_path)
    assert gone_on.status == 0, gone_on.errors
    document = json.loads(gone_on.output)
    assert document["run_id"] == first.run_id and document["status"] == "finished"
    assert document["attempts"][0]["latency_us"] == first.attempts[0].latency_us
    assert [each["event"] for each in gone_on.events()].count("RunStarted") == 2
    assert "--- mine.py" in gone_on.errors, "people read standard error"


def test_what_a_listener_raises_ends_the_run_saved_and_is_raised(optimized, tmp_path) -> None:
    """In a thread beside the first: no signal may be handled there."""
    caught: list[BaseException] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.BaselineMeasured):
            raise RuntimeError("the caller's own trouble")

    def call() -> None:
        try:
            optimized(on_event=listen, run_id="r1")
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(120)
    assert [str(error) for error in caught] == ["the caller's own trouble"]
    manifest = json.loads((tmp_path / "checkpoints" / "r1" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"


def test_a_kernel_that_is_wrong_is_rejected_with_its_verdict(optimized: Callable[..., Outcome]) -> None:
    with pytest.raises(BaselineRejected, match="wrong") as caught:
        optimized(reference=subtract_rows)
    assert isinstance(caught.value.evaluation, evaluation.Incorrect)


@pytest.mark.parametrize(
    ("source", "kind"), [(SLOW, Measured), (WRONG, evaluation.Incorrect), (BROKEN, evaluation.CompileFailed)]
)
def test_one_kernel_is_judged(tmp_path: Path, source: str, kind: type) -> None:
    (tmp_path / "mine.py").write_text(source)
    steps: list[evaluation.Step] = []
    verdict = evaluate(tmp_path / "mine.py", add_rows, inputs=INPUTS, on_step=lambda step, detail: steps.append(step))
    assert type(verdict) is kind and evaluation.Step.VERIFY in steps
    if isinstance(verdict, Measured):
        assert verdict.simulated and verdict.profile.gaps


def test_a_reference_that_fails_is_no_fault_of_the_kernel_s(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SLOW)
    with pytest.raises(TaskFault, match="no such table"):
        evaluate(tmp_path / "mine.py", fails, inputs=INPUTS)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: optimize("k.py", roundz=3), SettingsError, "unknown setting roundz: did you mean rounds"),
        (lambda: optimize("k.py", rounds="3"), SettingsError, "argument rounds: need a whole number, not str '3'"),
        (lambda: optimize("k.py", rounds=0), SettingsError, "argument rounds: 0 must be at least 1"),
        (lambda: optimize("k.py", api_key="sk-1"), SettingsError, "api_key is not a setting: keys are read from the"),
        (lambda: optimize("k.py", view="live"), SettingsError, "view is for the command line"),
        (lambda: optimize("k.py", in_place=True), SettingsError, "in_place is for the command line"),
        (lambda: optimize(add_rows), SettingsError, "kernel: give the path of its file, not a function"),
        (lambda: optimize("k.py", kernel="k.py"), TypeError, "multiple values"),
        (lambda: optimize("k.py", "r.py", problem="r.py"), SettingsError, "problem: optimize has it twice"),
        (lambda: optimize("k.py", "r.py", inputs=INPUTS), SettingsError, "inputs: only a reference that is a plain"),
        (lambda: optimize(None, add_rows, inputs=INPUTS), SettingsError, "reference: of which kernel"),
        (lambda: optimize("k.py", lambda x: x, inputs=INPUTS), TaskInvalid, "a lambda has no name"),
        (lambda: evaluate("k.py", rounds=3), SettingsError, "rounds is of runs"),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused(call: Callable[[], object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_a_program_with_files_of_our_names_keeps_them(tmp_path: Path) -> None:
    """As in a user's folder: `config.py` there is theirs, before and after; no `__main__` guard is needed."""
    (tmp_path / "config.py").write_text("MINE = 1\n")
    (tmp_path / "mine.py").write_text(WRONG)
    (tmp_path / "program.py").write_text(
        f"import sys\nsys.path.insert(1, {str(ROOT)!r})\n"
        "import nki_optimizer\nassert 'numpy' not in sys.modules and 'infra' not in sys.modules\n"
        "from nki_optimizer import evaluate\nimport config\nassert config.MINE == 1\n"
        "import numpy as np\n\n\ndef subtract(x, y):\n    return x - np.tile(y, (2, 1))\n\n\n"
        "print(evaluate('mine.py', subtract, inputs=[(256, 2048), (128, 2048)]).kind)\n"
        "import config\nassert config.MINE == 1\n"
    )
    clean = {name: value for name, value in os.environ.items() if name not in KEYS}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (0, "measured\n"), done.stderr
