"""What kernels would take on the simulated machine: how the catalogue ranks its ideas before it tries them.

A prediction compiles and times; it verifies nothing, so it is never a result. Kernels are priced side by side,
each in a worker process (`worker.py`) that stays for the next one.
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from accelopt_core.candidate import Candidate, source_hash
from accelopt_core.ports import EvaluationRequest, TargetMisconfigured
from accelopt_core.task import Surroundings, Task
from accelopt_core.toolchain import ArgumentSpec, ConstantArgument, DtypeArgument, TensorArgument, constant
from infra.isolation.sandbox import scrubbed_environment
from infra.judging import wire
from infra.judging.shipment import TREE
from nki_sim.calibration import Calibration

WORKERS = 2
"""Kernels priced at a time, where there are as many cores; each may take as much memory as a candidate."""
AT_ONCE = 8
"""Kernels handed to a worker together, at most: rewrites of one kernel share a process."""
ROWS_AT_ONCE = 80_000
"""Instructions of such kernels together; for more, starting a process is nothing beside tracing them."""
LONGEST_S = 120.0
"""A kernel that the simulator needs longer for, at its shapes together, has no price."""


class Predictor:
    """Simulated latency in µs of sources at the task's full shape; None for one that does not compile at every shape.

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
    ) -> None:
        """`machine`: a key of MACHINES, as shipped or as `calibration` has it."""
        self._task = task
        self._machine = machine
        self._calibration = calibration
        self._timeout_s = min(timeout_s, LONGEST_S)
        self._known: dict[str, _Asked] = {}
        self._rows = 0
        """Of the longest program that was timed; 0 before the first was."""
        self._arguments: list[list[dict[str, object]]] | None = None
        self._workers = count = max(1, min(workers, os.cpu_count() or 1))
        self._threads = ThreadPoolExecutor(count, "predict")
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)
        self._started: list[_Worker] = []
        self._closed = False

    def __call__(self, sources: Sequence[str], limit_s: float = math.inf) -> dict[str, float | None]:
        """By source. Those that `limit_s` does not suffice for are left out; what has begun is there the next time.

        Raises TaskFault when the reference fails, and TargetMisconfigured when a worker cannot do its work.
        """
        self._raw()
        keys = {source: source_hash(source) for source in dict.fromkeys(sources)}
        self._ask({key: source for source, key in keys.items() if key not in self._known})
        asked = {source: self._known[key] for source, key in keys.items()}
        # A worker that cannot work is worth hearing of at once: the others would say the same.
        wait({each.together for each in asked.values()}, None if math.isinf(limit_s) else limit_s)
        for key in keys.values():
            if key in self._known and self._known[key].together.cancel():
                del self._known[key]
        return {source: each.price() for source, each in asked.items() if each.is_there}

    def arguments(self) -> tuple[tuple[ArgumentSpec, ...], ...]:
        """Of the kernel at each preset. Raises as a prediction does."""
        return tuple(decode_arguments(each) for each in self._raw())

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._started:
            worker.close()
        self._threads.shutdown(wait=True)

    def _raw(self) -> list[list[dict[str, object]]]:
        if self._arguments is None:
            self._arguments = _raw_arguments(self._task)
        return self._arguments

    def _ask(self, sources: Mapping[str, str]) -> None:
        """`sources` by content hash: as many at once as fit, and no worker idle."""
        keys = list(sources)
        fair = -(-len(keys) // self._workers)
        size = max(1, min(AT_ONCE, fair, ROWS_AT_ONCE // self._rows)) if self._rows else 1
        for first in range(0, len(keys), size):
            some = keys[first : first + size]
            together = self._threads.submit(self._predict, [sources[key] for key in some])
            self._known.update({key: _Asked(together, number) for number, key in enumerate(some)})

    def _predict(self, sources: Sequence[str]) -> list[float | None]:
        assert self._arguments is not None
        worker = self._idle.get()
        try:
            if worker is None:
                worker = _Worker(self._machine, self._calibration, self._timeout_s, self._arguments, self._task.around)
                self._started.append(worker)
                if self._closed:  # while it was starting
                    worker.close()
            prices, rows = worker.price(sources)
            self._rows = max(self._rows, rows)
            return prices
        finally:
            self._idle.put(worker)


@dataclass(frozen=True)
class _Asked:
    """A source among those that a worker was handed together."""

    together: Future[list[float | None]]
    number: int

    @property
    def is_there(self) -> bool:
        return self.together.done() and not self.together.cancelled()

    def price(self) -> float | None:
        return self.together.result()[self.number]


class _Worker:
    """One process, a few kernels at a time. Ends when its input does, so also when this process is killed."""

    def __init__(
        self,
        machine: str,
        calibration: Calibration | None,
        timeout_s: float,
        arguments: list[list[dict[str, object]]],
        around: Surroundings,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process does: see close
        self._process = subprocess.Popen(
            [sys.executable, "-m", "infra.prediction.worker"], cwd=TREE, env=scrubbed_environment({}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            start_new_session=True,  # Ctrl-C is for the run, which ends its workers itself
        )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input: IO[str] = self._process.stdin
        self._output: IO[str] = self._process.stdout
        self._first = {
            "machine": machine,
            "calibration": calibration and asdict(calibration),
            "timeout_s": timeout_s,
            "arguments": arguments,
            "around": asdict(around),
        }

    def price(self, sources: Sequence[str]) -> tuple[list[float | None], int]:
        """Of each; and the instructions of the longest that was timed."""
        try:
            self._input.write(json.dumps({**self._first, "sources": sources}) + "\n")
            self._input.flush()
            self._first = {}
            line = self._output.readline()
        except (OSError, ValueError):  # it is gone, or was closed
            line = ""
        if not line:
            raise TargetMisconfigured(f"the process that predicts latencies ended: {self._last_words()}")
        said = json.loads(line)
        return [None if us is None else float(us) for us in said["us"]], int(said["rows"])

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return said[-1][:300] if said else f"exit status {self._process.poll()}"


def _raw_arguments(task: Task) -> list[list[dict[str, object]]]:
    request = EvaluationRequest(task, Candidate("arguments", ""))
    with tempfile.TemporaryDirectory(prefix="nki-arguments-") as folder:
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
