"""The judge with a Neuron toolchain under it: real kernels, real processes, a pretend compiler and device.

What the tools compute here is the simulator's own, so these tests say nothing about a device; they
say that nothing between the judge and the tools' command lines loses or swaps anything.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Evaluation, Incorrect, Measured
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.ports import EvaluationLimits, EvaluationRequest
from infra.neuron.toolchain import NeuronToolchain
from infra.simulator.toolchain import SimulatorToolchain
from infra.tasks.seed_index import load_seed

REAL_KERNELS = True
LIMITS = EvaluationLimits(iterations=3, warmup=1, remeasure=0)


def _judge(name: str, toolchain: NeuronToolchain | SimulatorToolchain, source: str | None = None) -> Evaluation:
    seed = load_seed(name)
    task = replace(seed.task(), presets=seed.task().presets[:1], seeds=(0, 21))
    request = EvaluationRequest(task, Candidate("c", source or seed.kernel_source), LIMITS)
    return judge(request, toolchain, lambda step, detail: None, ReferenceCache(None))


@pytest.mark.parametrize(
    "name", ["matmul", *(pytest.param(name, marks=pytest.mark.slow) for name in ("add_rmsnorm_matmul", "silu"))]
)
def test_a_seed_kernel_is_right_and_its_latency_is_the_devices(name: str, toolchain: NeuronToolchain) -> None:
    result = _judge(name, toolchain)
    assert isinstance(result, Measured), result
    simulator = SimulatorToolchain("trn2")
    predicted = _judge(name, simulator)
    simulator.close()
    assert isinstance(predicted, Measured)
    assert result.latency_us == pytest.approx(1.1 * predicted.latency_us, rel=3e-3)
    assert (result.simulated, result.samples) == (False, 3)
    assert result.likely is None and predicted.likely is not None and predicted.likely.level == 0.8
    assert predicted.likely.low_us < predicted.latency_us < predicted.likely.high_us and predicted.likely.rests_on
    assert result.worst_rel_l2 == predicted.worst_rel_l2, "the same numbers came back, bit by bit"
    assert "NKI 0.6.1+simulated" in result.machine


def test_a_wrong_kernel_and_one_that_breaks_a_rule_are_found_out(toolchain: NeuronToolchain) -> None:
    source = load_seed("silu").kernel_source.replace("op=nl.silu", "op=nl.gelu")
    result = _judge("silu", toolchain, source)
    assert isinstance(result, Incorrect) and result.failure.seed == 0
    source = load_seed("silu").kernel_source.replace("TILE_M = 128", "TILE_M = 256")
    result = _judge("silu", toolchain, source)
    assert isinstance(result, CompileFailed)
    assert result.line is not None and "TILE_M" in source.splitlines()[result.line - 1]
