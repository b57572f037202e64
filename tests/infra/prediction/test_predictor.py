"""The predictor: what it prices, how often, for how long, and what is left of it afterwards."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from accelopt_core.evaluation import Step
from accelopt_core.loop.events import Event, PlanMade, RunStarted, StepBegan, StepNote
from accelopt_core.ports import TargetMisconfigured, TaskFault
from accelopt_core.task import ALONE, ShapePreset, Task
from accelopt_core.toolchain import TensorArgument
from infra.prediction.predictor import LONGEST_MESSAGE_S, ROWS_AT_ONCE, SHORTEST_S, Predictor
from infra.prediction.progress import PlanningWatch
from infra.prediction.worker import Prices
from infra.simulator.toolchain import SimulatorToolchain
from infra.tasks.seed_index import load_seed
from infra.terminal.run_state import PlainProgress
from tests.infra.samples import PLAN, TARGET
from tests.processes import alive, eventually
from tests.slow import without

ROOT = Path(__file__).resolve().parents[3]
SEED = load_seed("silu")
SOURCE = SEED.kernel_source
WIDER = SOURCE.replace("TILE_N = 512", "TILE_N = 1024")
IN_PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


def small(**changes) -> Task:
    preset = ShapePreset("only", (("M", 128), ("N", 7168)))
    return dataclasses.replace(SEED.task(), presets=(preset,), seeds=(0,), **changes)


@pytest.fixture
def predict() -> Iterator[Predictor]:
    predictor = Predictor(small(), "trn2")
    yield predictor
    predictor.close()


def workers() -> set[int]:
    """Processes of this one that price kernels."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            command = (status.parent / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue  # it ended meanwhile
        if parent == os.getpid() and b"infra.prediction.worker" in command:
            found.add(int(status.parent.name))
    return found


def test_planning_that_lasts_says_how_far_it_is_in_the_plain_view(predict: Predictor) -> None:
    """The kernels are real, the planner is not: what is watched is the predictor."""
    sources = [SOURCE.replace("TILE_N = 512", f"TILE_N = {512 * n}") for n in (1, 2, 7, 14)]
    predict(sources[:1])
    console = Console(file=io.StringIO(), width=100)
    hours = itertools.count(1)
    view = PlainProgress(console, now=lambda: datetime(2026, 11, 20, next(hours) % 24))
    view.tell(RunStarted("r", "silu", "M128", "k.py", TARGET, "catalogue", 9, 5, "f"))
    with PlanningWatch(view.tell, predict, first_s=0.0, every_s=0.01) as watch:
        watch.tell(StepBegan(3, Step.PLAN))
        predict(sources)
        watch.tell(PlanMade(3, PLAN))
        with watch.over("what is left"):
            predict(sources)
            predict([SOURCE.replace("TILE_N = 512", "TILE_N = 1792")])
    assert (predict.asked, predict.priced) == (5, 5)
    lines = console.file.getvalue().splitlines()
    assert any(re.fullmatch(r"\S+  round 3/9: plan: priced [012] kernels", line) for line in lines), lines
    assert any(re.fullmatch(r"\S+  what is left: priced 0 kernels", line) for line in lines), lines


class Ticks:
    """A clock that goes on as often as somebody waits for the end, which comes after a minute."""

    now = 0.0

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now > 60.0


@pytest.mark.parametrize(("step", "at_s"), [(Step.PLAN, (5, 25)), (Step.VERIFY, (10, 30))])
def test_a_silent_wait_is_told_ever_less_often_whatever_others_price(monkeypatch, step, at_s) -> None:
    told: list[Event] = []
    ticks, others = Ticks(), SimpleNamespace(asked=3, priced=0)
    monkeypatch.setattr("infra.prediction.progress.time", SimpleNamespace(monotonic=lambda: ticks.now))
    watch = PlanningWatch(told.append, others)
    watch._closed = ticks
    watch.tell(StepBegan(2, step, "a"))
    others.asked = 3 if step is Step.PLAN else 9
    watch._watch()
    assert told == [StepNote(2, step, f"still at it, for {seconds} s", "a") for seconds in at_s]


def test_programs_are_told_apart_at_as_few_shapes_as_it_takes() -> None:
    shapes = tuple(ShapePreset(name, (("M", 128), ("N", n))) for name, n in (("small", 7168), ("full", 14336)))
    predictor = Predictor(dataclasses.replace(small(), presets=shapes), "trn2")
    in_other_words = SOURCE.replace("TILE_N", "COLUMNS")
    at_full_only = SOURCE.replace("M, N = x.shape", "M, N = x.shape\n    TILE_N = 512 if N < 14336 else 1024")
    broken = SOURCE.replace("nl.silu", "nl.nothing")
    some = [SOURCE, WIDER, in_other_words, at_full_only, broken, f"# again\n{SOURCE}"]
    try:
        assert predictor.programs([SOURCE, f"# again\n{SOURCE}"]) == dict.fromkeys([SOURCE, some[-1]], ())
        found = predictor.programs(some)
    finally:
        predictor.close()
    assert found[SOURCE] == found[in_other_words] == found[some[-1]] and len(found[SOURCE]) == 2
    assert found[at_full_only][0] == found[SOURCE][0] and found[at_full_only][1] != found[SOURCE][1]
    assert len(found[WIDER]) == 1 and found[WIDER] != found[SOURCE][:1] and found[broken] == ()


def test_the_same_text_is_priced_once(predict: Predictor) -> None:
    price = predict([SOURCE])
    for worker in workers():
        os.kill(worker, signal.SIGKILL)
    assert predict([SOURCE, SOURCE]) == price and predict.asked == 1


def test_what_the_time_does_not_suffice_for_is_left_out_and_there_later(predict: Predictor) -> None:
    variants = [SOURCE.replace("TILE_N = 512", f"TILE_N = {width}") for width in (512, 1024, 1792, 3584, 7168)]
    assert predict(variants, 0.0) == {}
    assert set(predict(variants)) == set(variants)


@IN_PROC
def test_no_process_is_left_also_in_the_middle_of_a_kernel() -> None:
    endless = SOURCE.replace("    M, N = x.shape\n", "    M, N = x.shape\n    while True:\n        pass\n")
    predictor = Predictor(small(), "trn2")
    predictor([SOURCE])
    assert predictor([endless], 0.5) == {}
    running = workers()
    predictor.close()
    assert running and not workers()


@IN_PROC
def test_a_worker_ends_when_the_run_is_killed() -> None:
    program = (
        "import sys\nfrom tests.infra.prediction.test_predictor import *\n"
        "predict = Predictor(small(), 'trn2')\npredict([SOURCE])\nprint(*workers(), flush=True)\nsys.stdin.read()\n"
    )
    run = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    pids = [int(pid) for pid in run.stdout.readline().split()]
    run.kill()
    run.communicate()
    assert pids
    assert eventually(lambda: not any(map(alive, pids)))


@IN_PROC
def test_a_worker_that_died_is_said_by_name(predict: Predictor) -> None:
    predict([SOURCE])
    for worker in workers():
        os.kill(worker, signal.SIGKILL)
    with pytest.raises(TargetMisconfigured, match="the process that predicts latencies ended"):
        predict([SOURCE.replace("TILE_N = 512", f"TILE_N = {size}") for size in (1024, 1792, 3584, 7168)])


def test_a_reference_that_fails_is_the_task_s_fault() -> None:
    predictor = Predictor(small(reference_source="def get_inputs():\n    raise ValueError('none today')\n"), "trn2")
    with pytest.raises(TaskFault, match="none today|forward"):
        predictor([SOURCE])
    predictor.close()


SHAPES = [[TensorArgument((128, width), "float32")] for width in (1024 * 4, 1024 * 7)]
COUNTS = SOURCE.replace("TILE_N = 512", "SEEN = []").replace(
    "M, N = x.shape", "M, N = x.shape\n    SEEN.append(1)\n    TILE_N = 512 * len(SEEN)"
)
HOSTILE = {
    "it does not compile": SOURCE + "\nraise ValueError('never')\n",
    "it ends its process": SOURCE + "\nimport os\nos._exit(0)\n",
    "it ends its process well": SOURCE + "\nimport sys\nsys.exit(0)\n",
    "it changes the tracer": SOURCE
    + "\nfrom nki_sim.tracing import session\nsession.Tracer.emit = lambda *given: None\n",
    "it writes into open files": SOURCE
    + "\nimport os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, bytes(99))\n"
    "    except OSError: pass\n",
}


@pytest.mark.parametrize("name", without("it ends its process well", "it writes into open files", of=HOSTILE))
def test_kernels_that_share_a_process_have_the_prices_that_each_has_alone(name: str) -> None:
    """What a module binds is there anew for each shape; what a kernel does to the tool, no other pays for."""
    some = [WIDER, HOSTILE[name], COUNTS, SOURCE]
    together = Prices(toolchain := SimulatorToolchain("trn2"), SHAPES, 60.0, ALONE)
    try:
        toolchain.compile(SOURCE, SHAPES[0], 60.0)
        alone = [together.of([source])[0][0] for source in some]
        assert None not in (alone[0], alone[3]) and alone[2] == alone[3]
        assert together.of(some)[0] == alone
    finally:
        toolchain.close()


def test_a_kernel_that_fails_at_one_of_its_shapes_has_no_price() -> None:
    narrow = [TensorArgument((128, 100), "float32")]
    toolchain = SimulatorToolchain("trn2")
    try:
        for shapes in ([narrow, *SHAPES], [*SHAPES, narrow]):
            assert Prices(toolchain, shapes, 60.0, ALONE).of([SOURCE, WIDER]) == ([None, None], 0)
        assert Prices(toolchain, SHAPES, 60.0, ALONE).of([SOURCE])[1] > 0
    finally:
        toolchain.close()


@pytest.mark.parametrize(
    ("rows", "each_s", "count", "largest", "smallest_s"),
    [
        (100, 0.018, 500, 213, SHORTEST_S),
        (100, 0.02, 4000, 200, SHORTEST_S),
        (100, 9.0, 5, 1, 9.0),
        (100, 0.01, 4, 2, 0.0),
        (ROWS_AT_ONCE + 1, 0.01, 4, 1, 0.0),
    ],
)
def test_kernels_are_handed_over_ever_fewer_at_a_time(monkeypatch, rows, each_s, count, largest, smallest_s) -> None:
    """So that all workers are through at about the same time, and one that is lost takes little with it."""
    predict = Predictor(small(), "trn2")
    for name, value in (("_rows", rows), ("_each_s", each_s), ("_workers", 2)):
        monkeypatch.setattr(predict, name, value)
    monkeypatch.setattr(predict._threads, "submit", lambda work: None)
    predict._ask([f"X = {number}\n" for number in range(count)], False)
    sizes = [len(some) for some in iter(predict._next, [])]
    predict.close()
    assert sum(sizes) == count and max(sizes) == largest and max(sizes) * each_s <= max(LONGEST_MESSAGE_S, each_s)
    assert sorted(sizes, reverse=True) == sizes
    assert all(size * each_s >= smallest_s for size in sorted(sizes)[2:]), "but for the last, none is a trifle"
