"""`nki.jit` and `nki.simulate`: a kernel as an object that can be called, indexed and scheduled."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from nki_sim import run
from nki_sim.errors import NkiValidationError
from nki_sim.machine import ISA
from nki_sim.session import active

_IGNORED = ("mode", "debug_kernel", "show_compiler_tb", "experimental_flags")
"""Options of nki.jit that do not change what a kernel computes; NKI accepts and ignores `mode` from 0.3."""


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Mark a kernel. Calling it with arrays runs it on the simulator; `kernel[2](...)` runs it on two cores.

    `platform_target=` raises, as in NKI 0.3 and later: set NEURON_PLATFORM_TARGET_OVERRIDE instead.
    """
    for name in options:
        if name == "platform_target":
            raise NkiValidationError(
                "nki.jit(platform_target=...) was removed in NKI 0.3: set NEURON_PLATFORM_TARGET_OVERRIDE instead"
            )
        if name not in _IGNORED:
            raise NkiValidationError(f"nki.jit has no option {name!r}")
    if function is None:
        return functools.partial(jit, **options)
    return function if isinstance(function, Kernel) else Kernel(function)


class Kernel:
    """A kernel function with a launch grid (`kernel[lnc]`) and a schedule (`kernel.with_schedule`)."""

    cores: int | None
    schedule: tuple[tuple[str, Any], ...]

    def __init__(
        self,
        function: Callable[..., Any],
        cores: int | None = None,
        schedule: Sequence[tuple[str, Any]] = (),
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.cores = cores
        self.schedule = tuple(schedule)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if active() is not None:  # a kernel that calls a kernel is inlined
            return self._function(*arguments, **keywords)
        return run.simulate(self)(*arguments, **keywords)

    def __getitem__(self, grid: Any) -> Kernel:
        return Kernel(self._function, _cores(grid), self.schedule)

    def with_schedule(self, schedule: Sequence[tuple[str, Any]]) -> Kernel:
        """Extra edges: (instruction name, name or names of the instructions it waits for)."""
        return Kernel(self._function, self.cores, (*self.schedule, *schedule))


def _cores(grid: Any) -> int:
    if isinstance(grid, tuple) and len(grid) == 1:
        grid = grid[0]
    try:
        cores = operator.index(grid)
    except TypeError:
        raise NkiValidationError(f"kernel[{grid!r}]: the launch grid is one number of cores, 1 or 2") from None
    if not 1 <= cores <= ISA.logical_core_cores:
        raise NkiValidationError(f"kernel[{cores}]: a logical core has 1 or {ISA.logical_core_cores} cores")
    return cores


class Simulation:
    """`nki.simulate(kernel)`: call it with arrays; `[lnc]` before the call gives the number of cores."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)

    def __getitem__(self, grid: Any) -> Simulation:
        return Simulation(self._kernel[grid])

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return run.simulate(self._kernel)(*arguments, **keywords)


def simulate(kernel: Any) -> Simulation:
    """A CPU version of a kernel: NumPy arrays or torch tensors in, the same kind out."""
    return Simulation(kernel)


cpu_simulate = simulate
