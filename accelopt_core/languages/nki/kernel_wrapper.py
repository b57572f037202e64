"""What users of NKIBench know of judging: `NKIKernel(...).profile(...)`, with its three flags and a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from accelopt_core.evaluation import (
    CompileFailed,
    Crashed,
    Duplicate,
    Evaluation,
    Implausible,
    Incorrect,
    Measured,
    Step,
    TimedOut,
    Untimed,
    explain,
)


@dataclass
class KernelResult:
    """NKIBench's result: three flags and a dictionary; and the evaluation they were read from."""

    compiled: bool
    runnable: bool
    correct: bool
    metadata: dict[str, Any]
    evaluation: Evaluation


class NKIKernel:
    """A kernel file and its NumPy reference, profiled as NKIBench's users know it; the last result is `res`.

    `evaluate` takes the two paths and judges the kernel somewhere. `infra.nki_kernel.NKIKernel` is this class with the
    simulator, a device or a host behind it, and needs the two paths only.
    """

    def __init__(self, program_path: str, base_numpy_path: str, *, evaluate: Callable[[str, str], Evaluation]) -> None:
        self.program_path = program_path
        self.base_numpy_path = base_numpy_path
        self.res: KernelResult | None = None
        self._evaluate = evaluate

    def profile(self, save_fields: Sequence[str] = ()) -> KernelResult:
        """Whatever is wrong with the kernel is in the result, in the words of docs/tasks.md."""
        self.res = kernel_result(self._evaluate(self.program_path, self.base_numpy_path), save_fields)
        return self.res


_BEFORE_A_RUN = (Step.COMPILE, Step.UPLOAD, Step.VERIFY)
"""Steps in which nothing of the kernel has been executed for certain."""


def kernel_result(evaluation: Evaluation, save_fields: Sequence[str] = ()) -> KernelResult:
    """Latencies in ms, as NKIBench has them; `save_fields` by the profiler's names, in its units.

    A field that this profiler does not report is listed in `missing_fields`: schemas change with every SDK.
    """
    said = explain(evaluation)
    match evaluation:
        case CompileFailed():
            return KernelResult(False, False, False, {"compilation_error": said}, evaluation)
        case Incorrect():
            return KernelResult(True, True, False, {"correctness_error": said}, evaluation)
        case Untimed():
            return KernelResult(True, True, False, {"benchmarking_error": said}, evaluation)
        case Duplicate():
            return KernelResult(True, False, False, {"correctness_error": said}, evaluation)
        case Implausible(latency_us=latency_us):
            which = "correctness_error" if latency_us is None else "benchmarking_error"
            return KernelResult(True, True, False, {which: said}, evaluation)
        case TimedOut(step=step) | Crashed(step=step):
            if step in _BEFORE_A_RUN:
                return KernelResult(False, False, False, {"compilation_error": said}, evaluation)
            if step is Step.RUN:
                return KernelResult(True, False, False, {"correctness_error": said}, evaluation)
            return KernelResult(True, True, False, {"benchmarking_error": said}, evaluation)
        case Measured() as measured:
            fields = measured.profile.fields
            metadata: dict[str, Any] = {
                "latency": measured.latency_us / 1e3,
                "min_ms": measured.min_us / 1e3,
                "max_ms": measured.max_us / 1e3,
                "rel_diffs": measured.spread,
                "simulated": measured.simulated,
                "machine": measured.machine,
                **{name: fields[name] for name in save_fields if name in fields},
            }
            if measured.likely is not None:
                metadata["likely_ms"] = (measured.likely.low_us / 1e3, measured.likely.high_us / 1e3)
                metadata["rests_on"] = measured.likely.sure
            missing = [name for name in save_fields if name not in fields]
            if missing:
                metadata["missing_fields"] = missing
            return KernelResult(True, True, True, metadata, evaluation)
