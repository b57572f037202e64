"""What a machine is for Triton kernels: with a GPU, a pretend one, without, and with what is lacking in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import config
from infra.commands.machines import examined
from infra.devices.leases import FOLDER_VARIABLE
from nki_optimizer_triton import gpu_doctor
from nki_optimizer_triton.gpu_share import PACKAGES_VARIABLE
from nki_optimizer_triton.toolchain import TritonToolchain
from triton_tests.pretend.gpu import PretendGpu


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PretendGpu:
    gpu = PretendGpu(tmp_path, devices=2)
    monkeypatch.setenv(PACKAGES_VARIABLE, str(gpu.packages))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    return gpu


def test_a_gpu_is_named_and_proved_by_a_known_kernel(gpu: PretendGpu, on_cpu: TritonToolchain) -> None:
    from accelopt_core.toolchain import TensorArgument

    gpu.knows_by_name(on_cpu.compile(gpu_doctor.KNOWN_KERNEL, (TensorArgument((100_000,), "float32"),), 120))
    report = gpu_doctor.examine("l4")
    first, second = report.gpus
    assert (first.number, first.machine, first.capability, first.multiprocessors) == (0, "h100", "9", 132)
    assert second.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e10"
    assert (report.cuda, report.driver, report.problems, report.missing) == ("12.8", "570.86.15", (), ())
    (proof,) = report.proofs
    assert proof.right and proof.latency_us == pytest.approx(40, rel=0.1) and report.evaluates_on_device
    said = report.render(device_wanted=True)
    assert "GPU 0" in said and "NVIDIA H100 80GB HBM3, compute capability 9, 132 multiprocessors" in said
    assert (
        "driver        570.86.15, for CUDA up to 12.8" in said and "Triton kernels are evaluated on NVIDIA H100" in said
    )
    assert gpu_doctor.from_printed(gpu_doctor.to_json(report)) == report


def test_a_gpu_that_fails_on_a_kernel_that_is_right_is_a_problem(gpu: PretendGpu) -> None:
    gpu.behave(devices=2, fails={"ModuleLoadData": "CUDA_ERROR_NO_BINARY_FOR_GPU"})
    report = gpu_doctor.examine("h100")
    assert report.on_gpu and not report.evaluates_on_device
    assert any("cuModuleLoadData fails with CUDA_ERROR_NO_BINARY_FOR_GPU" in line for line in report.problems)
    assert "Triton kernels cannot be evaluated here" in report.render()


def test_what_a_profile_lacks_is_said(gpu: PretendGpu) -> None:
    gpu.without("pynvml")
    report = gpu_doctor.examine("h100", prove=False)
    assert "nvidia-ml-py is not installed" in report.unseen and report.driver == ""
    assert "driver" in report.render() and "version not told" in report.render()


def test_without_a_gpu_kernels_are_verified_and_it_says_what_is_needed() -> None:
    settings = config.Settings(run=config.RunSettings(language="triton"))
    found, said = examined(settings, "")
    assert found.usable and found.report is None and found.gpu_report is not None
    report = gpu_doctor.from_printed(json.dumps(found.gpu_report))
    assert not report.on_gpu and report.render() == said
    (proof,) = report.proofs
    assert proof.right and proof.latency_us is None and "right, but not timed" in proof.said
    assert "verified by this machine's CPU and not timed: a run needs an NVIDIA GPU" in said
    assert "missing" not in said and "missing" in report.render(device_wanted=True)


@pytest.mark.parametrize("text", ["", "{}", '{"version": 0}', '{"version": 1}', "no json"])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a doctor's report"):
        gpu_doctor.from_printed(text)
