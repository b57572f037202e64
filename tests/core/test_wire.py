"""What passes between a target and a judge arrives as it was sent, or is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import (
    Bounds,
    CheckFailure,
    CompileFailed,
    Crashed,
    Duplicate,
    Evaluation,
    Furthest,
    Gap,
    HotLine,
    Idle,
    Implausible,
    Incorrect,
    IncumbentTiming,
    Likely,
    Measured,
    Profile,
    Step,
    TimedOut,
)
from accelopt_core.ports import EvaluationRequest, KnownProgram, TargetMisconfigured, TargetUnreachable, TaskFault
from accelopt_core.task import PrecisionPolicy, ShapePreset, Surroundings, Task, Within, Work
from infra.judging import wire

TASK = Task(
    "matmul", "M = 4\n", (ShapePreset("small", (("M", 2),)), ShapePreset("full", (("M", 4),), Work(8, 0, 96))),
    tolerance=1e-4, precision=PrecisionPolicy.BF16_ALLOWED,
    around=Surroundings("norm", "library.norm", (("library/__init__.py", ""), ("library/sizes.py", "P = 128\n"))),
    within=Within(1e-2, 2e-2),
)  # fmt: skip
PROFILE = Profile({"total_time": 1.5e-5}, Bounds(1.0, 0.0, 2.0, "declared"), (HotLine(3, "tensor", 9.0, 4),),
                  (Gap("reloads", 3.0, "hoist", "x is read 4 times"),),
                  (Idle("tensor", 0.0, 1.5, 3, "dma", 2),))  # fmt: skip
MEASURED = Measured(15.0, 14.0, 16.0, 10, True, "simulated trn2", PROFILE, ("small: 5 seeds",), False, 1e-6)
BESIDE_AN_INCUMBENT = replace(MEASURED, incumbent=IncumbentTiming("8f3a", 15.5, 0.004))
OUTCOMES: list[Evaluation] = [
    CompileFailed("no such name", 3),
    Incorrect(CheckFailure(0, "small", 1, "outputs differ", 0.5, 2e-5, (1, 2), 1.0, 2.0)),
    Incorrect(CheckFailure(0, "small", 1, "outputs differ"), ("a0",)), Implausible("too fast", 0.5),
    Implausible("too fast", 0.5, ("a0", "b1")), Duplicate("r003t1", "simulated 15.0 µs (round 3, reverted)"),
    TimedOut(Step.COMPILE, 300.0), Crashed(Step.RUN, "index 9 is out of bounds", None), MEASURED, BESIDE_AN_INCUMBENT,
    replace(MEASURED, programs=("a0", "b1")), replace(MEASURED, cores=2),
    replace(MEASURED, furthest=Furthest(1e-3, 2e-3)), replace(MEASURED, shared_faults=("wrong: a NaN (seed 5)",)),
    replace(MEASURED, likely=Likely(12.5, 18.0, 0.8, ("149 measured kernels", "13 % by priors"))),
]  # fmt: skip


def test_a_job_arrives_as_it_was_sent() -> None:
    candidate = Candidate("c1", "def kernel(): pass\n", "input", "p1")
    incumbent = Candidate("input", "def kernel(): return 0\n")
    request = EvaluationRequest(
        TASK,
        candidate,
        extra_seeds=(5,),
        final=True,
        verify_full_below_us=12.5,
        incumbent=incumbent,
        original=incumbent,
        cores=2,
        known=(KnownProgram("r001t1", ("a0", "b1"), "wrong: outputs differ"),),
    )
    job = wire.Job(request, "n", "auto", "trn1", "c0ffee")
    assert wire.decode_job(wire.encode_job(job)) == job


@pytest.mark.parametrize("evaluation", OUTCOMES, ids=lambda e: e.kind)
def test_every_evaluation_arrives_as_it_was_sent(evaluation: Evaluation) -> None:
    assert wire.decode_result(wire.encode_evaluation(evaluation, nonce="n"), nonce="n") == evaluation


@pytest.mark.parametrize(
    "text",
    [
        "",
        "PASSED",
        "[]",
        json.dumps({"evaluation": {"kind": "measured"}}),
        wire.encode_evaluation(MEASURED, nonce="forged"),
        json.dumps({"nonce": "n", "evaluation": {"kind": "measured", "latency_us": 1.0}}),
        json.dumps({"nonce": "n", "evaluation": {"kind": "excellent"}}),
        wire.encode_evaluation(MEASURED, nonce="n").replace('"latency_us": 15.0', '"latency_us": -1'),
        wire.encode_evaluation(MEASURED, nonce="n").replace('"latency_us": 15.0', '"latency_us": NaN'),
        wire.encode_evaluation(BESIDE_AN_INCUMBENT, nonce="n").replace('"noise": 0.004', '"noise": -1'),
        wire.encode_evaluation(BESIDE_AN_INCUMBENT, nonce="n").replace('"latency_us": 15.5', '"latency_us": 0'),
    ],
)
def test_what_is_no_result_of_this_job_is_never_believed(text: str) -> None:
    with pytest.raises(TargetMisconfigured):
        wire.decode_result(text, nonce="n")


@pytest.mark.parametrize(
    "error", [TargetUnreachable("gone"), TargetMisconfigured("no SDK"), TaskFault("bad reference")]
)
def test_a_fault_of_the_target_is_raised_again_on_this_side(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        wire.decode_result(wire.encode_fault(error, nonce="n"), nonce="n")


def test_a_job_of_another_release_is_refused() -> None:
    request = EvaluationRequest(TASK, Candidate("c", ""))
    job = json.loads(wire.encode_job(wire.Job(request, "n", "simulator", "trn2")))
    job["version"] += 1
    with pytest.raises(ValueError, match="different releases"):
        wire.decode_job(json.dumps(job))
