"""The toolchains a judge can be given: by the language of its task, and by name. Shipped to the instance."""

from __future__ import annotations

from collections.abc import Callable

from accelopt_core.languages.registry import UnknownLanguage
from accelopt_core.ports import TargetInfo
from accelopt_core.toolchain import Calibration, Toolchain, ToolchainMissing
from infra.isolation.sandbox import CANDIDATE_BYTES
from infra.languages.registry import supported


def open_toolchain(
    name: str,
    *,
    language: str,
    machine: str,
    calibration: Calibration | None = None,
    memory_bytes: int = CANDIDATE_BYTES,
    processes: int | None = None,
    told: Callable[[str], object] = lambda line: None,
) -> Toolchain:
    """As `accelopt_core.languages.supported.OpenToolchain`. `language`: its key. Raises ToolchainMissing."""
    try:
        found = supported(language)
    except UnknownLanguage as error:
        raise ToolchainMissing(str(error)) from None
    return found.open_toolchain(
        name, machine=machine, calibration=calibration, memory_bytes=memory_bytes, processes=processes, told=told
    )


def account_of(toolchain: Toolchain, calibration: Calibration | None = None) -> TargetInfo:
    """What is evaluated with it, and on which machine; `calibration`: that it was opened with."""
    return TargetInfo(
        toolchain.name, toolchain.fingerprint, toolchain.simulated, toolchain.machine.name, toolchain.caveat,
        toolchain.installed, calibration,
    )  # fmt: skip
