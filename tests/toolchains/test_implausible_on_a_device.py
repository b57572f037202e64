"""What a pretend device or its profiler reports, and cannot be: the judge says so, with the arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Crashed, Evaluation, Implausible, Incorrect, Measured, explain
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.ports import EvaluationLimits, EvaluationRequest
from accelopt_core.task import Task
from infra.neuron.toolchain import NeuronToolchain
from infra.tasks.seed_index import load_seed
from tests.toolchains.pretend_sdk import PretendSdk

REAL_KERNELS = True
LIMITS = EvaluationLimits(iterations=1, warmup=1, remeasure=0)
SOURCE = load_seed("matmul").kernel_source


def _task() -> Task:
    whole = load_seed("matmul").task()
    without = tuple((name, "not what is tested") for name in whole.distributions[1:])
    return replace(whole, presets=whole.presets[:1], seeds=(0,), left_out=without)


def _judge(toolchain: NeuronToolchain, source: str = SOURCE) -> Evaluation:
    request = EvaluationRequest(_task(), Candidate("c", source), LIMITS)
    return judge(request, toolchain, lambda step, detail: None, ReferenceCache(None))


def test_an_honest_device_is_believed(toolchain: NeuronToolchain) -> None:
    result = _judge(toolchain)
    assert isinstance(result, Measured), explain(result)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"quick": {"lhs": 0.001}}, "below the"),
        ({"summary": {"hardware_flops": 4096, "transpose_flops": 0, "adjusted_hardware_flops": 16384,
                      "adjusted_transpose_flops": 0}}, "the profiler counts 4,096 FLOPs"),
        pytest.param({"summary": {"tensor_engine_active_time": 1.0}}, "tensor_engine_active_time is 1,000,000.0 µs",
                     marks=pytest.mark.slow),
    ],
    ids=["too fast", "counters of less work", "busier than long"],
)  # fmt: skip
def test_what_cannot_be_is_implausible(sdk, toolchain, behaviour, said) -> None:
    sdk.behave(**behaviour)
    result = _judge(toolchain)
    assert isinstance(result, Implausible) and said in result.message, explain(result)


def test_work_left_out_once_it_is_timed_is_found_by_the_outputs(sdk: PretendSdk, toolchain: NeuronToolchain) -> None:
    sdk.behave(lies_when_timed=True)
    result = _judge(toolchain)
    assert isinstance(result, Crashed) and "other outputs than the verified one" in result.message


def test_narrow_arithmetic_is_found_in_the_trace_where_the_profiler_is_silent(sdk, toolchain) -> None:
    narrowed = SOURCE.replace(
        "out = nl.ndarray((TILE_M, TILE_N), dtype=result.dtype", "out = nl.ndarray((TILE_M, TILE_N), dtype=nl.bfloat16"
    )
    assert narrowed != SOURCE
    loose = replace(_task(), tolerance=0.05)
    sdk.behave(summary={"adjusted_hardware_flops": None, "adjusted_transpose_flops": None})
    request = EvaluationRequest(loose, Candidate("c", narrowed), LIMITS)
    result = judge(request, toolchain, lambda step, detail: None, ReferenceCache(None))
    assert isinstance(result, Incorrect) and "bfloat16" in result.failure.reason, explain(result)
