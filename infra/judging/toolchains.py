"""The toolchains a judge can be given, by name. Shipped to the instance."""

from __future__ import annotations

from collections.abc import Callable

from accelopt_core.ports import TargetInfo
from accelopt_core.toolchain import Toolchain, ToolchainMissing
from infra.judging.simulator_toolchain import CANDIDATE_BYTES, SimulatorToolchain, traced_on_simulator
from nki_sim.calibration import Calibration


def open_toolchain(
    name: str,
    *,
    machine: str,
    calibration: Calibration | None = None,
    memory_bytes: int = CANDIDATE_BYTES,
    told: Callable[[str], object] = lambda line: None,
) -> Toolchain:
    """`simulator`, or `auto`: the first Neuron route that works here. Raises ToolchainMissing.

    `machine`: which the simulator simulates; a device says itself what it is.
    `calibration`: of that machine, or of the device: bounds and gaps are then of its constants.
    `memory_bytes`: what a candidate may use of this machine while the simulator traces it; a real compiler takes what
    it takes.
    `told`: of a device; who is waited for while others use it.
    """
    if name == "simulator":
        return SimulatorToolchain(machine, calibration=calibration, memory_bytes=memory_bytes)
    if name == "auto":
        from infra.neuron.toolchain import open_neuron_toolchain  # only here: the simulator's judge starts faster

        return open_neuron_toolchain(traced_on_simulator, calibration=calibration, told=told)
    raise ToolchainMissing(f"no toolchain is named {name!r}: simulator or auto")


def account_of(toolchain: Toolchain, calibration: Calibration | None = None) -> TargetInfo:
    """What is evaluated with it, and on which machine; `calibration`: that it was opened with."""
    return TargetInfo(
        toolchain.name, toolchain.fingerprint, toolchain.simulated, toolchain.machine.name, toolchain.caveat,
        toolchain.installed, calibration,
    )  # fmt: skip
