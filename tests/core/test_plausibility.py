"""Arithmetic that no honest kernel breaks: each rule with numbers that break it, all shipped kernels as control."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from accelopt_core.judging.plausibility import contradiction, first_changed, needed_flops, one_value, same_bits
from accelopt_core.judging.reference.verification import Reference, argument_specs
from accelopt_core.languages.nki.neuron_cores import NeuronCores
from accelopt_core.task import PrecisionPolicy, ShapePreset, Task, Work
from accelopt_core.toolchain import Facts, Traced
from infra.simulator.toolchain import SimulatorToolchain
from infra.tasks.seed_index import load_seed
from nki_sim.machine import TRN2
from tests.redteam.test_shortcuts import TILINGS
from tests.slow import quick

MATMUL = Work(matmul_flops=2 * 4096**3, vector_ops=0, hbm_bytes=3 * 4 * 4096**2)
"""1748 µs at 78.6 TFLOP/s, and 463 µs at 435 GB/s."""
HONEST_US = 9000.0
CORE = NeuronCores(TRN2)


def task(work: Work | None, precision: PrecisionPolicy = PrecisionPolicy.FLOAT32_FAITHFUL) -> Task:
    return Task("example", "", (ShapePreset("full", (("M", 4096),), work),), precision=precision)


def found(facts: Facts, *, us: float = HONEST_US, work: Work | None = MATMUL, traced: int | None = None) -> str:
    seen = None if traced is None else Traced(traced, ())
    return contradiction(task(work), facts, seen, us, CORE) or ""


BUSY = {"total_time": 1e-3, "tensor_engine_active_time": 9e-4, "dma_active_time": 1e-3}


@pytest.mark.parametrize(
    ("facts", "us", "traced", "said"),
    [
        (Facts({}), 0.0, None, "nothing was executed"),
        (Facts({}, resource_bound_us=100.0), 99.0, None, "99.0 µs is below the 100.0 µs that its own instructions"),
        (Facts({}), 200.0, None, "below 0.5 of the 462.6 µs that the 201,326,592 bytes declared by the task take"),
        (Facts({}), 1500.0, 2 * 4096**3, "below 0.9 of the 1,747.6 µs that 137,438,953,472 FLOPs"),
        (Facts({}, counted_flops=4096**3 // 8), HONEST_US, 2 * 4096**3, "counts 8,589,934,592 FLOPs"),
        (Facts({**BUSY, "tensor_engine_active_time": 2e-3}), HONEST_US, None, "tensor_engine_active_time is 2,000.0"),
        (Facts({**BUSY, "dma_active_time": 1.4e-3}), HONEST_US, None, "dma_active_time is 1,400.0 µs"),
    ],
)
def test_numbers_that_cannot_be_true_together_are_named(facts: Facts, us: float, traced: int | None, said: str) -> None:
    assert said in found(facts, us=us, traced=traced)


@pytest.mark.parametrize(
    ("facts", "us", "traced"),
    [
        (Facts(BUSY), HONEST_US, None),
        (Facts({}, counted_flops=0), HONEST_US, 2 * 4096**3),  # the profiler loses Tensor Engine events at times
        (Facts({}, counted_flops=4096**3 // 8), HONEST_US, 4096**3 // 8),  # another algorithm, of fewer products
        (Facts({}, counted_flops=4096**3 // 8), HONEST_US, None),  # nobody traced it
        (Facts({"hbm_read_bytes": 1.0, "hbm_write_bytes": 1.0}), HONEST_US, None),  # no DGE notifications, no bytes
        (Facts({}), 1500.0, 4096**3),
        (Facts({}), 300.0, None),  # half of the inputs need not be read
    ],
)
def test_what_an_honest_kernel_may_show_is_believed(facts: Facts, us: float, traced: int | None) -> None:
    assert not found(facts, us=us, traced=traced)


def test_products_without_effect_are_not_asked_for_and_a_narrower_policy_is_faster() -> None:
    assert needed_flops(task(replace(MATMUL, matmul_flops=100)), Traced(1000, ())) == 100
    assert needed_flops(task(MATMUL), Traced(1000, ())) == 1000
    assert needed_flops(task(None), Traced(1000, ())) == needed_flops(task(MATMUL), None) == 0
    us, flops = 1200.0, Traced(2 * 4096**3, ())
    assert contradiction(task(MATMUL, PrecisionPolicy.BF16_ALLOWED), Facts({}), flops, us, CORE) is not None
    assert contradiction(task(MATMUL, PrecisionPolicy.FP8_ALLOWED), Facts({}), flops, us, CORE) is None


@pytest.mark.parametrize("name", quick("silu", "rmsnorm_matmul", "rope_single_freq_apply", of=sorted(TILINGS)))
def test_every_shipped_kernel_is_plausible_as_a_device_would_report_it(name: str) -> None:
    seed = load_seed(name)
    small = seed.task().presets[0]
    reference = Reference(seed.task(), small)
    toolchain = SimulatorToolchain("trn2")
    try:
        arguments = argument_specs(reference.kernel_arguments(reference.inputs(0)))
        artifact = toolchain.compile(seed.kernel_source, arguments, 120.0)
        facts = toolchain.facts(artifact)
    finally:
        toolchain.close()
    reported = replace(facts, counted_flops=int(facts.fields["hardware_flops"]), resource_bound_us=None)
    traced = Traced(artifact.measurement.matmul_flops, ())
    only = replace(seed.task(), presets=(small,))
    assert contradiction(only, reported, traced, artifact.measurement.latency_us, CORE) is None


@pytest.mark.parametrize(
    ("got", "expected", "said"),
    [
        (np.zeros(4), np.arange(4.0), "is 0, whatever the inputs are"),
        (np.full((2, 2), 0.5), np.arange(4.0).reshape(2, 2), "is 0.5"),
        (np.full(4, np.nan), np.arange(4.0), "is NaN"),
        (np.array([np.nan, 1, 2, 3]), np.arange(4.0), None),
        (np.zeros(4), np.zeros(4), None),
        (np.full(4, np.nan), np.full(4, np.nan), None),
        (np.zeros(1), np.ones(1), None),
        (np.arange(4.0), np.arange(4.0), None),
        (np.ones(4, bool), np.array([True, False, True, True]), "every element of the output is 1"),
        (np.ones(4, bool), np.ones(4, bool), None),
    ],
)
def test_one_value_everywhere_is_told_from_a_wrong_one(got: np.ndarray, expected: np.ndarray, said: str | None) -> None:
    found = one_value(got, expected)
    assert found is None if said is None else said in (found or "")


def test_bits_are_compared_and_found_wherever_they_are() -> None:
    assert same_bits([np.array([np.nan])], [np.array([np.nan])])
    assert not same_bits([np.array([0.0])], [np.array([-0.0])])
    assert not same_bits([np.zeros(1)], [np.zeros(1), np.zeros(1)])
    assert not same_bits([np.zeros(2)], [np.zeros(3)])
    turned = np.arange(6 << 18, dtype=np.float32).reshape(2, -1).T
    same, other = np.ascontiguousarray(turned), np.ascontiguousarray(turned)
    other[-1, -1] = -other[-1, -1]
    assert first_changed([turned, turned], [same, same]) is None
    assert first_changed([turned, turned], [same, other]) == 1
    assert first_changed([np.zeros(0)], [np.zeros(0)]) is None
