"""What kernels would take on the simulated machine: how the catalogue ranks its ideas before it tries them, and what of
a round is worth a device's time; and which kernels are one program in other words.

A prediction compiles and times; it verifies nothing, so it is never a result. Kernels are priced side by side,
each in a worker process (`worker.py`) that stays for the next one.
"""

from __future__ import annotations

import json
import math
import queue
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from accelopt_core.candidate import Candidate, source_hash
from accelopt_core.evaluation import Predicted
from accelopt_core.ports import EvaluationRequest, TargetMisconfigured
from accelopt_core.task import Surroundings, Task
from accelopt_core.toolchain import ArgumentSpec, Calibration, ConstantArgument, DtypeArgument, TensorArgument, constant
from infra.engines.engine import Engine
from infra.engines.local import LocalEngine
from infra.isolation.sandbox import scrubbed_environment
from infra.judging import wire
from infra.judging.shipment import TREE
from infra.prediction.timelines import EngineTimeline, NoTimeline, from_line
from infra.scratch_folder import ScratchFolder

WORKERS = 2
"""Kernels priced at a time, where there are as many cores; each may take as much memory as a candidate."""
AT_ONCE, MOST_AT_ONCE = 8, 32
"""Kernels handed to a worker together: rewrites of one kernel share a process. The more where a worker will be handed
`PARTS` times as many: between two messages it waits for whoever asks, a tenth of its time where they go by Ray."""
PARTS = 4
ROWS_AT_ONCE = 80_000
"""Instructions of such kernels together; for more, starting a process is nothing beside tracing them."""
LONGEST_S = 120.0
"""A kernel that the simulator needs longer for, at its shapes together, has no price."""


class Predictor:
    """Simulated latency in µs of sources at the task's full shape; None for one that does not compile at every shape.
    It is `accelopt_core.ports.Simulator` as well.

    Every source is compiled in a sandboxed process, alone or after others that were asked for with it, once: prices
    are remembered by content hash.
    """

    def __init__(
        self,
        task: Task,
        machine: str,
        timeout_s: float = LONGEST_S,
        workers: int = WORKERS,
        calibration: Calibration | None = None,
        engine: Engine | None = None,
    ) -> None:
        """`machine`: a key of MACHINES, as shipped or as `calibration` has it. `workers`: at most so many, and no more
        than `engine` has places. `engine`: where they work, and whoever made it closes it; None: on this machine."""
        self._engine: Engine = engine or LocalEngine()
        self._own_engine = engine is None
        self._task = task
        self._machine = machine
        self._calibration = calibration
        self._timeout_s = min(timeout_s, LONGEST_S)
        self._known: dict[str, _Asked] = {}
        self._digests: dict[tuple[str, int], str] = {}
        """By content hash and number of the shape; empty for what does not compile there."""
        self._rows = 0
        """Of the longest program that was timed; 0 before the first was."""
        self._arguments: list[list[dict[str, object]]] | None = None
        self._workers = count = max(1, min(workers, self._engine.places))
        self._threads = ThreadPoolExecutor(count, "predict")
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)
        self._started: list[_Worker] = []
        self._closed = False
        self._counting = threading.Lock()
        self._asked_for = self._through_with = 0

    @property
    def asked(self) -> int:
        """Kernels that it was asked to price so far, without those that were given up before they began."""
        return self._asked_for

    @property
    def priced(self) -> int:
        """Of those, the ones it is through with."""
        return self._through_with

    def __call__(self, sources: Sequence[str], limit_s: float = math.inf) -> dict[str, float | None]:
        """By source. Those that `limit_s` does not suffice for are left out; what has begun is there the next time.

        Raises TaskFault when the reference fails, and TargetMisconfigured when a worker cannot do its work.
        """
        found = self._priced(sources, limit_s, MOST_AT_ONCE)
        return {source: each.latency_us if each is not None else None for source, each in found.items()}

    def predicted(self, sources: Sequence[str]) -> dict[str, Predicted | None]:
        """Each in a process of its own: whoever wrote them, none has a word in the price of another."""
        return self._priced(sources, math.inf, 1)

    def programs(self, sources: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Compiles at no more shapes than it takes to tell: one, for nearly all that differ."""
        keys = {source: source_hash(source) for source in sources}
        texts = {key: source for source, key in keys.items()}
        found: dict[str, tuple[str, ...]] = dict.fromkeys(texts, ())
        alike = [list(texts)] if len(texts) > 1 else []
        for shape in range(len(self._raw())):
            self._compile([key for some in alike for key in some if (key, shape) not in self._digests], shape, texts)
            parted: dict[tuple[int, str], list[str]] = defaultdict(list)
            for number, some in enumerate(alike):
                for key in some:
                    digest = self._digests[key, shape]
                    found[key] = (*found[key], digest) if digest else ()
                    if digest:
                        parted[number, digest].append(key)
            alike = [some for some in parted.values() if len(some) > 1]
        return {source: found[key] for source, key in keys.items()}

    def timeline(self, source: str) -> EngineTimeline:
        """At the task's full shape. Raises NoTimeline, and what a prediction raises."""
        self._raw()
        with self._at_work() as worker:
            return worker.timeline(source)

    def _priced(self, sources: Sequence[str], limit_s: float, at_once: int) -> dict[str, Predicted | None]:
        self._raw()
        keys = {source: source_hash(source) for source in dict.fromkeys(sources)}
        self._ask({key: source for source, key in keys.items() if key not in self._known}, at_once)
        asked = {source: self._known[key] for source, key in keys.items()}
        # A worker that cannot work is worth hearing of at once: the others would say the same.
        wait({each.together for each in asked.values()}, None if math.isinf(limit_s) else limit_s)
        for key in keys.values():
            if key in self._known and self._known[key].together.cancel():
                del self._known[key]
                self._asked_for -= 1
        return {source: each.price() for source, each in asked.items() if each.is_there}

    def _compile(self, keys: Sequence[str], shape: int, texts: Mapping[str, str]) -> None:
        """`texts`: sources by content hash."""
        asked = {key: self._threads.submit(self._compiled, texts[key], shape) for key in keys}
        self._digests.update({(key, shape): digest.result() for key, digest in asked.items()})

    def arguments(self) -> tuple[tuple[ArgumentSpec, ...], ...]:
        """Of the kernel at each preset. Raises as a prediction does."""
        return tuple(decode_arguments(each) for each in self._raw())

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._started:
            worker.close()
        self._threads.shutdown(wait=True)
        if self._own_engine:
            self._engine.close()

    def _raw(self) -> list[list[dict[str, object]]]:
        if self._arguments is None:
            self._arguments = _raw_arguments(self._task)
        return self._arguments

    def _ask(self, sources: Mapping[str, str], at_once: int) -> None:
        """`sources` by content hash: as many together as fit, and no worker idle."""
        keys = list(sources)
        self._asked_for += len(keys)
        fair = -(-len(keys) // self._workers)
        wanted = min(at_once, fair, max(AT_ONCE, fair // PARTS))
        size = max(1, min(wanted, ROWS_AT_ONCE // self._rows)) if self._rows else 1
        for first in range(0, len(keys), size):
            some = keys[first : first + size]
            together = self._threads.submit(self._predict, [sources[key] for key in some])
            self._known.update({key: _Asked(together, number) for number, key in enumerate(some)})

    def _predict(self, sources: Sequence[str]) -> list[Predicted | None]:
        with self._at_work() as worker:
            prices, rows = worker.price(sources)
            self._rows = max(self._rows, rows)
        with self._counting:
            self._through_with += len(sources)
        return prices

    def _compiled(self, source: str, shape: int) -> str:
        with self._at_work() as worker:
            return worker.compile(source, shape)

    @contextmanager
    def _at_work(self) -> Iterator[_Worker]:
        assert self._arguments is not None
        worker = self._idle.get()
        try:
            if worker is None:
                worker = _Worker(
                    self._engine, self._machine, self._calibration, self._timeout_s, self._arguments, self._task.around
                )
                self._started.append(worker)
                if self._closed:  # while it was starting
                    worker.close()
            yield worker
        finally:
            self._idle.put(worker)


@dataclass(frozen=True)
class _Asked:
    """A source among those that a worker was handed together."""

    together: Future[list[Predicted | None]]
    number: int

    @property
    def is_there(self) -> bool:
        return self.together.done() and not self.together.cancelled()

    def price(self) -> Predicted | None:
        return self.together.result()[self.number]


class _Worker:
    """A process of the engine's that stays, asked for a few kernels at a time."""

    def __init__(
        self,
        engine: Engine,
        machine: str,
        calibration: Calibration | None,
        timeout_s: float,
        arguments: list[list[dict[str, object]]],
        around: Surroundings,
    ) -> None:
        first = {
            "machine": machine,
            "calibration": calibration and asdict(calibration),
            "timeout_s": timeout_s,
            "arguments": arguments,
            "around": asdict(around),
        }
        self._asker = engine.open("the process that predicts latencies", ("-m", "infra.prediction.worker"), first)

    def price(self, sources: Sequence[str]) -> tuple[list[Predicted | None], int]:
        """Of each; and the instructions of the longest that was timed."""
        said = self._asker.ask({"sources": sources})
        prices = [each and Predicted(float(each[0]), str(each[1])) for each in said["prices"]]
        return prices, int(said["rows"])

    def compile(self, source: str, shape: int) -> str:
        """The digest of its program at that shape; empty where it does not compile."""
        return str(self._asker.ask({"source": source, "shape": shape})["digest"])

    def timeline(self, source: str) -> EngineTimeline:
        said = self._asker.ask({"source": source})
        if "refused" in said:
            raise NoTimeline(str(said["refused"]))
        return from_line(said)

    def close(self) -> None:
        self._asker.close()


def _raw_arguments(task: Task) -> list[list[dict[str, object]]]:
    request = EvaluationRequest(task, Candidate("arguments", ""))
    with ScratchFolder("nki-arguments-") as folder:
        job = Path(folder, "job.json")
        job.write_text(
            wire.encode_job(wire.Job(request, nonce="", toolchain="simulator", machine="")), encoding="utf-8"
        )
        done = subprocess.run(
            [sys.executable, "-m", "infra.judging.judge", "--arguments", "--job", str(job)],
            cwd=TREE, env=scrubbed_environment({}), capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        said = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise TargetMisconfigured(f"the reference of {task.name} could not be read: {last[0]}") from None
    if "target_error" in said:
        raise wire.fault_from(said["target_error"])
    arguments: list[list[dict[str, object]]] = said["arguments"]
    return arguments


def kernel_arguments(task: Task) -> tuple[tuple[ArgumentSpec, ...], ...]:
    """Shapes, dtypes and constants of a kernel's arguments at each preset, asked of a judge process.

    Raises TaskFault when the reference fails.
    """
    return tuple(decode_arguments(arguments) for arguments in _raw_arguments(task))


def decode_arguments(data: Sequence[dict[str, object]]) -> tuple[ArgumentSpec, ...]:
    made: list[ArgumentSpec] = []
    for entry in data:
        if "shape" in entry:
            shape = entry["shape"]
            assert isinstance(shape, list)
            made.append(TensorArgument(tuple(int(n) for n in shape), str(entry["dtype"])))
        elif "element_type" in entry:
            made.append(DtypeArgument(str(entry["element_type"])))
        else:
            made.append(ConstantArgument(constant(entry["value"])))
    return tuple(made)
