"""What a kernel would take on the simulated machine: how the catalogue ranks its ideas before it tries them.

A prediction compiles and times; it verifies nothing, so it is never a result.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from accelopt_core.candidate import Candidate, source_hash
from accelopt_core.ports import EvaluationRequest, TargetMisconfigured
from accelopt_core.task import Task
from accelopt_core.toolchain import ArgumentSpec, CandidateFault, ConstantArgument, TensorArgument
from infra import wire
from infra.sandbox import scrubbed_environment
from infra.toolchains import TREE, SimulatorToolchain


class Predictor:
    """Simulated latency in µs of a source at the task's full shape; None when it does not compile at every shape.

    Every source is compiled in a sandboxed process of its own, once.
    """

    def __init__(self, task: Task, machine: str, timeout_s: float = 300.0) -> None:
        self._task = task
        self._toolchain = SimulatorToolchain(machine)
        self._timeout_s = timeout_s
        self._known: dict[str, float | None] = {}
        self._arguments: tuple[tuple[ArgumentSpec, ...], ...] | None = None

    def __call__(self, source: str) -> float | None:
        key = source_hash(source)
        if key not in self._known:
            self._known[key] = self._predict(source)
        return self._known[key]

    def _predict(self, source: str) -> float | None:
        if self._arguments is None:
            self._arguments = kernel_arguments(self._task)
        try:
            for gate in self._arguments[:-1]:
                self._toolchain.compile(source, gate, self._timeout_s)
            return self._toolchain.estimate_us(self._toolchain.compile(source, self._arguments[-1], self._timeout_s))
        except CandidateFault:
            return None

    def close(self) -> None:
        self._toolchain.close()


def kernel_arguments(task: Task) -> tuple[tuple[ArgumentSpec, ...], ...]:
    """Shapes, dtypes and constants of a kernel's arguments at each preset, asked of a judge process.

    Raises TaskFault when the reference fails.
    """
    request = EvaluationRequest(task, Candidate("arguments", ""))
    with tempfile.TemporaryDirectory(prefix="nki-arguments-") as folder:
        job = Path(folder, "job.json")
        job.write_text(wire.encode_job(request, nonce="", toolchain="simulator"), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "infra.judge", "--arguments", "--job", str(job)],
            cwd=TREE, env=scrubbed_environment({}), capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        said = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise TargetMisconfigured(f"the reference of {task.name} could not be read: {last[0]}") from None
    if "target_error" in said:
        raise wire.fault_from(said["target_error"])
    return tuple(decode_arguments(arguments) for arguments in said["arguments"])


def decode_arguments(data: Sequence[dict[str, object]]) -> tuple[ArgumentSpec, ...]:
    made: list[ArgumentSpec] = []
    for entry in data:
        if "shape" in entry:
            shape = entry["shape"]
            assert isinstance(shape, list)
            made.append(TensorArgument(tuple(int(n) for n in shape), str(entry["dtype"])))
        else:
            value = entry["value"]
            assert value is None or isinstance(value, (int, float, bool))
            made.append(ConstantArgument(value))
    return tuple(made)
