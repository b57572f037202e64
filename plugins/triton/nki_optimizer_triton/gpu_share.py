"""Which of a machine's GPUs this process works on: one that no other process of this program holds. Shipped."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelopt_core.toolchain import ToolchainMissing
from infra.devices.leases import Lease, LeaseFolder, Told
from infra.devices.share import CORES_VARIABLE, PATIENCE_S, WAIT_VARIABLE

RUNTIME_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""CUDA's own; a user who sets them has chosen which GPUs there are, and in which order they are numbered."""

PACKAGES_VARIABLE = "NKI_OPTIMIZER_CUDA_PACKAGES"
"""Names a folder with CUDA's Python bindings (cuda-bindings, nvidia-ml-py), where this Python's own lack them."""


@dataclass(frozen=True)
class VisibleGpu:
    """One that CUDA shows, by what its driver says of it."""

    number: int
    facts: Mapping[str, Any]

    @property
    def lease(self) -> str:
        """By the last part of its UUID: numbers depend on who asks. `nvidia-smi -L` lists UUIDs."""
        return f"gpu-{self.facts['uuid'][-12:]}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Latencies of two that differ here cannot be compared."""
        return tuple(self.facts[name] for name in ("name", "capability", "multiprocessors"))


class GpuShare:
    """One GPU from its first use to `close`. Each has memory of its own, so whoever has one may measure on it."""

    def __init__(
        self, there: Sequence[VisibleGpu], *, folder: LeaseFolder | None = None, told: Told = lambda line: None
    ) -> None:
        """Those that may be used are the environment's choice (`CORES_VARIABLE`), or all. Raises ToolchainMissing for
        one that is not there, and for GPUs of several kinds."""
        wanted = os.environ.get(CORES_VARIABLE, "")
        try:
            numbers = [int(word) for word in wanted.split(",")] if wanted else [gpu.number for gpu in there]
            self._patience_s = float(os.environ.get(WAIT_VARIABLE) or PATIENCE_S)
        except ValueError as error:
            raise ToolchainMissing(f"{CORES_VARIABLE}, {WAIT_VARIABLE}: {error}") from None
        known = {gpu.number: gpu for gpu in there}
        beyond = [str(number) for number in numbers if number not in known]
        if beyond:
            raise ToolchainMissing(
                f"GPU {', '.join(beyond)}: CUDA shows {len(there)} here, numbered from 0; choose others with --cores"
            )
        self.gpus = tuple(known[number] for number in numbers)
        other = next((gpu for gpu in self.gpus if gpu.kind != self.gpus[0].kind), None)
        if other is not None:
            first = self.gpus[0]
            raise ToolchainMissing(
                f"GPU {first.number} is {first.facts['name']} and GPU {other.number} is {other.facts['name']}: "
                "latencies of two kinds cannot be compared; choose GPUs of one kind with --cores"
            )
        self._folder = folder or LeaseFolder()
        self._told = told
        self._lease: Lease | None = None
        self._owner = os.getpid()

    def take(self) -> VisibleGpu:
        """The one that is held, or the first that is free. Raises LeaseUnavailable."""
        if self._lease is None:
            started = time.monotonic()
            try:
                self._lease = self._folder.wait([gpu.lease for gpu in self.gpus], self._patience_s, self._told)
            finally:
                self._patience_s = max(0.0, self._patience_s - (time.monotonic() - started))
        else:
            self._lease.check()
        held = self._lease.name
        return next(gpu for gpu in self.gpus if gpu.lease == held)

    def check(self) -> None:
        """Raises LeaseUnavailable where somebody may have measured beside us."""
        if self._lease is not None:
            self._lease.check()

    def close(self) -> None:
        if self._lease is not None and os.getpid() == self._owner:  # a fork of the judge holds nothing
            self._lease.release()
            self._lease = None
