"""On the simulator time is exact: an incumbent costs nothing in a round, and is timed beside the winner at the end."""

from __future__ import annotations

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Evaluation, IncumbentTiming, Measured
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ShapePreset, Task
from infra.targets.local import LocalTarget
from tests.e2e import kernels

TASK = Task(
    "sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 512), ("T", 1))),), seeds=(0,)
)  # fmt: skip
INPUT = Candidate("input", kernels.SLOW)
WINNER = Candidate("r002t1", kernels.FAST.replace("STEP = 2048", "STEP = 512"), "input")


def _evaluated(target: LocalTarget, candidate: Candidate, *, final: bool, incumbent: Candidate | None) -> Evaluation:
    request = EvaluationRequest(TASK, candidate, final=final, incumbent=incumbent)
    return target.evaluate(request, lambda step, detail: None)


def test_the_input_kernel_is_timed_afresh_beside_the_winner_and_in_no_round(target: LocalTarget) -> None:
    alone = _evaluated(target, INPUT, final=False, incumbent=None)
    result = _evaluated(target, WINNER, final=True, incumbent=INPUT)
    assert isinstance(alone, Measured) and isinstance(result, Measured)
    assert result.incumbent == IncumbentTiming(INPUT.content_hash, alone.latency_us, 0.0)
    assert result.latency_us < alone.latency_us
    result = _evaluated(target, WINNER, final=False, incumbent=INPUT)
    assert isinstance(result, Measured) and result.incumbent is None
