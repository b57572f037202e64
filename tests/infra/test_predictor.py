"""The predictor: what it prices, how often, for how long, and what is left of it afterwards."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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

ROOT = Path(__file__).resolve().parents[2]
SEED = load_seed("silu")
SOURCE = SEED.kernel_source
WIDER = SOURCE.replace("TILE_N = 512", "TILE_N = 1024")


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
    view = PlainProgress(console)
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
    assert any(re.fullmatch(r"\S+  round 3/9 plan: priced [012] of 3 kernels", line) for line in lines), lines
    assert any(re.fullmatch(r"\S+  what is left: priced 0 of 1 kernels", line) for line in lines), lines


def test_a_silent_wait_is_told_ever_less_often() -> None:
    class Idle:
        asked = priced = 0

    told: list[Event] = []
    with PlanningWatch(told.append, Idle(), first_s=0.1, every_s=0.05) as watch:
        watch.tell(StepBegan(1, Step.PLAN, "b"))
        time.sleep(1.2)
        watch.tell(StepBegan(1, Step.EXECUTE, "b"))
        ended = len(told)
        time.sleep(0.3)
    assert 2 <= ended <= 5 and len(told) in (ended, ended + 1), "after 0.1, 0.2, 0.4 and 0.8 s, and then no more"
    assert all(isinstance(e, StepNote) and "still at it, for" in e.detail and e.lane == "b" for e in told), told


def test_a_long_verification_says_that_it_goes_on_whatever_others_price() -> None:
    class Busy:
        asked, priced = 3, 0

    told: list[Event] = []
    with PlanningWatch(told.append, Busy(), first_s=60.0, every_s=0.05) as watch:
        watch.tell(StepBegan(2, Step.VERIFY, "a"))
        Busy.asked = 9
        watch.tell(StepNote(2, Step.VERIFY, "M128: 7 seeds", "a"))
        for _ in range(1000):
            if told:
                break
            time.sleep(0.01)
        watch.tell(StepBegan(2, Step.DECIDE, "a"))
        ended = len(told)
        time.sleep(0.3)
    assert ended and len(told) in (ended, ended + 1)
    for each in told:
        assert isinstance(each, StepNote) and (each.step, each.lane) == (Step.VERIFY, "a")
        assert each.detail.startswith("still at it, for ")


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


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_no_process_is_left_also_in_the_middle_of_a_kernel() -> None:
    endless = SOURCE.replace("    M, N = x.shape\n", "    M, N = x.shape\n    while True:\n        pass\n")
    predictor = Predictor(small(), "trn2")
    predictor([SOURCE])
    assert predictor([endless], 0.5) == {}
    running = workers()
    predictor.close()
    assert running and not workers()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_worker_ends_when_the_run_is_killed() -> None:
    program = (
        "import sys\nfrom tests.infra.test_predictor import *\n"
        "predict = Predictor(small(), 'trn2')\npredict([SOURCE])\nprint(*workers(), flush=True)\nsys.stdin.read()\n"
    )
    run = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    pids = [int(pid) for pid in run.stdout.readline().split()]
    run.kill()
    run.communicate()
    assert pids
    assert eventually(lambda: not any(map(alive, pids)))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_worker_that_died_is_said_by_name(predict: Predictor) -> None:
    predict([SOURCE])
    for worker in workers():
        os.kill(worker, signal.SIGKILL)
    with pytest.raises(TargetMisconfigured, match="the process that predicts latencies ended"):
        predict([WIDER])


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


def handed_over(predict: Predictor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From here on, how many kernels at a time; each takes as long as the one before."""
    sizes: list[int] = []

    def counted(worker: object, some: Sequence[object]) -> list[None]:
        sizes.append(len(some))
        return [None] * len(some)

    monkeypatch.setattr(predict, "_predict", counted)
    return sizes


def test_small_kernels_are_handed_over_several_at_a_time_and_large_ones_alone(predict, monkeypatch) -> None:
    wider = [SOURCE.replace("TILE_N = 512", f"TILE_N = {size}") for size in (1024, 1792, 3584, 7168)]
    predict([SOURCE])
    predict._each_s = 0.01
    sizes = handed_over(predict, monkeypatch)
    predict(wider)
    assert sum(sizes) == 4 and len(sizes) <= 2
    predict._rows = ROWS_AT_ONCE + 1
    sizes.clear()
    predict([source + "\nX = 1\n" for source in wider])
    assert sizes == [1] * 4


def test_many_kernels_are_handed_over_ever_fewer_at_a_time_and_never_more_than_a_message_s_time(predict, monkeypatch):
    """So that all workers are through at about the same time, and one that is lost takes little with it."""
    predict([SOURCE])
    monkeypatch.setattr(predict, "_rows", 100)
    monkeypatch.setattr(predict, "_workers", 2)
    taken: dict[int, int] = {}

    def counted(worker: object, some: Sequence[Any]) -> list[None]:
        taken[int(some[0].source.split()[-1].strip(")"))] = len(some)  # by its first one: threads say so in any order
        return [None] * len(some)

    monkeypatch.setattr(predict, "_predict", counted)
    for each_s, count, largest, smallest_s in (
        (0.018, 500, 213, SHORTEST_S),
        (0.02, 4000, 200, SHORTEST_S),
        (9.0, 5, 1, 9.0),
    ):
        taken.clear()
        monkeypatch.setattr(predict, "_each_s", each_s)
        predict([f"{SOURCE}\nX = {count, number}\n" for number in range(count)])
        sizes = [taken[first] for first in sorted(taken)]
        assert sum(sizes) == count and max(sizes) == largest and max(sizes) * each_s <= max(LONGEST_MESSAGE_S, each_s)
        assert sorted(sizes, reverse=True) == sizes
        assert all(size * each_s >= smallest_s for size in sorted(sizes)[2:]), "but for the last, none is a trifle"


def test_of_several_prices_asked_for_none_waits_for_a_worker_that_cannot_work(predict: Predictor) -> None:
    predict([SOURCE])
    for worker in workers():
        os.kill(worker, signal.SIGKILL)
    with pytest.raises(TargetMisconfigured, match="the process that predicts latencies ended"):
        predict([SOURCE.replace("TILE_N = 512", f"TILE_N = {size}") for size in (1024, 1792, 3584, 7168)])
