"""What a Ray cluster costs and gains against this machine alone, on two real nodes of one CPU each, here.

    python benchmarks/engine_overhead.py [--kernels 500] [--evaluations 20]

Pricing: the same kernels on one worker and on two of the same cluster, in turns, in one run; the efficiency is the time
on one over twice the time on two. On two cores, of which the nodes, the cluster's own processes and whoever asks want
their share, it can only be lower than between machines. The machine must be quiet: elapsed time is what counts here.

Evaluations: one kernel, here and there in turns; the overhead is what passes in elapsed time beside the judge's process
(which the node clocks), here and there, and of what is left the medians differ by what the cluster costs.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Measured
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ShapePreset, Task
from infra.engines.engine import ANYWHERE, Command, Completed, Engine, OnLine, Placement, Service
from infra.engines.local import LocalEngine
from infra.engines.ray_engine import RayEngine
from infra.prediction.predictor import Predictor
from infra.targets.on_engine import EngineTarget
from infra.tasks.seed_index import load_seed
from tests.e2e import kernels
from tests.engines.cluster import Cluster, running_cluster

TURNS = 6
WARMING = 128
"""Kernels priced beforehand, for each worker: as long as one is still starting, the other takes what is there."""
COMMANDS = 200
_IDLE_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Ray against this machine alone.")
    parser.add_argument("--kernels", type=int, default=500)
    parser.add_argument("--evaluations", type=int, default=20)
    options = parser.parse_args()
    with running_cluster() as cluster:
        engine = RayEngine(cluster.address)
        try:
            attach_s = _timed(engine.begin)
            print(f"attached in {attach_s:.1f} s; {engine.places} places")
            evaluations(engine, cluster, options.evaluations)
            if options.kernels:
                pricing(engine, cluster, options.kernels)
        finally:
            engine.close()
    return 0


# --- evaluations -----------------------------------------------------------------------------------------


class Clocked:
    """An engine that notes what each command took beside its own process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.beside_s: list[float] = []
        self.sent_bytes: list[int] = []

    @property
    def places(self) -> int:
        return self._engine.places

    def begin(self) -> None:
        self._engine.begin()

    def carry_out(self, command: Command, told: OnLine, placement: Placement = ANYWHERE) -> Completed:
        lines: list[str] = []

        def hear(line: str) -> None:
            lines.append(line)
            told(line)

        began = time.monotonic()
        done = self._engine.carry_out(command, hear, placement)
        self.beside_s.append(time.monotonic() - began - done.seconds)
        texts = [command.input, *command.files.values(), *lines, done.result or ""]
        self.sent_bytes.append(sum(len(text.encode()) for text in texts))
        return done

    def open(self, what: str, argv: tuple[str, ...], first: Mapping[str, Any]) -> Service:
        return self._engine.open(what, argv, first)

    def close(self) -> None:
        self._engine.close()


def evaluations(engine: RayEngine, cluster: Cluster, count: int) -> None:
    task = Task("sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 2048), ("T", 1))),), seeds=(0,))
    local = LocalEngine()
    clocked = {"here": Clocked(local), "on Ray": Clocked(engine)}
    targets = {name: EngineTarget(each, "simulator", "trn2") for name, each in clocked.items()}
    wall: dict[str, list[float]] = {name: [] for name in targets}
    request = EvaluationRequest(task, Candidate("c", kernels.FAST))
    for turn in range(count + 2):  # two more, one for each node: they lay the tree out
        for name, target in targets.items():
            began = time.monotonic()
            result = target.evaluate(request, lambda step, detail: None)
            assert isinstance(result, Measured), result
            if turn >= 2:
                wall[name].append(time.monotonic() - began)
    for name in targets:
        beside = statistics.median(clocked[name].beside_s[2:])
        print(
            f"evaluation {name}: {1e3 * statistics.median(wall[name]):.0f} ms, beside its judge {1e3 * beside:.1f} ms"
        )
    over = statistics.median(clocked["on Ray"].beside_s[2:]) - statistics.median(clocked["here"].beside_s[2:])
    print(f"overhead per evaluation over this machine: {1e3 * over:.1f} ms (at most 50)")
    print(f"bytes per evaluation, both ways: {statistics.median(clocked['on Ray'].sent_bytes):,.0f}")
    local.close()
    processor_time(engine, cluster)


def processor_time(engine: RayEngine, cluster: Cluster) -> None:
    """Of the cluster's own processes, for a command that does nothing: any other would drown it."""
    idle = _idle_share(cluster)
    before, began = processor_s(cluster), time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda n: engine.carry_out(Command(("-c", "pass"), 60.0), lambda line: None), range(COMMANDS)))
    passed_s = time.monotonic() - began
    print(f"{COMMANDS} commands that do nothing: {COMMANDS / passed_s:.0f} a second")
    for name, seconds in processor_s(cluster).items():
        used_s = seconds - before[name] - idle[name] * passed_s
        print(
            f"processor time per command, {name}: {1e3 * used_s / COMMANDS:.1f} ms, and {idle[name]:.1%} of a core idle"
        )


def _idle_share(cluster: Cluster) -> dict[str, float]:
    """Of one core: what the same take where nothing is evaluated."""
    before = processor_s(cluster)
    time.sleep(_IDLE_S)
    return {name: (seconds - before[name]) / _IDLE_S for name, seconds in processor_s(cluster).items()}


def processor_s(cluster: Cluster) -> dict[str, float]:
    """So far, of what works for the cluster and not for a candidate."""
    found = {"the driver": 0.0, "the head (gcs_server)": 0.0, "the nodes (raylet)": 0.0}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = path.read_text().rpartition(")")[2].split()
            words = (path.parent / "cmdline").read_bytes()
            ours = int(path.parent.name) in cluster.processes() if b"/ray/core/src/" in words else False
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            if b"infra.engines.ray_driver" in words and cluster.address.encode() in words:
                found["the driver"] += seconds
            elif ours:
                found["the head (gcs_server)" if b"gcs_server/" in words or b"/gcs_server\0" in words
                      else "the nodes (raylet)"] += seconds  # fmt: skip
    return found


# --- pricing ---------------------------------------------------------------------------------------------


def pricing(engine: RayEngine, cluster: Cluster, count: int) -> None:
    seed = load_seed("silu")
    preset = ShapePreset("only", (("M", 512), ("N", 7168)))
    task = dataclasses.replace(seed.task(), presets=(preset,), seeds=(0,))
    took: dict[int, list[float]] = {1: [], 2: []}
    worked: dict[int, list[float]] = {1: [], 2: []}
    prices = []
    for turn in range(TURNS):
        for workers in (1, 2) if turn % 2 == 0 else (2, 1):  # each time others: a worker remembers what it priced
            texts = [f"{seed.kernel_source}\nNUMBER = {turn, workers, number}\n" for number in range(count)]
            seconds, worked_s, found = _priced(engine, cluster, task, workers, texts)
            worked[workers].append(worked_s)
            took[workers].append(seconds)
            prices.append(sorted(str(price) for price in found.values()))
            print(f"{count} kernels on {workers}: {seconds:.1f} s, {1e3 * seconds / count:.1f} ms each")
    assert all(each == prices[0] for each in prices), "prices depend on who priced them"
    ratio = sum(took[1]) / (2 * sum(took[2]))
    print(f"scaling efficiency of 2 workers against 1: {ratio:.2f} in elapsed time (at least 0.9)")
    each_ms = {workers: 1e3 * sum(seconds) / (TURNS * count) for workers, seconds in worked.items()}
    print(
        f"processor time of the workers per kernel: {each_ms[1]:.1f} ms on 1, {each_ms[2]:.1f} ms on 2: "
        f"{each_ms[1] / each_ms[2]:.2f}; cores that were theirs: "
        f"{sum(worked[1]) / sum(took[1]):.2f} on 1, {sum(worked[2]) / sum(took[2]):.2f} on 2"
    )


def workers_s(cluster: Cluster) -> float:
    """Processor time of all that works in the trees that were sent, and of what that has started and ended."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            place = Path(os.readlink(path.parent / "cwd"))
            if any(node.scratch in place.parents for node in cluster.nodes()):
                fields = path.read_text().rpartition(")")[2].split()
                total += sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return total


def _priced(
    engine: RayEngine, cluster: Cluster, task: Task, workers: int, texts: Sequence[str]
) -> tuple[float, float, dict[str, float | None]]:
    """Seconds that passed, processor seconds of the workers, and the prices."""
    predictor = Predictor(task, "trn2", workers=workers, engine=engine)
    try:
        predictor([f"{texts[0]}\nWARM = {number}\n" for number in range(WARMING * workers)])  # everything is started
        before_s, began = workers_s(cluster), time.monotonic()
        found = predictor(texts)
        return time.monotonic() - began, workers_s(cluster) - before_s, found
    finally:
        predictor.close()


def _timed(call: object) -> float:
    began = time.monotonic()
    assert callable(call)
    call()
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
