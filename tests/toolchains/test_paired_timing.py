"""Incumbents on a pretend device that drifts: through the toolchain's own commands, and through the judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Measured
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.judging.timing import TURNS, PairedTiming, time_paired
from accelopt_core.ports import EvaluationLimits, EvaluationRequest
from accelopt_core.toolchain import TensorArgument, Timing
from infra.neuron.compilation.compiling import Neff
from infra.neuron.toolchain import NeuronToolchain
from infra.tasks.seed_index import load_seed
from tests.toolchains.pretend_sdk import SIMULATED, PretendSdk, opened_on

A = TensorArgument((4, 3), "float32")
HEAD = "import nki\nimport nki.language as nl\n\n@nki.jit\n"
BEST = HEAD + "def kernel(a, b):\n    return nl.subtract(a, b)\n"
CANDIDATE = HEAD + "def kernel(left, b):\n    return nl.subtract(left, b)\n"
"""The same work; the pretend device knows kernels apart by the names of their inputs."""
TENSORS = [np.arange(12, dtype=np.float32).reshape(4, 3), np.full((4, 3), 0.5, np.float32)]
LIMITS = EvaluationLimits(iterations=TURNS, warmup=1, remeasure=0)


def quietly(step: object, detail: str) -> None: ...


def _paired(sdk: PretendSdk) -> PairedTiming:
    toolchain = opened_on(sdk)
    kernels = [toolchain.compile(source, [A, A], 60) for source in (CANDIDATE, BEST)]

    def block(artifact: Neff) -> Callable[[int, float], Sequence[float]]:
        return lambda count, left_s: toolchain.time(artifact, TENSORS, 1, count, left_s).samples_us

    try:
        return time_paired(block(kernels[0]), block(kernels[1]), LIMITS, quietly)
    finally:
        toolchain.close()


def test_on_a_drifting_device_a_real_gain_is_seen_and_an_equal_kernel_does_not_win(sdk: PretendSdk) -> None:
    sdk.behave(drift=0.005, total_time_s=[1e-4])
    result = _paired(sdk)
    assert max(result.candidate.samples_us) > 1.05 * min(result.candidate.samples_us), "it does drift"
    assert result.ratio == pytest.approx(1.0, abs=1e-3) and result.noise < 1e-3


def test_on_a_drifting_device_a_real_gain_of_three_percent_is_seen(sdk: PretendSdk) -> None:
    sdk.behave(drift=0.005, total_time_s=[1e-4], quick={"left": 0.97}, jitter=[1.0, 1.001, 0.999])
    result = _paired(sdk)
    assert result.ratio == pytest.approx(0.97, abs=2e-3) and result.ratio < 1 - max(0.01, result.noise)


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[tuple[PretendSdk, NeuronToolchain]]:
    sdk = PretendSdk(tmp_path, site=SIMULATED)
    toolchain = opened_on(sdk)
    yield sdk, toolchain
    toolchain.close()


@pytest.mark.slow
def test_the_judge_reports_the_incumbent_as_the_candidate_met_it_on_inputs_nobody_knows(simulated, monkeypatch) -> None:
    sdk, toolchain = simulated
    seed = load_seed("silu")
    whole = seed.task()
    task = replace(
        whole, presets=whole.presets[:1], seeds=(0,), left_out=tuple((n, "t") for n in whole.distributions[1:])
    )
    best = Candidate("r001t1", seed.kernel_source, "input")
    quick = (
        seed.kernel_source.replace("def kernel(x", "def kernel(quick_x")
        .replace("x[", "quick_x[")
        .replace("x.", "quick_x.")
    )
    sdk.behave(drift=0.003, quick={"quick_x": 0.97})
    timed: list[Sequence[np.ndarray]] = []
    time = toolchain.time

    def recorded(artifact: Neff, tensors: Sequence[np.ndarray], *rest: float) -> Timing:
        timed.append(tensors)
        return time(artifact, tensors, *rest)  # type: ignore[arg-type]  # the counts and the limit, as they came

    monkeypatch.setattr(toolchain, "time", recorded)
    request = EvaluationRequest(task, Candidate("c", quick, "r001t1"), LIMITS, extra_seeds=(12345,), incumbent=best)
    result = judge(request, toolchain, quietly, ReferenceCache(None))
    assert isinstance(result, Measured) and result.incumbent is not None, result
    assert result.incumbent.content_hash == best.content_hash and result.samples == TURNS
    assert result.latency_us / result.incumbent.latency_us == pytest.approx(0.97, abs=3e-3)
    assert len(timed) == 2 * TURNS + 1
    np.random.seed(0)
    published = np.random.normal(size=timed[0][0].shape).astype(np.float32)
    assert not any(np.array_equal(tensors[0], published) for tensors in timed), "a published seed could be recognised"


@pytest.mark.slow
def test_a_incumbent_that_no_longer_runs_is_no_fault_of_the_candidate(simulated) -> None:
    _, toolchain = simulated
    seed = load_seed("silu")
    whole = seed.task()
    task = replace(
        whole, presets=whole.presets[:1], seeds=(0,), left_out=tuple((n, "t") for n in whole.distributions[1:])
    )
    broken = Candidate("r001t1", "raise ValueError('gone')", "input")
    result = judge(
        EvaluationRequest(task, Candidate("c", seed.kernel_source), LIMITS, incumbent=broken),
        toolchain,
        quietly,
        ReferenceCache(None),
    )
    assert isinstance(result, Measured) and result.incumbent is None
    assert result.checks[-1].startswith("r001t1 could not be timed beside it") and "gone" in result.checks[-1]
