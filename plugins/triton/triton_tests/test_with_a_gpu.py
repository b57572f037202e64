"""What only a GPU can show. Skipped, with the reason, where there is none; `triton_benchmarks/nvidia.py` runs them and
writes README.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Measured, Step, explain
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.ports import EvaluationLimits, EvaluationRequest
from accelopt_core.toolchain import RunError
from infra.tasks.seed_index import Seed, seeds_of
from nki_optimizer_triton.toolchain import TritonToolchain, open_triton_toolchain
from triton_tests.test_faults import DOUBLE, OUT, file
from triton_tests.test_on_a_device import SPECS, X


@pytest.fixture(scope="module")
def on_gpu() -> Iterator[TritonToolchain]:
    toolchain = open_triton_toolchain()
    if not toolchain.on_device:
        why = toolchain.why_no_device
        toolchain.close()
        pytest.skip(f"needs an NVIDIA GPU: {why}")
    yield toolchain
    toolchain.close()


def quietly(step: Step, detail: str) -> None:
    """Nobody watches."""


@pytest.mark.parametrize("seed", seeds_of("triton"), ids=lambda seed: seed.name)
def test_a_shipped_kernel_is_right_at_all_its_shapes_and_timed(seed: Seed, on_gpu: TritonToolchain) -> None:
    request = EvaluationRequest(seed.task(), Candidate("seed", seed.kernel_source), EvaluationLimits())
    result = judge(request, on_gpu, quietly, ReferenceCache(None))
    assert isinstance(result, Measured) and result.verified_full, explain(result)
    assert not result.simulated and 0 < result.latency_us < 1e6


def test_a_wild_store_is_told_and_the_next_kernel_runs(on_gpu: TritonToolchain) -> None:
    wild = file("tl.store(y_ptr + (1 << 40), 1.0)", OUT + "k[(1,)](x, y, 64, 64)\nreturn y")
    with pytest.raises(RunError, match="kernel k on the GPU: it reads or writes memory that is not there"):
        on_gpu.run(on_gpu.compile(wild, SPECS, 120), [X], 60)
    right = on_gpu.compile(file(DOUBLE, OUT + "k[(1,)](x, y, 64, 64)\nreturn y"), SPECS, 120)
    assert (on_gpu.run(right, [X], 60)[0] == 2 * X).all()


def test_the_same_kernel_takes_the_same_time_twice(on_gpu: TritonToolchain) -> None:
    artifact = on_gpu.compile(file(DOUBLE, OUT + "k[(1,)](x, y, 64, 64)\nreturn y"), SPECS, 120)
    on_gpu.run(artifact, [X], 60)
    first, second = (min(on_gpu.time(artifact, [X], 2, 10, 60).samples_us) for _ in range(2))
    assert first > 0 and 0.5 < first / second < 2
