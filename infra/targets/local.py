"""This machine as a target: a fresh judge process for each evaluation."""

from __future__ import annotations

from accelopt_core.evaluation import Evaluation, Step
from accelopt_core.ports import EvaluationRequest, Progress
from accelopt_core.task import DEFAULT_LANGUAGE
from accelopt_core.toolchain import Calibration
from infra.engines.local import LocalEngine
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
        one_kernel: bool = False,
        processes: int | None = None,
    ) -> None:
        """toolchain: `simulator` or `auto`, of that language (`Language.key`); machine: which is simulated, a device
        says itself what it is.
        calibration: what the machine's model is replaced by. one_kernel: no other will come, so no judge waits for it.
        processes: at work at once; None: one for each CPU.
        """
        engine = LocalEngine(ahead=not one_kernel, places=processes)
        super().__init__(engine, toolchain, machine, calibration, language=language, processes=processes)

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        progress(Step.UPLOAD, "nothing to upload: it is evaluated on this machine")
        return super().evaluate(request, progress)
