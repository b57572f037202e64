"""What a run on a Triton kernel is put together from. No machine is simulated, so nothing is priced.

Tasks may be those of FlashInfer-Bench (`flashinfer/`).
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accelopt_core.catalogue.measured_sweep import sweeping_proposer
from accelopt_core.language import Language
from accelopt_core.model.prompting import PromptSettings
from accelopt_core.ports import Target, TargetInfo
from accelopt_core.proposer import Proposer
from accelopt_core.task import Surroundings, Task
from accelopt_core.toolchain import ArgumentSpec
from infra.assembly.language_parts import Outputs, ReadTask, Teaching
from infra.prediction.predictor import Predictor
from infra.settings_reader import SettingsError
from nki_optimizer_triton import SUFFIX, FlashInferSettings, gpu_doctor
from nki_optimizer_triton.flashinfer.definition import read_definition
from nki_optimizer_triton.flashinfer.reference_text import preset_of, reference_text
from nki_optimizer_triton.flashinfer.solution import kernel_of, read_solution
from nki_optimizer_triton.flashinfer.winner import Origin, kept_origin
from nki_optimizer_triton.flashinfer.workload import definition_file, read_workloads
from nki_optimizer_triton.language.api import api_reference, instruction_list
from nki_optimizer_triton.language.gpus import GPUS
from nki_optimizer_triton.language.language import TRITON
from nki_optimizer_triton.language.machine_facts import GpuFacts, gpu_facts
from nki_optimizer_triton.toolchain import open_triton_toolchain

if TYPE_CHECKING:  # loaded late, when `config` may be a caller's own file of that name
    import config


@dataclass(frozen=True)
class TritonParts:
    language: Language = TRITON
    remedy: str = "give its Python what is missing: pip install numpy ml_dtypes triton cuda-bindings"

    def predictor(self, settings: config.Settings, task: Task, info: TargetInfo, target: Target) -> Predictor | None:
        return None

    def catalogue(self, predictor: Predictor | None) -> Proposer:
        """It sweeps what kernels declare tunable."""
        return sweeping_proposer(datetime.date.today)

    def teaching(self, info: TargetInfo, source: str, sweeps: bool) -> Teaching:
        gpu = GPUS.get(info.machine)
        facts = gpu_facts(gpu) if gpu is not None else GpuFacts(info.machine)
        return Teaching(
            PromptSettings(TRITON.key, facts, sweeps=sweeps), lambda source, also: api_reference(), instruction_list()
        )

    def tracer(self, machine: str) -> OfLaunches:
        return OfLaunches(machine)

    def examine(self, machine: str) -> gpu_doctor.GpuReport:
        return gpu_doctor.examine(machine)

    def read_examination(self, printed: str) -> gpu_doctor.GpuReport:
        return gpu_doctor.from_printed(printed)

    def read_task(self, settings: object, kernel: Path, problem: Path | None, function: str | None) -> ReadTask:
        """A definition of FlashInfer-Bench's, and a solution or a plain kernel for it."""
        solution = read_solution(kernel) if kernel.suffix == SUFFIX else None
        if problem is None:
            assert solution is not None
            problem = definition_file(kernel, solution.definition)
        if problem.suffix != SUFFIX:
            raise SettingsError(f"problem: {kernel} is a solution, and is held against its definition: DEFINITION.json")
        if solution is not None and function is not None:
            raise SettingsError(f"function: {kernel} names its function itself: leave the flag away")
        definition = read_definition(problem)
        given = kernel_of(solution, definition, kernel) if solution is not None else None
        wanted = settings.workloads if isinstance(settings, FlashInferSettings) else ()
        workloads = read_workloads(definition, wanted)
        of_presets = {
            preset_of(workloads, each): (
                f"workload {each.uuid}", Origin(definition.name, definition.op_type, each.document)
            )
            for each in workloads
        }  # fmt: skip
        return ReadTask(definition.name, reference_text(definition, workloads), problem, given, of_presets)

    def origin_of(self, folder: Path) -> Origin | None:
        return kept_origin(folder)


PARTS = TritonParts()


class OfLaunches:
    """Traced for a GPU; none is needed, and no kernel compiled."""

    def __init__(self, machine: str) -> None:
        self._toolchain = open_triton_toolchain(machine, on_device=False)

    def outputs(self, source: str, specs: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings) -> Outputs:
        program = self._toolchain.traced_program(source, specs, timeout_s, around)
        return tuple((each.dtype, tuple(each.shape)) for each in program.outputs)

    def loaded_as(
        self, source: str, specs: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings
    ) -> tuple[str, ...]:
        return ("",) * len(specs)  # blocks have the types of what they are loaded from

    def close(self) -> None:
        self._toolchain.close()
