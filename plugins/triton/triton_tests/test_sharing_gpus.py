"""Two processes of this program do not work on one GPU at once; which GPUs they may use, their user says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import config
from accelopt_core.toolchain import NotTimed, ToolchainMissing
from infra.assembly.targets import target_of
from infra.devices.leases import FOLDER_VARIABLE, LeaseFolder, LeaseUnavailable
from infra.devices.share import CORES_VARIABLE, WAIT_VARIABLE
from infra.settings_reader import SettingsError
from nki_optimizer_triton.gpu_share import RUNTIME_VARIABLES
from nki_optimizer_triton.toolchain import TritonToolchain, open_triton_toolchain
from triton_tests.pretend.gpu import PretendGpu
from triton_tests.test_on_a_device import HONEST, SPECS, X

FIRST, SECOND = "gpu-0a0b0c0d0e0f", "gpu-0a0b0c0d0e10"


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LeaseFolder:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setenv(WAIT_VARIABLE, "0.2")
    for name in (CORES_VARIABLE, *RUNTIME_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return LeaseFolder()


@pytest.fixture
def two(tmp_path: Path, on_cpu: TritonToolchain) -> Iterator[list[TritonToolchain]]:
    """On a machine with two GPUs, by two judges: each opens its own toolchain."""
    gpu = PretendGpu(tmp_path, devices=2)
    made = [open_triton_toolchain(packages=str(gpu.packages)) for _ in range(2)]
    for toolchain in made:
        toolchain._compiler._kept = on_cpu._compiler._kept
    gpu.knows(made[0].compile(HONEST, SPECS, 120))
    yield made
    for toolchain in made:
        toolchain.close()


def held(leases: LeaseFolder, name: str) -> bool:
    lease = leases.take(name)
    if lease is not None:
        lease.release()
    return lease is None


def test_each_judge_has_a_gpu_of_its_own_from_its_first_execution_to_its_end(
    two: list[TritonToolchain], leases: LeaseFolder
) -> None:
    artifacts = [toolchain.compile(HONEST, SPECS, 120) for toolchain in two]
    assert not held(leases, FIRST), "compiling needs none"
    two[1].run(artifacts[1], [X], 60)
    assert held(leases, FIRST) and not held(leases, SECOND)
    two[0].time(artifacts[0], [X], 1, 3, 60)
    assert held(leases, SECOND)
    assert np.array_equal(two[0].run(artifacts[0], [X], 60)[0], 2 * X), "the same one again"
    two[1].close()
    assert not held(leases, FIRST) and held(leases, SECOND)


def test_a_gpu_that_others_have_is_waited_for_and_who_has_it_is_said(tmp_path: Path, leases: LeaseFolder) -> None:
    gpu, said = PretendGpu(tmp_path), list[str]()
    theirs = leases.take(FIRST)
    assert theirs is not None
    toolchain = open_triton_toolchain(packages=str(gpu.packages), told=said.append)
    artifact = gpu.knows(toolchain.compile(HONEST, SPECS, 120))
    with pytest.raises(LeaseUnavailable, match=r"still held: gpu 0a0b0c0d0e0f by .*--core-wait.*--cores"):
        toolchain.run(artifact, [X], 60)
    assert said and said[0].startswith("waiting, held: gpu 0a0b0c0d0e0f by ")
    theirs.release()
    assert np.array_equal(toolchain.run(artifact, [X], 60)[0], 2 * X)
    toolchain.close()


def test_a_latency_measured_while_somebody_else_had_the_gpu_counts_for_nothing(
    two: list[TritonToolchain], leases: LeaseFolder, tmp_path: Path
) -> None:
    artifact = two[0].compile(HONEST, SPECS, 120)
    two[0].run(artifact, [X], 60)
    (tmp_path / "leases" / f"{FIRST}.9").touch()
    with pytest.raises(LeaseUnavailable, match="gpu 0a0b0c0d0e0f was taken over"):
        two[0].time(artifact, [X], 1, 3, 60)


@pytest.mark.parametrize(
    ("variable", "value", "lease"),
    [(CORES_VARIABLE, "1", SECOND), ("CUDA_VISIBLE_DEVICES", "1", SECOND), ("CUDA_VISIBLE_DEVICES", "1,0", SECOND)],
)
def test_the_user_chooses(
    variable: str, value: str, lease: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leases: LeaseFolder
) -> None:
    monkeypatch.setenv(variable, value)
    gpu = PretendGpu(tmp_path, devices=2)
    toolchain = open_triton_toolchain(packages=str(gpu.packages))
    toolchain.run(gpu.knows(toolchain.compile(HONEST, SPECS, 120)), [X], 60)
    assert held(leases, lease)
    toolchain.close()


@pytest.mark.parametrize(
    ("cores", "names", "said"),
    [
        ("0,2", {}, "GPU 2: CUDA shows 2 here, numbered from 0; choose others with --cores"),
        ("one", {}, "NKI_OPTIMIZER_CORES"),
        ("", {"1": "NVIDIA L4"}, "GPU 0 is NVIDIA H100 80GB HBM3 and GPU 1 is NVIDIA L4: latencies of two kinds"),
    ],
)
def test_a_wrong_choice_is_refused_and_not_made_good_by_the_cpu(
    cores: str, names: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CORES_VARIABLE, cores)
    gpu = PretendGpu(tmp_path, devices=2, other_names=names)
    with pytest.raises(ToolchainMissing, match=said):
        open_triton_toolchain(packages=str(gpu.packages))


def test_a_gpu_that_cannot_be_used_once_it_is_needed_is_told_and_not_made_good_by_the_cpu(tmp_path: Path) -> None:
    gpu = PretendGpu(tmp_path, fails={"DevicePrimaryCtxRetain": "CUDA_ERROR_OUT_OF_MEMORY"})
    toolchain = open_triton_toolchain(packages=str(gpu.packages))
    artifact = gpu.knows(toolchain.compile(HONEST, SPECS, 120))
    with pytest.raises(ToolchainMissing, match="cuDevicePrimaryCtxRetain fails with CUDA_ERROR_OUT_OF_MEMORY"):
        toolchain.run(artifact, [X], 60)
    toolchain.close()


def test_without_a_gpu_nothing_is_leased(on_cpu: TritonToolchain, leases: LeaseFolder) -> None:
    artifact = on_cpu.compile(HONEST, SPECS, 120)
    on_cpu.run(artifact, [X], 60)
    with pytest.raises(NotTimed, match="timing needs an NVIDIA GPU"):
        on_cpu.time(artifact, [X], 1, 3, 60)
    assert not leases.path.exists()


def test_cores_of_this_machine_are_its_gpus_and_of_a_simulated_one_there_are_none() -> None:
    settings = replace(config.Settings(), target=replace(config.TargetSettings(), cores=(0, 1)))
    target = target_of(replace(settings, run=replace(settings.run, language="triton")))
    assert target.width == 2
    target.close()
    with pytest.raises(SettingsError, match="cores: of which host"):
        target_of(settings)
