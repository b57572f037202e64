"""GPUs as the judge and the prompts see them."""

from __future__ import annotations

import math

import pytest

from accelopt_core.judging.plausibility import contradiction
from accelopt_core.model.prompting import PromptSettings, system_text
from accelopt_core.task import PrecisionPolicy, ShapePreset, Task, Work
from accelopt_core.toolchain import Facts
from infra.tasks.seed_index import seeds_of
from nki_optimizer_triton.language.api import instruction_list
from nki_optimizer_triton.language.gpu_model import GpuModel
from nki_optimizer_triton.language.gpus import CAPABILITIES, GPUS, Gpu, gpu_of_device
from nki_optimizer_triton.language.language import TRITON
from nki_optimizer_triton.language.machine_facts import GpuFacts, gpu_facts

H100 = GpuModel(GPUS["h100"])
UNKNOWN = GpuModel(Gpu("some-gpu", "Some GPU", CAPABILITIES[90], 100, 1000.0, 1 << 34, None, 1 << 25))
PRODUCT = Work(2 * 4096**3, 0, 3 * 2 * 4096**2)


def test_a_product_runs_at_the_rate_that_the_policy_permits() -> None:
    """As NVIDIA's datasheet of the H100 SXM prints the rates: 67 TFLOP/s of float32, 989 of bfloat16, 1979 of fp8."""
    us = {policy: H100.bounds(PRODUCT, policy).matmul_us for policy in PrecisionPolicy}
    assert us[PrecisionPolicy.FLOAT32_FAITHFUL] == pytest.approx(2 * 4096**3 / 66.9e6, rel=1e-3)
    assert us[PrecisionPolicy.BF16_ALLOWED] == pytest.approx(2 * 4096**3 / 989.4e6, rel=1e-3)
    assert us[PrecisionPolicy.FP8_ALLOWED] == pytest.approx(2 * 4096**3 / 1978.9e6, rel=1e-3)
    assert H100.bounds(PRODUCT, PrecisionPolicy.BF16_ALLOWED).memory_us == pytest.approx(3 * 2 * 4096**2 / 3.35e6)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("seed", seeds_of("triton"), ids=lambda seed: seed.name)
def test_of_every_shipped_task_the_bound_is_positive_and_rates_keep_their_order(name: str, seed) -> None:
    model, work = GpuModel(GPUS[name]), seed.task().full.work
    bound = model.bounds(work, seed.precision)
    assert 0 < bound.floor_us < 1e5
    rates = [model.matmul_flops_per_ns(policy) for policy in PrecisionPolicy]
    assert rates == sorted(rates) and rates[0] < rates[1] <= rates[2]
    assert name in TRITON.peaks(name) or GPUS[name].label in TRITON.peaks(name)


def test_faster_than_the_machine_can_be_is_implausible_and_an_unknown_gpu_is_held_to_nothing() -> None:
    task = Task("gemm", "", (ShapePreset("full", (("M", 4096),), PRODUCT),), precision=PrecisionPolicy.BF16_ALLOWED)
    assert contradiction(task, Facts({}), None, 10.0, H100) is not None
    assert contradiction(task, Facts({}), None, 150.0, H100) is None
    assert contradiction(task, Facts({}), None, 0.1, UNKNOWN) is None
    assert UNKNOWN.bounds(PRODUCT, task.precision).peak_us == 0 and math.isinf(UNKNOWN.memory_bytes_per_ns)


def test_the_one_gap_is_what_lies_above_the_bound() -> None:
    bound = H100.bounds(PRODUCT, PrecisionPolicy.BF16_ALLOWED)
    (gap,) = H100.gaps(Facts({"launches": 2.0}), bound, 300.0)
    assert gap.cost_us == pytest.approx(300 - bound.floor_us) and "in 2 launches" in gap.evidence
    assert H100.gaps(Facts({}), bound, bound.floor_us) == ()
    assert UNKNOWN.gaps(Facts({}), UNKNOWN.bounds(PRODUCT, PrecisionPolicy.BF16_ALLOWED), 300.0) == ()


def test_a_kernel_runs_on_one_gpu() -> None:
    assert H100.of_cores(1) is H100
    with pytest.raises(ValueError, match="one GPU, not on 2"):
        H100.of_cores(2)


@pytest.mark.parametrize("facts", [gpu_facts(GPUS["a100"]), gpu_facts(UNKNOWN.gpu), GpuFacts("nvidia-x")],
                         ids=["listed", "without peaks", "a name"])  # fmt: skip
def test_prompts_are_of_this_machine_and_of_no_other(facts: GpuFacts) -> None:
    text = system_text(PromptSettings("triton", facts), instruction_list())
    assert facts.name in text and "{{" not in text and "{%" not in text
    assert not [word for word in ("NKI", "Trainium", "SBUF", "PSUM", "H100") if word in text]
    assert "None" not in text.replace("x[:, None]", "")


def test_a_device_is_known_by_what_its_driver_says() -> None:
    h100 = GPUS["h100"]
    assert gpu_of_device("NVIDIA H100 80GB HBM3", 90, 132, 1980, 1, 1) is h100
    assert gpu_of_device("NVIDIA L40S", 89, 142, 2520, 1, 1) is GPUS["l40s"]
    other = gpu_of_device("NVIDIA H100 80GB HBM3", 90, 66, 1980, 1 << 35, 1 << 24)  # half of one, say
    assert not other.is_known and other.name == "nvidia-h100-80gb-hbm3" and "not known" in other.caveat
    with pytest.raises(KeyError):
        gpu_of_device("NVIDIA Tomorrow", 999, 1, 1, 1, 1)
