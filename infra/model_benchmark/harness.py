"""What runs a model and measures it: one file each, and a line in `harnesses.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from accelopt_core.ports import TargetMisconfigured
from infra.model_benchmark.figures import Figures
from infra.ssh.runner import JOB_DIR

REPORT = "report.json"
"""Of a harness that is told where its report goes."""

Read = Mapping[str, bytes | None]
"""Files of the checkout by name; None for one that is not there."""


class BadHarness(TargetMisconfigured):
    """The harness cannot be run so: correct its flags, or the checkout that was named."""


@dataclass(frozen=True)
class Command:
    """One run, in a folder of its own on the host: nothing that it leaves there comes into the checkout."""

    argv: tuple[str, ...]
    collect: tuple[str, ...]
    """Files of that folder that are brought back; those that are missing are left out."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Laid into it before."""


class Harness(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def words(self) -> tuple[str, ...]:
        """All that it was told; runs of equal words may stand for each other."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Modules that its Python must have."""
        ...

    @property
    def reads(self) -> tuple[str, ...]:
        """Files of the checkout that it wants to see beforehand, where they are there."""
        ...

    def command(self, python: str, checkout: str, read: Read) -> Command:
        """`python`, `checkout`: paths on the host. Raises BadHarness."""
        ...

    def figures(self, files: Mapping[str, bytes], read: Read) -> Figures:
        """From the files that came back. Raises ReportInvalid."""
        ...


def environment() -> dict[str, str]:
    """Of every run: Python and the compiler cache nothing that the other run, with other kernels, could take for its
    own. NEURON_COMPILE_CACHE_URL: AWS Neuron documentation, "Neuron Persistent Cache"."""
    return {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPYCACHEPREFIX": f"{JOB_DIR}/bytecode",
        "PYTHONUNBUFFERED": "1",
        "NEURON_COMPILE_CACHE_URL": f"{JOB_DIR}/compile-cache",
    }
