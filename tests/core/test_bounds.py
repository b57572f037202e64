"""The roofline, and what separates a kernel from it, priced."""

from __future__ import annotations

import pytest

from accelopt_core.evaluation import Bounds, Gap
from accelopt_core.judging.bounds import bounds_for
from accelopt_core.languages.nki.gaps import gaps_for
from accelopt_core.languages.nki.neuron_cores import NeuronCores
from accelopt_core.task import PrecisionPolicy, ShapePreset, Task, Work
from accelopt_core.toolchain import Facts
from benchmarks import calibration_kernels as kernels
from nki_sim.machine import TRN2
from nki_sim.profile.profile import Measurement, measure

MATMUL = Work(matmul_flops=515_396_075_520, vector_ops=0, hbm_bytes=536_870_912)  # NKIBench M4096 K5120 N12288
CORE = NeuronCores(TRN2)
SILU = Work(matmul_flops=0, vector_ops=3 * 4096 * 7168, hbm_bytes=2 * 4 * 4096 * 7168)


def task(work: Work | None, precision: PrecisionPolicy = PrecisionPolicy.FLOAT32_FAITHFUL) -> Task:
    return Task("example", "", (ShapePreset("full", (("M", 4096),), work),), precision=precision)


def facts(measured: Measurement) -> Facts:
    return Facts(
        fields=measured.fields,
        matmul_flops=measured.matmul_flops,
        vector_ops=measured.vector_ops,
        hbm_bytes=measured.io_bytes,
    )


@pytest.mark.parametrize(
    ("work", "precision", "peak_us", "limiter"),
    [
        (MATMUL, PrecisionPolicy.FLOAT32_FAITHFUL, 515_396_075_520 / 19.6608e6, "matmul"),
        (MATMUL, PrecisionPolicy.BF16_ALLOWED, 515_396_075_520 / 78.6432e6, "matmul"),
        (MATMUL, PrecisionPolicy.FP8_ALLOWED, 515_396_075_520 / 157.2864e6, "matmul"),
        (SILU, PrecisionPolicy.FLOAT32_FAITHFUL, 2 * 4 * 4096 * 7168 / 435.2e3, "memory"),
        (Work(0, 10**12, 1), PrecisionPolicy.FLOAT32_FAITHFUL, 10**12 / 276.48e3, "vector"),
    ],
    ids=["fp32", "bf16", "fp8", "memory", "vector"],
)
def test_the_peak_is_the_slowest_kind_of_work_at_its_own_rate(work, precision, peak_us, limiter) -> None:
    bound = CORE.bounds(work, precision)
    assert bound.peak_us == pytest.approx(peak_us, rel=1e-6)
    assert bound.limiter == limiter


def test_declared_work_wins_and_counted_work_or_bytes_say_that_they_are_counted() -> None:
    counted = Facts(fields={}, matmul_flops=1, vector_ops=2, hbm_bytes=3)
    assert bounds_for(task(SILU), counted, CORE).source == "declared"
    derived = bounds_for(task(None), counted, CORE)
    assert derived.source == "trace"
    assert derived.memory_us == pytest.approx(3 / 435.2e3)
    derived = bounds_for(task(None), Facts(fields={}, hbm_bytes=4352), CORE)
    assert derived.source == "trace" and derived.floor_us == derived.memory_us == pytest.approx(4352 / 435.2e3)
    assert derived.matmul_us == derived.vector_us == 0


def gaps(measured: Measurement, work: Work) -> dict[str, Gap]:
    known = facts(measured)
    found = gaps_for(known, bounds_for(task(work), known, CORE), measured.latency_us, CORE)
    assert [gap.cost_us for gap in found] == sorted((gap.cost_us for gap in found), reverse=True)
    for gap in found:
        assert 0 < gap.cost_us <= measured.latency_us
        assert gap.remedy and gap.evidence
    return {gap.name: gap for gap in found}


def test_reloaded_operands_and_many_small_transfers_are_told() -> None:
    k, m, n = 1024, 512, 2048
    measured = measure(kernels.matmul_loads_inside(k, m, n))
    work = Work(2 * k * m * n, 0, 4 * (k * m + k * n + m * n))
    found = gaps(measured, work)
    reload = found["HBM traffic beyond the minimum"]
    assert "MB needed" in reload.evidence
    assert "SBUF" in reload.remedy
    blocked = gaps(measure(kernels.matmul_blocked(k, m, n, 4, 1)), work)
    assert blocked.get("HBM traffic beyond the minimum", Gap("", 0, "", "")).cost_us < reload.cost_us
    measured = measure(kernels.matmul_loads_inside(2048, 512, 1024))
    assert "issuing transfers" in gaps(measured, Work(2 * 2048 * 512 * 1024, 0, 1 << 20))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"throttle_time": 20e-6}, "Tensor engine throttled"),
        ({"transpose_flops": 2e9}, "transposes on the Tensor engine"),
        ({"tensor_engine_active_time": 180e-6}, "matmul inefficiency"),
        ({"activation_table_load_count": 40, "scalar_engine_active_time": 150e-6}, "activation table switches"),
        ({"vector_engine_active_time": 150e-6}, "elementwise work on vector"),
        ({"hbm_read_bytes": 60e6}, "HBM traffic beyond the minimum"),
        ({"dma_active_time": 190e-6}, "DMA below its bandwidth"),
        ({}, "engines wait for each other"),
    ],
)
def test_each_inefficiency_of_a_profile_has_its_gap(changed: dict[str, float], name: str) -> None:
    fields = {"hbm_read_bytes": 8e6, "hbm_write_bytes": 2e6, "hardware_flops": 2e9, "transpose_flops": 0.0,
              "tensor_engine_active_time": 101e-6, "vector_engine_active_time": 10e-6, "dma_active_time": 25e-6,
              "scalar_engine_active_time": 10e-6, "gpsimd_engine_active_time": 0.0, **changed}  # fmt: skip
    bound = Bounds(100.0, 5.0, 10e6 / 435.2e3, "declared")
    found = {gap.name: gap for gap in gaps_for(Facts(fields=fields), bound, 200.0, CORE)}
    assert name in found
    assert found[name].cost_us > 1


IDLE = ("start-up before the busiest engine", "tail after the busiest engine", "engines wait for each other")


def test_idle_time_is_told_apart_by_where_it_lies() -> None:
    fields = {"tensor_engine_active_time": 60e-6, "tensor_begin_time": 10e-6, "tensor_end_time": 95e-6}
    found = {gap.name: gap for gap in gaps_for(Facts(fields=fields), Bounds(60.0, 0, 0, "declared"), 100.0, CORE)}
    stays = TRN2.dma_latency_ns / 1e3  # of the first load, and of the last store
    costs = {name: pytest.approx(us) for name, us in zip(IDLE, (10 - stays, 5 - stays, 25))}
    assert {name: gap.cost_us for name, gap in found.items()} == costs


def test_the_ends_of_a_simulated_run_are_priced() -> None:
    measured = measure(kernels.matmul_loads_inside(1024, 512, 2048))
    found = gaps(measured, Work(2 * 1024 * 512 * 2048, 0, 1 << 20))
    idle = sum(found[name].cost_us for name in IDLE if name in found) + 2 * TRN2.dma_latency_ns / 1e3
    busiest = max(us for name, us in measured.fields.items() if name.endswith("_active_time") and "total" not in name)
    assert idle == pytest.approx(measured.latency_us - 1e6 * busiest, rel=0.05)


def test_what_is_hidden_behind_the_busiest_engine_costs_nothing() -> None:
    fields = {"tensor_engine_active_time": 100e-6, "hbm_read_bytes": 20e6, "hbm_write_bytes": 0.0}
    bound = Bounds(100.0, 0.0, 1.0, "declared")
    assert gaps_for(Facts(fields=fields), bound, 100.0, CORE) == ()
    assert gaps_for(Facts(fields={"total_time": 1e-4}), Bounds(1, 1, 1, "declared"), 100.0, CORE) == ()
    with pytest.raises(ValueError, match="example declares no work"):
        bounds_for(task(None), Facts(fields={}), CORE)
