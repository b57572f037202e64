"""What the compiler makes of a reference by itself: timed as kernels are, or one line that says why there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import NEEDS_A_DEVICE, Measured
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.ports import EvaluationLimits, EvaluationRequest
from infra.judging import judge as judge_process
from infra.judging import wire
from infra.neuron.compilation.compilers_own import compilers_own
from infra.neuron.toolchain import NeuronToolchain, open_neuron_toolchain
from infra.simulator.toolchain import SimulatorToolchain, traced_on_simulator
from infra.tasks.seed_index import load_seed
from tests.toolchains.pretend_sdk import FIXTURES, SIMULATED, PretendSdk

WITH_JAX = (*SIMULATED, FIXTURES / "site_jax")
SEED = load_seed("silu")
TASK = replace(SEED.task(), presets=SEED.task().presets[:1])
REQUEST = EvaluationRequest(TASK, Candidate("reference", ""), EvaluationLimits(iterations=3, warmup=1))


@contextmanager
def device(folder: Path, site: tuple[Path, ...]) -> Iterator[NeuronToolchain]:
    installation = PretendSdk(folder, site=site).installation
    with closing(open_neuron_toolchain(traced_on_simulator, installation=installation)) as toolchain:
        yield toolchain


def asked(reference: str) -> EvaluationRequest:
    assert reference != TASK.reference_source
    return replace(REQUEST, task=replace(TASK, reference_source=reference))


@pytest.mark.slow
def test_the_reference_is_compiled_through_jax_and_timed_as_a_kernel_is(tmp_path: Path) -> None:
    with device(tmp_path, WITH_JAX) as toolchain:
        own = compilers_own(toolchain, REQUEST)
    simulator = SimulatorToolchain("trn2")
    request = replace(REQUEST, candidate=Candidate("c", SEED.kernel_source))
    kernel = judge(request, simulator, lambda *told: None, ReferenceCache(None))
    simulator.close()
    assert isinstance(kernel, Measured)
    assert own.latency_us == pytest.approx(1.1 * kernel.latency_us, rel=3e-3), own
    assert own.said.startswith("by neuron through JAX 0.10.0; its outputs are ")
    assert float(own.said.split(" are ")[1].split()[0]) < 1e-5


def test_outputs_that_are_far_off_are_said_beside_the_number(tmp_path: Path) -> None:
    with device(tmp_path, WITH_JAX) as toolchain:
        own = compilers_own(toolchain, asked(TASK.reference_source.replace("np.exp(-", "np.exp(-2 * ")))
    assert own.latency_us is not None and float(own.said.split(" are ")[1].split()[0]) > 1e-2


@pytest.mark.parametrize(
    ("site", "reference", "said"),
    [
        (SIMULATED, None, r"needs JAX for Neuron \(jax-neuronx\): .* has no jax and no libneuronxla"),
        (WITH_JAX, "np.no_such_function(", "JAX does not compile the reference: AttributeError: .*no_such_function"),
    ],
)
def test_where_there_is_none_one_line_says_why(tmp_path, site, reference, said) -> None:
    request = REQUEST if reference is None else asked(TASK.reference_source.replace("np.exp(", reference))
    with device(tmp_path, site) as toolchain:
        own = compilers_own(toolchain, request)
    assert own.latency_us is None
    assert re.match(said, own.said) and "\n" not in own.said


def test_on_the_simulator_it_needs_a_device() -> None:
    job = wire.encode_job(wire.Job(REQUEST, "", "simulator", "trn2"))
    assert wire.decode_compilers_own(judge_process.compilers_own(job)) == NEEDS_A_DEVICE
    with pytest.raises(ValueError, match="no word on what"):
        wire.decode_compilers_own('{"compilers_own": 3}')
