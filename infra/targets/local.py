"""This machine as a target: a fresh judge process for each evaluation."""

from __future__ import annotations

import os
from collections.abc import Sequence

from accelopt_core.evaluation import Evaluation, Step
from accelopt_core.ports import EvaluationRequest, Progress
from accelopt_core.task import DEFAULT_LANGUAGE
from accelopt_core.toolchain import Calibration
from infra.devices.leases import FOLDER_VARIABLE
from infra.devices.share import CORES_VARIABLE, PATIENCE_S
from infra.engines.local import LocalEngine
from infra.languages.registry import supported
from infra.targets.on_engine import EngineTarget


class LocalTarget(EngineTarget):
    """This machine: a fresh judge process for each evaluation."""

    def __init__(
        self,
        toolchain: str,
        machine: str,
        calibration: Calibration | None = None,
        *,
        language: str = DEFAULT_LANGUAGE,
        processes: int | None = None,
        cores: Sequence[int] = (),
        core_wait_s: float = PATIENCE_S,
    ) -> None:
        """toolchain: `simulator` or `auto`, of that language (`Language.key`); machine: which is simulated, a device
        says itself what it is.
        calibration: what the machine's model is replaced by.
        processes: at work at once; None: one for each CPU. cores: of a device of this machine that may be used, a
        candidate on each; none: any one that is free. core_wait_s: how long a judge waits for one that others use.
        """
        engine = LocalEngine(places=processes)
        variables = (FOLDER_VARIABLE, CORES_VARIABLE, *supported(language).variables)
        chosen = {name: os.environ[name] for name in variables if name in os.environ}
        if cores:
            chosen[CORES_VARIABLE] = ",".join(map(str, cores))
        super().__init__(
            engine, toolchain, machine, calibration, language=language, processes=processes, groups=max(1, len(cores)),
            core_wait_s=core_wait_s, device_environment=chosen,
        )  # fmt: skip

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        progress(Step.UPLOAD, "nothing to upload: it is evaluated on this machine")
        return super().evaluate(request, progress)
