"""What a run is put together from that depends on what its kernels are written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import config
from accelopt_core.evaluation import Measured
from accelopt_core.language import Language
from accelopt_core.model.prompting import PromptSettings
from accelopt_core.ports import Target, TargetInfo
from accelopt_core.proposer import Proposer
from accelopt_core.task import Surroundings, Task
from accelopt_core.toolchain import ArgumentSpec
from infra.prediction.predictor import Predictor


@dataclass(frozen=True)
class Teaching:
    """What a model is told of a language and its machine."""

    settings: PromptSettings
    api_reference: Callable[[str, str], str]
    """Kernel source and plan in, API text for the executor out."""
    instructions: str
    """The API in a line each, for the planner."""


Outputs = tuple[tuple[str, tuple[int, ...]], ...]
"""dtype and shape of each."""


class Tracer(Protocol):
    """Tells what a kernel returns, without compiling or running it."""

    def outputs(self, source: str, specs: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings) -> Outputs:
        """Raises CandidateFault and ToolchainMissing."""
        ...

    def loaded_as(
        self, source: str, specs: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings
    ) -> tuple[str, ...]:
        """Of each array the dtype of the tile that it is loaded into first; empty where nothing tells. Raises as
        `outputs` does."""
        ...

    def close(self) -> None: ...


class LanguageParts(Protocol):
    @property
    def language(self) -> Language: ...

    def predictor(self, settings: config.Settings, task: Task, info: TargetInfo, target: Target) -> Predictor | None:
        """What prices kernels on a simulated machine; None where there is none."""
        ...

    def catalogue(self, predictor: Predictor | None) -> Proposer:
        """The four roles without a model."""
        ...

    def teaching(self, info: TargetInfo, source: str, sweeps: bool) -> Teaching:
        """`source`: what the run begins with; `sweeps`: what a kernel declares tunable is swept by price."""
        ...

    def tracer(self, machine: str) -> Tracer: ...


# --- of plugins -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Winner:
    """A run's kernel that is right and faster than its input, and how it was measured."""

    source: str
    around: Surroundings
    file: str
    """The name of its file."""
    result: Measured
    baseline: Measured
    """The input kernel."""
    target: TargetInfo


class Origin(Protocol):
    """What of another project's a run is about."""

    @property
    def name(self) -> str:
        """The task's."""
        ...

    @property
    def kept(self) -> tuple[str, str]:
        """A file of the run's folder, and its text, that `PluginParts.origin_of` reads."""
        ...

    def written(self, folder: Path, run_id: str, winner: Winner | None, now: datetime) -> str:
        """What was written of the winner in that project's format, for people. `folder`: the run's. Raises
        JournalError."""
        ...


@dataclass(frozen=True)
class GivenKernel:
    """A kernel that is no file of its own."""

    text: str
    around: Surroundings


@dataclass(frozen=True)
class ReadTask:
    """A task of another project's."""

    name: str
    reference: str
    """Text of a reference module."""
    file: Path
    """What it was made of."""
    kernel: GivenKernel | None
    """None where the kernel is a file."""
    of_presets: Mapping[str, tuple[str, Origin]]
    """By the shape that is timed: what of the file that is, for people, and what the run is about then."""


class MachineReport(Protocol):
    """A frozen dataclass: what `doctor` found of a machine."""

    @property
    def unix_time_s(self) -> float:
        """When it was written, on that machine's clock."""
        ...

    @property
    def verifies(self) -> bool: ...

    @property
    def evaluates_on_device(self) -> bool: ...

    def render(self, *, device_wanted: bool, clock_skew_s: float | None) -> str:
        """For people."""
        ...


class PluginParts(LanguageParts, Protocol):
    """What the `PARTS` of a plugin are (`LanguagePlugin.parts`)."""

    def examine(self, machine: str) -> MachineReport:
        """This machine. `machine`: compiled for where no device says what it is."""
        ...

    def read_examination(self, printed: str) -> MachineReport:
        """What the plugin's doctor printed on a host. Raises ValueError."""
        ...

    @property
    def remedy(self) -> str:
        """What to do on a host whose Python the plugin's doctor does not run in."""
        ...

    def read_task(self, settings: object, kernel: Path, problem: Path | None, function: str | None) -> ReadTask:
        """Where one of the two is of the plugin's `task_files`. `settings`: the group `run`, with the plugin's own.
        Raises TaskInvalid and SettingsError."""
        ...

    def origin_of(self, folder: Path) -> Origin | None:
        """Of a run, by its folder. Raises JournalError."""
        ...
