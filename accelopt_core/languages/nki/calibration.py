"""A calibration of a NeuronCore's model, as it comes over a wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelopt_core.toolchain import Calibration
from nki_sim.machine import machine
from nki_sim.timing.calibration import with_constants


def from_json(data: Mapping[str, Any] | None) -> Calibration | None:
    """The Calibration behind its `asdict` form, checked; None for None. Raises ValueError, TypeError or KeyError."""
    if data is None:
        return None
    made = Calibration(
        str(data["machine"]),
        str(data["on"]),
        str(data["line"]),
        tuple((str(name), float(value)) for name, value in data["constants"]),
    )
    with_constants(machine(made.machine), dict(made.constants))
    return made
