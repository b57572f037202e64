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
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelopt_core.candidate import Candidate, source_hash
from accelopt_core.catalogue.kernel_trees import (
    NoTree,
    PricedStep,
    Refusal,
    SingleSteps,
    StepName,
    StepRefused,
    Wanted,
    Way,
)
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
SHORTEST_S, LONGEST_MESSAGE_S = 0.4, 4.0
"""What the kernels that a worker is handed together take, by what the last ones took. Rewrites of one kernel share a
process, and between two messages a worker waits for whoever asks, by Ray for a twentieth of a second; but with a worker
that is lost they are lost too."""
MOST_PROCESSES = 8
"""That try the steps from one loop tree, where there are as many processors."""
PART = 0.85
"""Of its share of what is left, what a worker is handed: all are through at about the same time."""
ROWS_AT_ONCE = 400_000
"""Instructions of such kernels together: their programs are in memory at once."""
_DAY_S = 86_400.0
POLL_S = 0.5
"""Between two questions of how far a search is."""
LONGEST_S = 120.0
"""A kernel that the simulator needs longer for, at its shapes together, has no price."""


class Predictor:
    """Simulated latency in µs of sources at the task's full shape; None for one that does not compile at every shape.
    It is `accelopt_core.ports.Simulator` and `accelopt_core.catalogue.kernel_trees.KernelTrees` as well.

    Every source is compiled in a sandboxed process, alone or after others that were asked for with it, once. Prices
    are remembered by text: whether two texts are one kernel takes a seventh of what pricing does to tell, here, where
    all workers wait for it.
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
        """By text."""
        self._digests: dict[tuple[str, int], str] = {}
        """By content hash and number of the shape; empty for what does not compile there."""
        self._rows = 0
        """Of the longest program that was timed; 0 before the first was."""
        self._each_s = 0.0
        """What a kernel took, of those that a worker was last handed together; 0 before the first was priced."""
        self._waiting: deque[_Asked] = deque()
        self._least = 1
        """Kernels that a worker is handed together, of so few that each worker gets its share at once."""
        self._arguments: list[list[dict[str, object]]] | None = None
        self._workers = count = max(1, min(workers, self._engine.places))
        self._threads = ThreadPoolExecutor(count, "predict")
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)
        self._started: list[_Worker] = []
        self._closed = False
        self._lock = threading.Lock()
        """Held by whoever takes from what waits, or counts."""
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
        found = self._priced(sources, limit_s, alone=False)
        return {source: each.latency_us if each is not None else None for source, each in found.items()}

    def predicted(self, sources: Sequence[str]) -> dict[str, Predicted | None]:
        """Each in a process of its own: whoever wrote them, none has a word in the price of another."""
        return self._priced(sources, math.inf, alone=True)

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

    def single_steps(self, source: str, limit_s: float = math.inf) -> SingleSteps:
        said = self._of_tree({"tree": "single steps", "source": source, "seconds": min(limit_s, LONGEST_S)})
        refusals = tuple(Refusal(rule, what, tuple(lines), why) for rule, what, lines, why in said["refusals"])
        return SingleSteps(said["latency_us"], _steps(said["steps"]), refusals, said["not_priced"])

    def way(self, source: str, wanted: Wanted, limit_s: float = math.inf) -> Way:
        allowed = None if wanted.allowed is None else sorted(wanted.allowed)
        job = {"tree": "way", "source": source, "allowed": allowed, "excluded": sorted(wanted.excluded),
               "enough_us": wanted.enough_us, "most_priced": wanted.most_priced, "seconds": POLL_S}  # fmt: skip
        until = time.monotonic() + limit_s
        before, self._asked_for = self._through_with, self._asked_for + 1
        with self._at_work() as worker:
            if not worker.is_one_process:
                said = _answered(worker.tree({**job, "begin": True, "seconds": min(limit_s, _DAY_S), "stop": True}))
            else:
                said = _answered(worker.tree({**job, "begin": True}))
            while "steps" not in said:
                self._through_with, self._asked_for = before + said["priced"], before + said["priced"] + 1
                over = time.monotonic() >= until or self._closed
                said = _answered(worker.tree({**job, "seconds": 0.0 if over else POLL_S, "stop": over}))
        self._through_with = self._asked_for = before + said["priced"]
        return Way(
            _steps(said["steps"]), said["source"], said["before_us"], said["after_us"], said["priced"],
            said["withheld"], said["complete"],
        )  # fmt: skip

    def carried_out(self, source: str, steps: Sequence[StepName]) -> str:
        said = self._of_tree({"tree": "carry out", "source": source, "steps": [(s.rule, s.site) for s in steps]})
        return str(said["source"])

    def _of_tree(self, job: dict[str, object]) -> dict[str, Any]:
        with self._at_work() as worker:
            return _answered(worker.tree(job))

    def _priced(self, sources: Sequence[str], limit_s: float, alone: bool) -> dict[str, Predicted | None]:
        self._raw()
        wanted = list(dict.fromkeys(sources))
        self._ask([source for source in wanted if source not in self._known], alone)
        asked = {source: self._known[source] for source in wanted}
        # A worker that cannot work is worth hearing of at once: the others would say the same.
        wait({each.price for each in asked.values()}, None if math.isinf(limit_s) else limit_s)
        for source in wanted:
            if self._known[source].price.cancel():
                del self._known[source]
                self._asked_for -= 1
        return {source: each.price.result() for source, each in asked.items() if each.is_there}

    def _compile(self, keys: Sequence[str], shape: int, texts: Mapping[str, str]) -> None:
        """`texts`: sources by content hash."""
        asked = {key: self._threads.submit(self._compiled, texts[key], shape) for key in keys}
        self._digests.update({(key, shape): digest.result() for key, digest in asked.items()})

    def arguments(self) -> tuple[tuple[ArgumentSpec, ...], ...]:
        """Of the kernel at each preset. Raises as a prediction does."""
        return tuple(decode_arguments(each) for each in self._raw())

    def close(self) -> None:
        self._closed = True
        with self._lock:
            for each in self._waiting:
                each.price.cancel()
                each.price.set_running_or_notify_cancel()
            self._waiting.clear()
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

    def _ask(self, sources: Sequence[str], alone: bool) -> None:
        asked = {source: _Asked(source, alone) for source in sources}
        self._known.update(asked)
        with self._lock:
            self._asked_for += len(asked)
            self._waiting += asked.values()
            self._least = -(-len(self._waiting) // self._workers)
        for _ in range(min(len(asked), self._workers)):
            self._threads.submit(self._work)

    def _work(self) -> None:
        """Until nothing waits. Where a worker cannot work, all that was asked for hears of it: the next one would say
        the same."""
        while some := self._next():
            try:
                with self._at_work() as worker:
                    prices = self._predict(worker, some)
            except BaseException as error:
                for each in (*some, *self._given_up()):
                    each.price.set_exception(error)
            else:
                for each, price in zip(some, prices):
                    each.price.set_result(price)

    def _given_up(self) -> list[_Asked]:
        """All that waits, and does so no more."""
        with self._lock:
            left = [each for each in self._waiting if each.price.set_running_or_notify_cancel()]
            self._waiting.clear()
        return left

    def _next(self) -> list[_Asked]:
        """What a worker is handed together, in the order in which it was asked for; none where nothing waits."""
        with self._lock:
            most = self._together(len(self._waiting))
            some: list[_Asked] = []
            while self._waiting and len(some) < (1 if some and some[0].alone else most):
                if some and self._waiting[0].alone:
                    break
                each = self._waiting.popleft()
                if each.price.set_running_or_notify_cancel():
                    some.append(each)
            return some

    def _together(self, left: int) -> int:
        """How many kernels, of so many that wait."""
        if not self._rows or not self._each_s:
            return 1
        share = left / self._workers
        part = math.ceil(share if self._workers == 1 else PART * share)
        wanted = max(part, min(self._least, math.ceil(SHORTEST_S / self._each_s)))
        return max(1, min(wanted, int(LONGEST_MESSAGE_S / self._each_s), ROWS_AT_ONCE // self._rows))

    def _predict(self, worker: _Worker, some: Sequence[_Asked]) -> list[Predicted | None]:
        priced = worker.price([each.source for each in some])
        with self._lock:
            self._rows = max(self._rows, priced.rows)
            self._each_s = priced.seconds / len(some)
            self._through_with += len(some)
        return priced.prices

    def _compiled(self, source: str, shape: int) -> str:
        with self._at_work() as worker:
            return worker.compile(source, shape)

    @contextmanager
    def _at_work(self) -> Iterator[_Worker]:
        arguments = self._raw()
        worker = self._idle.get()
        try:
            if worker is None:
                worker = _Worker(
                    self._engine, self._machine, self._calibration, self._timeout_s, arguments, self._task.around
                )
                self._started.append(worker)
                if self._closed:  # while it was starting
                    worker.close()
            yield worker
        finally:
            self._idle.put(worker)


class _Asked:
    """A source that is to be priced, and its price once that is there."""

    def __init__(self, source: str, alone: bool) -> None:
        """alone: in a process that traces nothing else."""
        self.source = source
        self.alone = alone
        self.price: Future[Predicted | None] = Future()

    @property
    def is_there(self) -> bool:
        return self.price.done() and not self.price.cancelled()


@dataclass(frozen=True)
class _Priced:
    """What a worker says of kernels that it was handed together."""

    prices: list[Predicted | None]
    rows: int
    """Instructions of the longest that was timed."""
    seconds: float
    """That all took there."""


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
        self._processes = min(engine.places, MOST_PROCESSES)
        self._asker = engine.open("the process that predicts latencies", ("-m", "infra.prediction.worker"), first)

    def price(self, sources: Sequence[str]) -> _Priced:
        said = self._asker.ask({"sources": sources})
        prices = [each and Predicted(float(each[0]), str(each[1]), tuple(each[2])) for each in said["prices"]]
        return _Priced(prices, int(said["rows"]), float(said["seconds"]))

    def compile(self, source: str, shape: int) -> str:
        """The digest of its program at that shape; empty where it does not compile."""
        return str(self._asker.ask({"source": source, "shape": shape})["digest"])

    def timeline(self, source: str) -> EngineTimeline:
        said = self._asker.ask({"source": source})
        if "refused" in said:
            raise NoTimeline(str(said["refused"]))
        return from_line(said)

    @property
    def is_one_process(self) -> bool:
        return self._asker.is_one_process

    def tree(self, job: Mapping[str, object]) -> dict[str, Any]:
        return dict(self._asker.ask({**job, "processes": self._processes if self.is_one_process else 1}))

    def close(self) -> None:
        self._asker.close()


def _answered(said: dict[str, Any]) -> dict[str, Any]:
    """Raises NoTree and StepRefused where that was said."""
    if "no_tree" in said:
        raise NoTree(said["no_tree"])
    if "refused" in said:
        raise StepRefused(said["refused"])
    return said


def _steps(listed: Sequence[Mapping[str, Any]]) -> tuple[PricedStep, ...]:
    return tuple(
        PricedStep(**{**each, "name": StepName(*each["name"]), "lines": tuple(each["lines"])}) for each in listed
    )


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
