"""NKIKernel, as NKIBench's users call it: on the simulator, over SSH and on a (pretend) device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accelopt_core.evaluation import (
    CheckFailure,
    CompileFailed,
    Crashed,
    Evaluation,
    Implausible,
    Incorrect,
    Measured,
    Step,
    TimedOut,
)
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.languages.nki.kernel_wrapper import kernel_result
from accelopt_core.ports import EvaluationLimits, EvaluationRequest, Progress, Target, TargetInfo
from infra.devices.leases import FOLDER_VARIABLE
from infra.neuron.toolchain import NeuronToolchain, open_neuron_toolchain
from infra.nki_kernel import NKIKernel
from infra.simulator.toolchain import traced_on_simulator
from infra.targets.over_ssh import SshTarget
from tests.e2e import kernels
from tests.ssh.server import make_sshd
from tests.toolchains.pretend_sdk import SIMULATED, PretendSdk

SMALL = kernels.REFERENCE.replace("P, N, T = 128, 2048, 4", "P, N, T = 128, 512, 1")
QUICK = EvaluationLimits(iterations=1, warmup=1, remeasure=0)
FIELDS = (
    "hbm_read_bytes", "hbm_write_bytes", "psum_read_bytes", "psum_write_bytes", "sbuf_read_bytes", "sbuf_write_bytes",
    "spill_reload_bytes", "spill_save_bytes", "hardware_flops", "transpose_flops", "peak_flops_bandwidth_ratio",
    "mm_arithmetic_intensity", "hfu_estimated_percent", "scalar_engine_active_time_percent",
    "vector_engine_active_time_percent", "gpsimd_engine_active_time_percent",
)  # fmt: skip
"""The names that NKIBench's users ask for."""


class PretendDevice:
    """A target in this process: the real judge on the toolchain of a pretend SDK."""

    width = 1

    def __init__(self, toolchain: NeuronToolchain) -> None:
        self._toolchain = toolchain

    def describe(self) -> TargetInfo:
        return TargetInfo(self._toolchain.name, self._toolchain.fingerprint, False, self._toolchain.machine.name)

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        return judge(request, self._toolchain, progress, ReferenceCache(None))

    def close(self) -> None:
        self._toolchain.close()


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    server = make_sshd(tmp_path_factory.mktemp("ssh"))
    server.trust()
    server.start()
    target = SshTarget(
        server.destination, machine="trn2", remote_simulator=True, remote_python=sys.executable,
        settings=server.settings,
        root=str(tmp_path_factory.mktemp("far")),
    )  # fmt: skip
    yield target
    target.close()
    server.stop()


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("sdk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(folder / "leases"))
        target = PretendDevice(
            open_neuron_toolchain(traced_on_simulator, installation=PretendSdk(folder, site=SIMULATED).installation)
        )
        yield target
        target.close()


@pytest.fixture(params=["here", *(pytest.param(each, marks=pytest.mark.slow) for each in ("over ssh", "on a device"))])
def target(request: pytest.FixtureRequest) -> Target | None:
    """None: the simulator on this machine."""
    if request.param == "here":
        return None
    found: Target = request.getfixturevalue("far" if request.param == "over ssh" else "device")
    return found


@pytest.fixture
def reference(tmp_path: Path) -> str:
    path = tmp_path / "reference.py"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def kernel(folder: Path, source: str) -> str:
    path = folder / "kernel.py"
    path.write_text(source, encoding="utf-8")
    return str(path)


def test_a_right_kernel_has_latencies_and_the_fields_asked_for(tmp_path, reference, target) -> None:
    profiled = NKIKernel(kernel(tmp_path, kernels.SLOW), reference, target=target, limits=QUICK)
    result = profiled.profile(["no_such_field", *FIELDS])
    assert (result.compiled, result.runnable, result.correct) == (True, True, True), result.metadata
    assert profiled.res is result
    found = result.metadata
    assert 0 < found["min_ms"] <= found["latency"] <= found["max_ms"] and found["rel_diffs"] >= 0
    assert found["hbm_read_bytes"] == 2 * 128 * 512 * 4 and found["hbm_write_bytes"] == 128 * 512 * 4
    assert set(FIELDS) <= set(found) and found["missing_fields"] == ["no_such_field"]
    assert found["simulated"] is not isinstance(target, PretendDevice)
    assert ("simulated trn2" in found["machine"]) is found["simulated"]


@pytest.mark.parametrize(
    ("source", "flags", "said", "kind"),
    [
        (kernels.BROKEN, (False, False, False), ("compilation_error", "tensor_plus"), CompileFailed),
        (kernels.WRONG, (True, True, False), ("correctness_error", "outputs differ"), Incorrect),
    ],
    ids=["does not compile", "wrong"],
)
def test_a_faulty_kernel_says_how_far_it_came(tmp_path, reference, target, source, flags, said, kind) -> None:
    result = NKIKernel(kernel(tmp_path, source.replace("2048", "512")), reference, target=target, limits=QUICK).profile(
        FIELDS
    )
    assert (result.compiled, result.runnable, result.correct) == flags
    assert isinstance(result.evaluation, kind) and said[1] in result.metadata[said[0]]
    assert list(result.metadata) == [said[0]]


FAILURE = CheckFailure(0, "full", 0, "outputs differ")


@pytest.mark.parametrize(
    ("evaluation", "flags", "key"),
    [
        (CompileFailed("no"), (False, False, False), "compilation_error"),
        (TimedOut(Step.COMPILE, 300.0), (False, False, False), "compilation_error"),
        (Crashed(Step.VERIFY, "the judge was killed by signal 9"), (False, False, False), "compilation_error"),
        (Crashed(Step.RUN, "NRT_EXEC_OOB"), (True, False, False), "correctness_error"),
        (TimedOut(Step.RUN, 600.0), (True, False, False), "correctness_error"),
        (Incorrect(FAILURE), (True, True, False), "correctness_error"),
        (Implausible("every element is 0"), (True, True, False), "correctness_error"),
        (Implausible("too fast", 0.1), (True, True, False), "benchmarking_error"),
        (TimedOut(Step.READ_PROFILE, 600.0), (True, True, False), "benchmarking_error"),
    ],
)
def test_every_outcome_has_its_flags_and_its_word(evaluation, flags, key) -> None:
    result = kernel_result(evaluation)
    metadata: dict[str, Any] = result.metadata
    assert (result.compiled, result.runnable, result.correct) == flags and list(metadata) == [key]
    assert "\n" not in metadata[key] and not isinstance(result.evaluation, Measured)
