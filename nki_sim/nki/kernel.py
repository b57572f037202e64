"""`nki.jit` and `nki.simulate`: a kernel as an object that can be called, indexed and scheduled."""

from __future__ import annotations

import functools
import operator
import os
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from nki_sim.errors import NkiValidationError
from nki_sim.machine import ISA
from nki_sim.nki import run
from nki_sim.nki.compiler import CompileConfig, SpecializationConfig
from nki_sim.tracing.session import active

_IGNORED = ("mode", "debug_kernel", "show_compiler_tb", "experimental_flags")
"""Options of nki.jit that do not change what a kernel computes; NKI accepts and ignores `mode` from 0.3."""
_DEGREE = "NEURON_LOGICAL_NC_CONFIG"
"""Cores of a logical core, for kernels and for neuronx-cc."""
_FLAG = re.compile(r"--(?:lnc|logical-nc-config)[ =](\d+)")


def jit(
    function: Callable[..., Any] | None = None,
    *,
    compile_config: CompileConfig | None = None,
    specialization_config: SpecializationConfig | None = None,
    **options: Any,
) -> Any:
    """Mark a kernel. Calling it with arrays runs it on the simulator; `kernel[2](...)` runs it on two cores.

    The configurations are of NKI 0.7 (`nki.compiler`). `platform_target=` raises, as in NKI 0.3 and later: set
    NEURON_PLATFORM_TARGET_OVERRIDE instead.
    """
    for name in options:
        if name == "platform_target":
            raise NkiValidationError(
                "nki.jit(platform_target=...) was removed in NKI 0.3: set NEURON_PLATFORM_TARGET_OVERRIDE instead"
            )
        if name not in _IGNORED:
            raise NkiValidationError(f"nki.jit has no option {name!r}")
    for given, kind in ((compile_config, CompileConfig), (specialization_config, SpecializationConfig)):
        if given is not None and not isinstance(given, kind):
            raise NkiValidationError(f"nki.jit takes a nki.compiler.{kind.__name__}, not {given!r}")
    if function is None:
        return functools.partial(
            jit, compile_config=compile_config, specialization_config=specialization_config, **options
        )
    if not isinstance(function, Kernel):
        return Kernel(function, compile_config=compile_config, specialization_config=specialization_config)
    return function.configured(compile_config, specialization_config)


class Kernel:
    """A kernel function with a launch grid (`kernel[lnc]`), a schedule (`kernel.with_schedule`) and configurations."""

    cores: int | None
    schedule: tuple[tuple[str, Any], ...]

    def __init__(
        self,
        function: Callable[..., Any],
        cores: int | None = None,
        schedule: Sequence[tuple[str, Any]] = (),
        compile_config: CompileConfig | None = None,
        specialization_config: SpecializationConfig | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.cores = cores
        self.schedule = tuple(schedule)
        self.compile_config = compile_config
        self.specialization_config = specialization_config

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        tracer = active()
        if tracer is not None:  # a kernel that calls a kernel is inlined
            self._agree(*tracer.configuration)
            return self._function(*arguments, **keywords)
        return run.simulate(self.launched())(*arguments, **keywords)

    def __getitem__(self, grid: Any) -> Kernel:
        return self._with(_cores(grid), self.schedule)

    def with_schedule(self, schedule: Sequence[tuple[str, Any]]) -> Kernel:
        """Extra edges: (instruction name, name or names of the instructions it waits for)."""
        return self._with(self.cores, (*self.schedule, *schedule))

    def configured(
        self, compile_config: CompileConfig | None, specialization_config: SpecializationConfig | None
    ) -> Kernel:
        """With what is given in place of its own."""
        if compile_config is None and specialization_config is None:
            return self
        return Kernel(
            self._function,
            self.cores,
            self.schedule,
            compile_config or self.compile_config,
            specialization_config or self.specialization_config,
        )

    def launched(self) -> Kernel:
        """On as many cores as its brackets say, or else the environment. Raises NkiValidationError (NCC_EVRF066)."""
        return self._with(_launched_on(self.cores, getattr(self, "__name__", "kernel")), self.schedule)

    def _with(self, cores: int | None, schedule: Sequence[tuple[str, Any]]) -> Kernel:
        return Kernel(self._function, cores, schedule, self.compile_config, self.specialization_config)

    def _agree(self, outer: CompileConfig | None, tracing: SpecializationConfig | None) -> None:
        """It is traced under the configuration of the kernel that calls it: its own, where it has one, is the same.

        Raises NkiValidationError, or warns where the outer kernel allows another one.
        """
        if self.compile_config is None or self.compile_config == (outer or CompileConfig()):
            return
        text = f"{getattr(self, '__name__', 'a kernel')} is called in a kernel with another compile_config"
        if tracing is None or not tracing.allow_nested_config_override:
            raise NkiValidationError(
                f"{text}: give both the same, or the outer one SpecializationConfig(allow_nested_config_override=True)"
            )
        warnings.warn(f"{text}, and is compiled under the outer one's", stacklevel=3)


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


def _launched_on(cores: int | None, name: str) -> int | None:
    """From NKI 0.7 the degree is the environment's, and a kernel in brackets has to agree with it and the compiler."""
    configured = os.environ.get(_DEGREE, "")
    degree = _cores(int(configured)) if configured.isdigit() else None
    flag = _FLAG.search(os.environ.get("NEURON_CC_FLAGS", ""))
    compiled = int(flag.group(1)) if flag else degree
    wanted = cores if cores is not None else degree
    if compiled is not None and (wanted or 1) != compiled:
        raise NkiValidationError(
            f"NKI kernel '{name}' is configured with LNC={wanted or 1}, but neuronx-cc is using LNC={compiled} "
            f"(NCC_EVRF066): set {_DEGREE} and --lnc to the same, and call the kernel without brackets"
        )
    return wanted


class Simulation:
    """`nki.simulate(kernel)`: call it with arrays; `[lnc]` before the call gives the number of cores."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)

    def __getitem__(self, grid: Any) -> Simulation:
        return Simulation(self._kernel[grid])

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return run.simulate(self._kernel.launched())(*arguments, **keywords)


def simulate(kernel: Any) -> Simulation:
    """A CPU version of a kernel: NumPy arrays or torch tensors in, the same kind out."""
    return Simulation(kernel)


cpu_simulate = simulate
