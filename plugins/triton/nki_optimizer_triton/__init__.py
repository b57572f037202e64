"""Triton kernels for NVIDIA GPUs as a language of nki-optimizer: traced, compiled, checked, executed and timed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from accelopt_core.language import Language
from accelopt_core.languages.plugin import LanguagePlugin
from accelopt_core.languages.supported import Supported
from infra.settings_reader import Group, SettingsError, setting

SUFFIX = ".json"
"""Of definitions and solutions of FlashInfer-Bench's."""


@dataclass(frozen=True)
class FlashInferSettings(Group):
    """part of the group `run`, whose other settings it is checked against"""

    workloads: tuple[str, ...] = setting(
        (),
        "Of a definition of FlashInfer-Bench's (--problem DEFINITION.json, or --kernel SOLUTION.json): by uuid or its "
        "beginning, by commas; the last is timed, the others are checked before. Without it: the smallest and the "
        "largest.",
        metavar="UUID,UUID,...",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        kernel, problem, resume, in_place = (
            getattr(self, name, None) for name in ("kernel", "problem", "resume", "in_place")
        )
        in_json = [path for path in (kernel, problem) if path is not None and path.suffix == SUFFIX]
        if self.workloads and not in_json and resume is None:
            raise SettingsError("workloads: of which definition? give --problem DEFINITION.json")
        if in_place and kernel in in_json:
            raise SettingsError("in-place: a solution is no kernel file: the winner is written to the run's folder")


def _language() -> Language:
    from nki_optimizer_triton.language.language import TRITON

    return TRITON


def _supported() -> Supported:
    from nki_optimizer_triton.judging import SUPPORTED

    return SUPPORTED


PLUGIN = LanguagePlugin(
    key="triton",
    machines=("h100", "a100", "a100-40gb", "a100-pcie", "h100-pcie", "h200", "l4", "l40s", "b200", "rtx4090"),
    package=Path(__file__).resolve().parent,
    language=_language,
    supported=_supported,
    parts=f"{__name__}.running",
    doctor=f"{__name__}.gpu_doctor",
    settings=FlashInferSettings,
    task_files=(SUFFIX,),
)
