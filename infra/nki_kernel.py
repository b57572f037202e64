"""NKIBench's interface, ready for use: `NKIKernel("kernel.py", "reference.py").profile(["hbm_read_bytes"])`."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Evaluation
from accelopt_core.languages.nki import kernel_wrapper
from accelopt_core.ports import EvaluationLimits, EvaluationRequest, Target, TargetError, TaskFault
from infra.targets.local import LocalTarget
from infra.tasks.kernel_file import kernel_text, surroundings_of
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.seed_index import TaskNotFound, task_from_files
from infra.terminal.started_as import raised_as_here
from nki_sim.machine import DEFAULT_MACHINE

SECRET_SEEDS = 2


class NKIKernel(kernel_wrapper.NKIKernel):
    """On the simulated `machine`; with `toolchain="auto"` on this machine's device; with `target` wherever that is.

    `function`: which of the file's kernels, where it has several. `target` (an `SshTarget`, say) stays the caller's to
    close. `profile` raises TaskNotFound or TaskInvalid for the
    files, TaskFault for what the reference does, and TargetError when there is nothing to evaluate with.
    """

    def __init__(
        self,
        program_path: str,
        base_numpy_path: str,
        *,
        toolchain: str = "simulator",
        machine: str = DEFAULT_MACHINE,
        target: Target | None = None,
        limits: EvaluationLimits | None = None,
        function: str | None = None,
    ) -> None:
        super().__init__(program_path, base_numpy_path, evaluate=self._judged)
        self._toolchain = toolchain
        self._machine = machine
        self._target = target
        self._limits = limits or EvaluationLimits()
        self._function = function

    def _judged(self, program_path: str, base_numpy_path: str) -> Evaluation:
        with raised_as_here(TaskNotFound, TaskInvalid, TaskFault, TargetError):
            return self._evaluated(program_path, base_numpy_path)

    def _evaluated(self, program_path: str, base_numpy_path: str) -> Evaluation:
        source = kernel_text(Path(program_path))
        task = task_from_files(Path(base_numpy_path))
        request = EvaluationRequest(
            replace(task, around=surroundings_of(Path(program_path), source, self._function)),
            Candidate("input", source),
            self._limits,
            extra_seeds=tuple(secrets.randbelow(1 << 31) for _ in range(SECRET_SEEDS)),
        )
        if self._target is not None:
            return self._target.evaluate(request, lambda step, detail: None)
        target = LocalTarget(self._toolchain, self._machine)
        try:
            return target.evaluate(request, lambda step, detail: None)
        finally:
            target.close()
