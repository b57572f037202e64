"""The process that prices kernels for `predictor.py`: a line of JSON in, a line of JSON out, until the input ends.

A line names kernels that are rewrites of one; they are traced in one process, one after the other, and where that does
not end well each half of them in one of its own, and at last each alone. Where it names one kernel and a shape, what is
asked for is the program there, and no price; where it names one kernel alone, its timeline; and where it says `tree`,
what `trees.py` answers.

The first line says the machine, its calibration, the time limit, the arguments at each shape and the files around the
kernel as well.
"""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import sys
import time
from collections.abc import Sequence

from accelopt_core.evaluation import Predicted, bound_by
from accelopt_core.languages.nki.calibration import from_json
from accelopt_core.task import ALONE, Surroundings
from accelopt_core.toolchain import ArgumentSpec, CandidateFault, CompileError, StepTimeout
from infra.isolation.sandbox import adopt_descendants
from infra.judging.wire import decode_surroundings
from infra.prediction import timelines
from infra.prediction.predictor import decode_arguments
from infra.prediction.trees import Trees
from infra.simulator.toolchain import SimulatorToolchain
from nki_sim.program.program import Program

COLLECT_AFTER = 20_000
"""Objects made before the garbage collector looks for cycles: at its usual 700 it takes a fifth of a search's time."""


def main() -> int:
    toolchain: SimulatorToolchain | None = None
    presets: tuple[tuple[ArgumentSpec, ...], ...] = ()
    timeout_s, around = 0.0, ALONE
    trees: Trees | None = None
    adopt_descendants()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # through the sandbox, which ends what it runs
    try:
        for line in sys.stdin:
            job = json.loads(line)
            if toolchain is None:
                toolchain = SimulatorToolchain(job["machine"], calibration=from_json(job["calibration"]))
                presets = tuple(decode_arguments(arguments) for arguments in job["arguments"])
                timeout_s = job["timeout_s"]
                around = decode_surroundings(job["around"])
            prices = Prices(toolchain, presets, timeout_s, around)
            trees = trees or Trees(prices.programs, toolchain.model, presets, around)
            if "tree" in job:
                said: dict[str, object] = trees.answer(job)
            elif "shape" in job:
                said = {"digest": prices.digest(job["source"], job["shape"])}
            elif "source" in job:
                said = prices.timeline(job["source"])
            else:
                began = time.monotonic()
                found, rows = prices.of(job["sources"])
                said = {
                    "prices": [each and (each.latency_us, each.bound_by, each.contested) for each in found],
                    "rows": rows,
                    "seconds": time.monotonic() - began,
                }
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()
    finally:
        if toolchain is not None:
            toolchain.close()
    return 0


class Prices:
    """Of kernels at these shapes; what is priced is the last."""

    def __init__(
        self,
        toolchain: SimulatorToolchain,
        presets: Sequence[Sequence[ArgumentSpec]],
        timeout_s: float,
        around: Surroundings,
    ) -> None:
        self._toolchain, self._presets, self._timeout_s, self._around = toolchain, presets, timeout_s, around

    def of(self, sources: Sequence[str]) -> tuple[list[Predicted | None], int]:
        """By source; None for one that does not compile at every shape or cannot be timed. And the instructions of
        the longest program that was timed."""
        try:
            compiled = self._toolchain.compile_each(
                sources, self._presets, self._timeout_s, self._around, says_why=False
            )
        except CandidateFault as fault:
            if len(sources) == 1:
                return [None], 0
            # What never ends would be waited for in every half.
            size = 1 if isinstance(fault, StepTimeout) else -(-len(sources) // 2)
            parts = [self.of(sources[first : first + size]) for first in range(0, len(sources), size)]
            return [price for each, _ in parts for price in each], max(rows for _, rows in parts)
        found: list[Predicted | None] = []
        longest = 0
        for programs in compiled:
            price: Predicted | None = None
            if not isinstance(programs, CompileError):
                longest = max(longest, len(programs[-1].program))
                with contextlib.suppress(CandidateFault):
                    us = self._toolchain.estimate_us(programs[-1])
                    if us is not None:
                        measured = programs[-1].measurement
                        price = Predicted(us, bound_by(measured.fields), measured.contested)
            found.append(price)
        return found, longest

    def programs(self, source: str, presets: Sequence[Sequence[ArgumentSpec]]) -> list[Program]:
        """At each of those shapes. Raises CandidateFault."""
        (made,) = self._toolchain.compile_each((source,), presets, self._timeout_s, self._around)
        if isinstance(made, CompileError):
            raise made
        return [each.program for each in made]

    def digest(self, source: str, shape: int) -> str:
        """Of its program at that shape alone; empty where it does not compile there."""
        try:
            program = self._toolchain.compile(source, self._presets[shape], self._timeout_s, self._around)
        except CandidateFault:
            return ""
        return self._toolchain.program_digest(program)

    def timeline(self, source: str) -> dict[str, object]:
        """At the last shape; or why there is none."""
        try:
            program = self._toolchain.compile(source, self._presets[-1], self._timeout_s, self._around)
            return timelines.to_line(timelines.engine_timeline(self._toolchain.timelines(program), source))
        except CandidateFault as fault:
            return {"refused": str(fault)}


if __name__ == "__main__":
    sys.exit(main())
