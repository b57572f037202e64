"""The process that prices kernels for `predictor.py`: a line of JSON in, a line of JSON out, until the input ends.

The first line says the machine, its calibration, the time limit, the arguments at each shape and the files around the
kernel as well.
"""

from __future__ import annotations

import json
import signal
import sys

from accelopt_core.task import ALONE
from accelopt_core.toolchain import ArgumentSpec, CandidateFault
from infra.isolation.sandbox import adopt_descendants
from infra.judging.simulator_toolchain import SimulatorToolchain
from infra.judging.wire import decode_surroundings
from infra.prediction.predictor import decode_arguments
from nki_sim.calibration import from_json


def main() -> int:
    toolchain: SimulatorToolchain | None = None
    presets: tuple[tuple[ArgumentSpec, ...], ...] = ()
    timeout_s, around = 0.0, ALONE
    adopt_descendants()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # through the sandbox, which ends what it runs
    try:
        for line in sys.stdin:
            job = json.loads(line)
            if toolchain is None:
                toolchain = SimulatorToolchain(job["machine"], calibration=from_json(job["calibration"]))
                presets = tuple(decode_arguments(arguments) for arguments in job["arguments"])
                timeout_s = job["timeout_s"]
                around = decode_surroundings(job["around"])
            try:
                compiled = [toolchain.compile(job["source"], preset, timeout_s, around) for preset in presets]
                us: float | None = toolchain.estimate_us(compiled[-1])
            except CandidateFault:
                us = None
            sys.stdout.write(json.dumps({"us": us}) + "\n")
            sys.stdout.flush()
    finally:
        if toolchain is not None:
            toolchain.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
