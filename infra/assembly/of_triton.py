"""A run on a Triton kernel: no machine is simulated, so nothing is priced; the catalogue sweeps declared tunables."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accelopt_core.catalogue.measured_sweep import sweeping_proposer
from accelopt_core.language import Language
from accelopt_core.languages.triton.api import api_reference, instruction_list
from accelopt_core.languages.triton.gpus import GPUS
from accelopt_core.languages.triton.language import TRITON
from accelopt_core.languages.triton.machine_facts import GpuFacts, gpu_facts
from accelopt_core.model.prompting import PromptSettings
from accelopt_core.ports import Target, TargetInfo
from accelopt_core.proposer import Proposer
from accelopt_core.task import Task
from infra.assembly.language_parts import Teaching
from infra.prediction.predictor import Predictor

if TYPE_CHECKING:  # loaded late, when `config` may be a caller's own file of that name
    import config


@dataclass(frozen=True)
class TritonParts:
    language: Language = TRITON

    def predictor(self, settings: config.Settings, task: Task, info: TargetInfo, target: Target) -> Predictor | None:
        return None

    def catalogue(self, predictor: Predictor | None) -> Proposer:
        return sweeping_proposer(datetime.date.today)

    def teaching(self, info: TargetInfo, source: str, sweeps: bool) -> Teaching:
        gpu = GPUS.get(info.machine)
        facts = gpu_facts(gpu) if gpu is not None else GpuFacts(info.machine)
        return Teaching(
            PromptSettings(TRITON.key, facts, sweeps=sweeps), lambda source, also: api_reference(), instruction_list()
        )
