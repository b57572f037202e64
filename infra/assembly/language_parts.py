"""What a run is put together from that depends on what its kernels are written in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import config
from accelopt_core.language import Language
from accelopt_core.model.prompting import PromptSettings
from accelopt_core.ports import Target, TargetInfo
from accelopt_core.proposer import Proposer
from accelopt_core.task import Task
from infra.prediction.predictor import Predictor


@dataclass(frozen=True)
class Teaching:
    """What a model is told of a language and its machine."""

    settings: PromptSettings
    api_reference: Callable[[str, str], str]
    """Kernel source and plan in, API text for the executor out."""
    instructions: str
    """The API in a line each, for the planner."""


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
