"""A run on an NKI kernel: prices from the simulated Trainium, the catalogue of rules, what models are taught."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accelopt_core.catalogue.proposer import catalogue_proposer
from accelopt_core.language import Language
from accelopt_core.languages.nki.dialect import Dialect
from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.nki.machine_facts import machine_facts
from accelopt_core.model.prompting import PromptSettings
from accelopt_core.ports import Target, TargetInfo
from accelopt_core.proposer import Proposer
from accelopt_core.task import Surroundings, Task
from accelopt_core.toolchain import ArgumentSpec
from infra.assembly.language_parts import Outputs, Teaching
from infra.assembly.targets import predictor_of
from infra.neuron.routes import SDK_OF_NKI
from infra.prediction.predictor import Predictor
from infra.simulator.toolchain import SimulatorToolchain
from nki_sim.lint import LAST_PARSED, VERSIONS, valid_in
from nki_sim.reference import api_reference, instruction_list, nki_text
from nki_sim.timing import ties
from nki_sim.timing.calibration import calibrated_machine

if TYPE_CHECKING:  # loaded late, when `config` may be a caller's own file of that name
    import config


@dataclass(frozen=True)
class NkiParts:
    language: Language = NKI

    def predictor(self, settings: config.Settings, task: Task, info: TargetInfo, target: Target) -> Predictor:
        return predictor_of(settings, task, info, target)

    def catalogue(self, predictor: Predictor | None) -> Proposer:
        assert predictor is not None, "NKI has one"
        return catalogue_proposer(predictor, datetime.date.today, ties.shipped().within)

    def teaching(self, info: TargetInfo, source: str, sweeps: bool) -> Teaching:
        versions = nki_versions(info, source)
        core = calibrated_machine(info.machine, info.calibration)
        traced = VERSIONS.index(versions[0]) > VERSIONS.index(LAST_PARSED)
        dialect = Dialect(nki_text(versions), traced)
        return Teaching(
            PromptSettings(NKI.key, machine_facts(core), dialect, sweeps=sweeps),
            lambda source, also: api_reference(source, info.machine, versions, also),
            instruction_list(info.machine, versions),
        )

    def tracer(self, machine: str) -> OnSimulator:
        return OnSimulator(machine)


class OnSimulator:
    def __init__(self, machine: str) -> None:
        self._simulator = SimulatorToolchain(machine)

    def outputs(self, source: str, specs: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings) -> Outputs:
        program = self._simulator.compile(source, specs, timeout_s, around).program
        return tuple((str(each.dtype), tuple(size for _, size in each.pattern)) for each in program.outputs)

    def loaded_as(
        self, source: str, specs: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings
    ) -> tuple[str, ...]:
        program = self._simulator.compile(source, specs, timeout_s, around).program
        found: dict[int, str] = {}
        for number, start in zip(program.template_ids, program.operand_starts):
            dst, *sources = program.templates[number].operands
            for at, each in enumerate(sources, 1):
                if each.access == "r" and not each.region.on_chip:
                    found.setdefault(int(program.operand_data[start + at, 0]), str(dst.dtype))
        return tuple(found.get(each.allocation, "") for each in program.inputs)

    def close(self) -> None:
        self._simulator.close()


def nki_versions(info: TargetInfo, source: str) -> tuple[str, ...]:
    """What candidates are to be valid in: the device's NKI, or else every one that the user's kernel is valid in."""
    there = next((f"{a}.{b}" for (a, b), sdk in SDK_OF_NKI.items() if sdk == info.installed.sdk), "")
    return (there,) if there in VERSIONS else valid_in(source)
