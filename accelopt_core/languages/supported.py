"""What this program must have of a language to judge its kernels, here and on hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from accelopt_core.evaluation import CompilersOwn
from accelopt_core.language import Language
from accelopt_core.ports import EvaluationRequest
from accelopt_core.toolchain import Calibration, Toolchain


class OpenToolchain(Protocol):
    def __call__(
        self,
        name: str,
        *,
        machine: str,
        calibration: Calibration | None,
        memory_bytes: int,
        processes: int | None,
        told: Callable[[str], object],
    ) -> Toolchain:
        """`simulator`: what stands in for a device here; `auto`: the device of this machine. Raises ToolchainMissing.

        `machine`: which is stood in for; a device says itself what it is.
        `calibration`: of that machine, or of the device: bounds and gaps are then of its constants.
        `memory_bytes`: what a candidate may use of this machine while it is traced.
        `processes`: that what stands in for a device runs a program in at once, at most; None: one for each CPU.
        `told`: of a device; who is waited for while others use it.
        """
        ...


@dataclass(frozen=True)
class HostNeeds:
    """What a host must have for its devices to be used."""

    pythons: tuple[str, ...]
    """Where to look for a Python that has it, as globs, the likeliest first."""
    modules: tuple[tuple[str, ...], ...]
    """Of each row one must be there, beside NumPy and ml_dtypes."""
    tools: str
    """Folder of command-line tools that log-ins without a terminal often lack in PATH; empty where there is none."""
    name: str
    """E.g. `Neuron SDK`."""
    remedy: str
    """What to do where it is missing."""


@dataclass(frozen=True)
class Supported:
    language: Language
    module: str
    """That has all this; what judges its kernels loads it."""
    open_toolchain: OpenToolchain
    calibration_of: Callable[[Mapping[str, Any] | None], Calibration | None]
    """Behind its `asdict` form, checked; None for None. Raises ValueError, TypeError or KeyError."""
    here: str
    """The toolchain that this machine by itself is a target with: `simulator`, or `auto` for a device of its own."""
    host: HostNeeds
    compilers_own: Callable[[Toolchain, EvaluationRequest], CompilersOwn]
    """What the device's compiler makes of a task's reference by itself. Raises ToolchainMissing and BadReference."""
    prepare: Callable[[str], None] = lambda name: None
    """What a judge does for the toolchain of that name before it knows its job, and may do only then."""
    variables: tuple[str, ...] = ()
    """Of the user's environment, by which he chooses devices of this machine: its judges see them."""
