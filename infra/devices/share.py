"""Which device, or core of one, this process works on, and when it may measure. Shipped."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

from infra.devices.leases import Lease, LeaseFolder, Told

CORES_VARIABLE = "NKI_OPTIMIZER_CORES"
"""Those this process may use, by commas; without it, any of the machine."""
WAIT_VARIABLE = "NKI_OPTIMIZER_CORE_WAIT_S"

PATIENCE_S = 1800.0
TIMING = "timing"
"""Held by whoever measures: the cores of a host share its memory, so only one candidate of it is timed at a time."""


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
        """`chosen`: what the user has set the runtime's own variable to, used as it is. `patience_s`: for all waiting
        together."""
        self.cores = tuple(cores)
        self._chosen = chosen
        self._folder = folder or LeaseFolder()
        self._patience_s = patience_s
        self._told = told
        self._core: Lease | None = None
        self._taking = threading.Lock()

    @property
    def core(self) -> str:
        """For the runtime's own variable. Raises LeaseUnavailable."""
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
