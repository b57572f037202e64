"""Which NeuronCore this process works on. Shipped."""

from __future__ import annotations

import os

from accelopt_core.toolchain import ToolchainMissing
from infra.devices.leases import Told
from infra.devices.share import CORES_VARIABLE, PATIENCE_S, WAIT_VARIABLE, CoreShare
from nki_sim.machine import MACHINES

RUNTIME_VARIABLE = "NEURON_RT_VISIBLE_CORES"
"""The Neuron runtime's own; a user who sets it has chosen, and no core is leased."""


def share_of_this_host(machine: str, devices: int, told: Told = lambda line: None) -> CoreShare:
    """As the environment has it. Raises ToolchainMissing for cores that this machine has not.

    machine: a key of `nki_sim.machine.MACHINES`; devices: how many the driver shows.
    """
    if machine not in MACHINES:
        raise ToolchainMissing(f"{machine} is not known here, only {', '.join(MACHINES)}: upgrade")
    per_device = MACHINES[machine].cores_per_device
    there = range(devices * per_device)
    wanted = os.environ.get(CORES_VARIABLE, "")
    chosen = None if wanted else os.environ.get(RUNTIME_VARIABLE) or None
    try:
        cores = [int(word) for word in wanted.split(",")] if wanted else list(there)
        patience_s = float(os.environ.get(WAIT_VARIABLE) or PATIENCE_S)
    except ValueError as error:
        raise ToolchainMissing(f"{CORES_VARIABLE}, {WAIT_VARIABLE}: {error}") from None
    beyond = [str(core) for core in cores if core not in there]
    if beyond:
        raise ToolchainMissing(
            f"core {', '.join(beyond)}: this machine has {len(there)}, 0 to {len(there) - 1} "
            f"({devices} devices of {per_device}); choose others with --cores"
        )
    return CoreShare(cores, chosen=chosen, patience_s=patience_s, told=told)
