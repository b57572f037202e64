"""What may go wrong with a cluster, done to real processes: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Crashed, Evaluation, Measured, Step, TimedOut
from accelopt_core.ports import EvaluationRequest, TargetUnreachable
from accelopt_core.task import ShapePreset, Task
from infra.engines.engine import ANYWHERE, Command, Completed, Placement
from infra.engines.ray_engine import RayEngine
from infra.targets.local import LocalTarget
from infra.targets.on_engine import EngineTarget
from infra.targets.remembering import MeteredTarget
from tests.e2e import kernels
from tests.engines.cluster import Cluster, RayNode, running_cluster
from tests.processes import PATIENCE_S, alive, eventually

pytestmark = pytest.mark.extra("ray")
TASK = Task("sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 2048), ("T", 1))),), seeds=(0, 21))
REQUEST = EvaluationRequest(TASK, Candidate("c", kernels.FAST))
SLEEPS = (
    "import time; open({0!r}, 'a').write('x'); time.sleep(15 if len(open({0!r}).read()) == 1 else 0); print('done')"
)
"""Long the first time that it is carried out."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as made:
        yield made


@contextlib.contextmanager
def engine_of(cluster: Cluster, patience_s: float = 60.0) -> Iterator[RayEngine]:
    made = RayEngine(cluster.address, patience_s=patience_s)
    try:
        yield made
    finally:
        made.close()


def here() -> Evaluation:
    target = LocalTarget("simulator", "trn2")
    try:
        return target.evaluate(REQUEST, lambda step, detail: None)
    finally:
        target.close()


def worker_of(line: str) -> int:
    """The process id in `on HOST, worker PID`."""
    return int(line.strip().rpartition(" ")[2])


class Background:
    """A command in a thread of its own, with what is told of it."""

    def __init__(self, engine: RayEngine, command: Command, placement: Placement = ANYWHERE) -> None:
        self.told: list[str] = []
        self.done: list[Completed | BaseException] = []

        def ask() -> None:
            try:
                self.done.append(engine.carry_out(command, self.told.append, placement))
            except Exception as error:
                self.done.append(error)

        self._thread = threading.Thread(target=ask)
        self._thread.start()

    def wait(self, timeout_s: float = 120.0) -> Completed:
        self._thread.join(timeout_s)
        assert self.done, self.told
        (done,) = self.done
        assert isinstance(done, Completed), done
        return done


def test_a_worker_that_is_killed_under_an_evaluation_costs_nothing_but_time(cluster: Cluster) -> None:
    killed: list[int] = []
    used: list[float] = []

    def kill_the_first(step: Step, detail: str) -> None:
        if "worker" in detail and detail.startswith("on ") and not killed:
            killed.append(worker_of(detail))
            time.sleep(1.0)  # by then it is in the middle of it
            os.kill(killed[0], signal.SIGKILL)

    with engine_of(cluster) as engine:
        target = EngineTarget(engine, "simulator", "trn2")
        began = time.monotonic()
        result = MeteredTarget(target, used.append, target.clock).evaluate(REQUEST, kill_the_first)
        wall_s = time.monotonic() - began
    assert killed and result == here() and isinstance(result, Measured)
    assert len(used) == 1 and 0 < used[0] < wall_s - 0.9, "what was lost is not counted as device time"


def test_a_candidate_that_loses_every_worker_is_a_crash_and_ends(cluster: Cluster) -> None:
    killed: list[int] = []

    def kill(step: Step, detail: str) -> None:
        if detail.startswith("on "):
            killed.append(worker_of(detail))
            os.kill(killed[-1], signal.SIGKILL)

    with engine_of(cluster) as engine:
        result = EngineTarget(engine, "simulator", "trn2").evaluate(REQUEST, kill)
    assert isinstance(result, Crashed) and "worker was lost each time" in result.message
    assert len(killed) == 3


def test_what_never_ends_is_ended_with_all_that_it_started(cluster: Cluster, tmp_path: Path) -> None:
    left = tmp_path / "left"
    text = (
        "import subprocess, time; child = subprocess.Popen(['sleep', '600']);"
        f"open({str(left)!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    with engine_of(cluster) as engine:
        done = engine.carry_out(Command(("-c", text), 2.0, collect="result"), lambda line: None)
        assert done.late and done.result is None
        assert eventually(lambda: not alive(int(left.read_text())))
        assert engine.carry_out(Command(("-c", "print('next')"), 20.0), lambda line: None).result == "next\n"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["our process there", "the worker"])
def test_one_that_hangs_itself_is_gone_on_without(cluster: Cluster, what: str) -> None:
    """Stopped, so that it cannot keep the limit itself: its worker does, or else the driver."""
    stopped: list[int] = []

    def stop(line: str) -> None:
        if "worker" in line and not stopped:
            worker = worker_of(line)
            if what == "the worker":
                stopped.append(worker)
            else:
                assert eventually(lambda: bool(_children(worker, "infra.engines.agent")))
                stopped.extend(_children(worker, "infra.engines.agent"))
            os.kill(stopped[0], signal.SIGSTOP)

    try:
        with engine_of(cluster) as engine:
            done = engine.carry_out(Command(("-c", "import time; time.sleep(600)"), 2.0, collect="r"), stop)
            assert done.late
            assert engine.carry_out(Command(("-c", "print('next')"), 20.0), lambda line: None).result == "next\n"
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_judge_that_takes_too_long_is_a_timeout(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = kernels.FAST.replace("    out = nl.ndarray", "    while True:\n        pass\n    out = nl.ndarray", 1)
    monkeypatch.setattr("infra.targets.on_engine.judge_limit_s", lambda request: 3.0)
    with engine_of(cluster) as engine:
        result = EngineTarget(engine, "simulator", "trn2").evaluate(
            EvaluationRequest(TASK, Candidate("c", endless)), lambda step, detail: None
        )
    assert isinstance(result, TimedOut)


def _children(parent: int, words: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            if (
                int(path.read_text().rpartition(")")[2].split()[1]) == parent
                and words.encode() in (path.parent / "cmdline").read_bytes()
            ):
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def mortal() -> Iterator[Cluster]:
    """A cluster for one test."""
    with running_cluster() as made:
        yield made


def on_its_way(work: Background) -> Callable[[], bool]:
    return lambda: any("worker" in line for line in work.told)


def running_on(node: RayNode, work: Background) -> bool:
    """Whether its last worker is of that node."""
    return worker_of([line for line in work.told if "worker" in line and "note: on" in line][-1]) in node.processes()


@pytest.mark.slow
def test_a_node_that_is_lost_and_comes_back(mortal: Cluster, tmp_path: Path) -> None:
    with engine_of(mortal) as engine:
        assert engine.places == 2
        works = [Background(engine, Command(("-c", SLEEPS.format(str(tmp_path / str(n)))), 90.0)) for n in range(2)]
        assert all(eventually(on_its_way(work)) for work in works)
        assert eventually(lambda: all((tmp_path / str(n)).exists() for n in range(2)))
        hit = [running_on(mortal.other, work) for work in works]
        assert sorted(hit) == [False, True], "one on each"
        mortal.other.kill()
        assert works[hit.index(True)].wait().result == "done\n"
        mortal.other.start()
        assert eventually(lambda: len(engine.nodes()) == 2)
        assert eventually(lambda: engine.places == 2)
        back = next(node for node in engine.nodes() if node.id not in {works[hit.index(True)].done[0].node})
        done = engine.carry_out(Command(("-c", "print('back')"), 20.0), lambda line: None, Placement(back.id))
        assert done.result == "back\n"


@pytest.mark.slow
def test_the_head_is_restarted_under_an_evaluation(mortal: Cluster, tmp_path: Path) -> None:
    with engine_of(mortal) as engine:
        work = Background(engine, Command(("-c", SLEEPS.format(str(tmp_path / "first"))), 90.0))
        assert eventually((tmp_path / "first").exists)
        for node in mortal.nodes():  # a node without its head ends by itself, a minute later
            node.kill()
        time.sleep(2.0)
        mortal.start()
        assert work.wait().result == "done\n"
        assert any("out of reach" in line for line in work.told)
        target = EngineTarget(engine, "simulator", "trn2")
        assert target.evaluate(REQUEST, lambda step, detail: None) == here()


@pytest.mark.slow
def test_a_head_that_does_not_come_back_is_said_in_one_line(mortal: Cluster, tmp_path: Path) -> None:
    with engine_of(mortal, patience_s=5.0) as engine:
        work = Background(engine, Command(("-c", SLEEPS.format(str(tmp_path / "first"))), 90.0))
        assert eventually((tmp_path / "first").exists)
        for node in mortal.nodes():
            node.kill()
        work._thread.join(120)
        (done,) = work.done
        assert isinstance(done, TargetUnreachable) and "\n" not in str(done)


FILLS = """
import sys
import numpy, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
held = []
for size in (1_000_000, 120_000):
    try:
        while True:
            held.append(ray.put(numpy.zeros(size, dtype=numpy.uint8)))
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError):
        pass
print("full", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_an_object_store_that_is_full_is_waited_for(mortal: Cluster) -> None:
    fills = subprocess.Popen(
        [sys.executable, "-c", FILLS, mortal.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert fills.stdout is not None and fills.stdin is not None
        assert fills.stdout.readline() == "full\n"
        with engine_of(mortal) as engine:
            work = Background(engine, Command(("-c", "print('done')"), 30.0))
            assert eventually(lambda: any("object store is full" in line for line in work.told)), work.told
            fills.stdin.close()
            fills.wait(PATIENCE_S)
            assert work.wait().result == "done\n"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(fills.pid, signal.SIGKILL)
        fills.wait()


@pytest.mark.slow
def test_each_group_of_neuron_cores_is_an_actor_that_knows_its_cores() -> None:
    """No device is here: what is shown is who gets which cores, and that a group takes one command at a time."""
    text = "import os, time; print(os.environ['NKI_OPTIMIZER_CORES']); time.sleep(1)"
    with (
        running_cluster(other=('--resources={"neuron_cores": 4}', "--num-cpus=2")) as cluster,
        engine_of(cluster) as engine,
    ):
        assert engine.neuron_cores == 4
        works = [Background(engine, Command(("-c", text), 30.0), Placement(neuron_cores=2)) for _ in range(4)]
        done = [work.wait() for work in works]
        assert sorted(each.result for each in done) == ["0,1\n", "0,1\n", "2,3\n", "2,3\n"]
        workers = {each.where for each in done}
        assert len(workers) == 2, "an actor per group, for as long as the run"
        first = worker_of(done[0].where)
        os.kill(first, signal.SIGKILL)
        again = [Background(engine, Command(("-c", text), 30.0), Placement(neuron_cores=2)) for _ in range(2)]
        assert sorted(work.wait().result for work in again) == ["0,1\n", "2,3\n"]
