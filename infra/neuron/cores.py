"""Which NeuronCore this process works on, and when it may measure. Shipped."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence

from accelopt_core.toolchain import ToolchainMissing
from infra.neuron.leases import Lease, LeaseFolder, Told
from nki_sim.machine import MACHINES

CORES_VARIABLE = "NKI_OPTIMIZER_CORES"
"""Cores this process may use, by commas; without it, any of the machine."""
WAIT_VARIABLE = "NKI_OPTIMIZER_CORE_WAIT_S"
RUNTIME_VARIABLE = "NEURON_RT_VISIBLE_CORES"
"""The Neuron runtime's own; a user who sets it has chosen, and no core is leased."""

PATIENCE_S = 1800.0
TIMING = "timing"
"""Held by whoever measures: cores share HBM and its bandwidth, so only one candidate of a host is timed at a time."""


class CoreShare:
    """This process's share of a host: one core from its first use to `close`, and the whole host while it times."""

    def __init__(
        self,
        cores: Sequence[int],
        *,
        chosen: str | None = None,
        folder: LeaseFolder | None = None,
        patience_s: float = PATIENCE_S,
        told: Told = lambda line: None,
    ) -> None:
        """`chosen`: the user's own NEURON_RT_VISIBLE_CORES, used as it is. `patience_s`: for all waiting together."""
        self.cores = tuple(cores)
        self._chosen = chosen
        self._folder = folder or LeaseFolder()
        self._patience_s = patience_s
        self._told = told
        self._core: Lease | None = None
        self._taking = threading.Lock()

    @property
    def core(self) -> str:
        """For NEURON_RT_VISIBLE_CORES. Raises LeaseUnavailable."""
        if self._chosen is not None:
            return self._chosen
        with self._taking:
            if self._core is None:
                self._core = self._wait([f"core-{number}" for number in self.cores])
            else:
                self._core.check()
            return self._core.name.removeprefix("core-")

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """The host to oneself, as far as other processes of this program go. Not to be nested."""
        with self._wait([TIMING]) as lease:
            yield
            lease.check()  # else somebody may have measured beside us

    def close(self) -> None:
        if self._core is not None:
            self._core.release()
            self._core = None

    def _wait(self, names: Sequence[str]) -> Lease:
        started = time.monotonic()
        try:
            return self._folder.wait(names, self._patience_s, self._told)
        finally:
            self._patience_s = max(0.0, self._patience_s - (time.monotonic() - started))


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
