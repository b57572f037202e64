"""Beside optimization memory, `<memory>.residuals.jsonl`: what devices took for kernels that had been predicted.

A line for each kernel of each run, only ever appended, with all that says where it is from: runs go on at the same
time, and what one of them showed of the simulator on a machine is where the next one on that machine begins. Raises
JournalError.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from accelopt_core.candidate import Attempt
from infra.journal import JsonLines, make_folder, utc_now
from infra.records import from_document, to_document
from ka_extensions.residuals import Residual

MOST = 1000
"""The newest that a run begins with."""


@dataclass(frozen=True)
class TimedKernel:
    run_id: str
    candidate: str
    """Its id."""
    at: str
    """ISO time, UTC."""
    target: str
    """Fingerprint of what timed it: device, toolchain, versions."""
    simulator: str
    """Fingerprint of what predicted it."""
    bound_by: str
    predicted_us: float
    latency_us: float


def residuals_beside(memory: Path) -> Path:
    return memory.with_name(f"{memory.stem}.residuals.jsonl")


class ResidualFile:
    """Of what one target took for what one simulator predicted."""

    def __init__(self, memory: Path, target: str, simulator: str) -> None:
        """`memory`: optimization memory's file; the others are fingerprints."""
        self.path = residuals_beside(memory)
        self._lines = JsonLines(self.path)
        self._target = target
        self._simulator = simulator

    def record(self, run_id: str, attempt: Attempt) -> None:
        """Nothing where it was not predicted, or has no latency."""
        predicted, latency_us = attempt.predicted, attempt.latency_us
        if predicted is None or latency_us is None:
            return
        make_folder(self.path.parent)
        at = utc_now().isoformat(timespec="milliseconds")
        timed = TimedKernel(run_id, attempt.id, at, self._target, self._simulator, predicted.bound_by,
                            predicted.latency_us, latency_us)  # fmt: skip
        self._lines.append(to_document(timed))

    def of_other_runs(self, run_id: str) -> tuple[Residual, ...]:
        """A kernel that a resumed run recorded again counts once; what that run itself measured, it knows."""
        read = enumerate(self._lines.read(), 1)
        timed = [from_document(TimedKernel, record, f"{self.path} line {number}") for number, record in read]
        here = {
            (each.run_id, each.candidate): each
            for each in timed
            if (each.target, each.simulator) == (self._target, self._simulator) and each.run_id != run_id
        }
        newest = list(here.values())[-MOST:]
        return tuple(Residual.of(each.bound_by, each.predicted_us, each.latency_us) for each in newest)
