"""What is known of GPUs hangs together; blocks fit as cuda_occupancy.h has it; cubins say what cuobjdump says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import triton

from accelopt_core.toolchain import TensorArgument
from nki_optimizer_triton.compiling.resources import CubinUnreadable, resources_of
from nki_optimizer_triton.language.gpus import CAPABILITIES, GPUS, Gpu, gpu_of_device
from nki_optimizer_triton.occupancy import occupancy, waves
from nki_optimizer_triton.toolchain import TritonToolchain
from triton_tests.honest import KERNELS

BIN = Path(triton.__file__).parent / "backends/nvidia/bin"
CORES = {80: 64, 89: 128, 90: 128, 100: 128}
"""float32 cores of a multiprocessor (CUDA C++ Programming Guide, Arithmetic Instructions)."""


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_the_rate_of_float32_is_that_of_its_cores_at_its_clock(gpu: Gpu) -> None:
    by_cores = gpu.multiprocessors * CORES[gpu.capability.number] * 2 * gpu.clock_mhz * 1e6
    assert gpu.vector_flops_per_s["float32"] == pytest.approx(by_cores, rel=0.01)
    assert gpu.source in ("[A100]", "[H100]", "[H200]", "[L4]", "[L40S]", "[4090]", "[B200]") and gpu.caveat == ""


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_tensor_rates_are_dense_and_in_their_order(gpu: Gpu) -> None:
    rates = gpu.tensor_flops_per_s
    assert rates["bfloat16"] == rates["float16"] == pytest.approx(2 * rates["tf32"], rel=0.02)
    assert ("float8_e4m3fn" in rates) == gpu.capability.fp8
    if gpu.capability.fp8:
        assert rates["float8_e4m3fn"] == pytest.approx(2 * rates["bfloat16"], rel=0.02)
    assert gpu.flops_per_s("float32") == gpu.vector_flops_per_s["float32"]
    assert (
        gpu.flops_per_s("bfloat16") == rates["bfloat16"]
        and gpu.flops_per_s("bfloat16", tensor_cores=False) != rates["bfloat16"]
    )


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_a_gpu_is_known_by_what_its_driver_says(gpu: Gpu) -> None:
    for name in gpu.answers_to:
        assert gpu_of_device(name, gpu.capability.number, gpu.multiprocessors, 1, 1, 1) is gpu
    other = gpu_of_device(gpu.answers_to[0], gpu.capability.number, gpu.multiprocessors - 1, 1500, 5, 6)
    assert other not in GPUS.values() and other.caveat and other.flops_per_s("float32") is None


# By hand after cuda_occupancy.h: (capability, warps, registers, shared bytes) -> (blocks, what limits).
OCCUPANCY = [
    ((90, 4, 32, 0), (16, "warps")),
    ((90, 1, 16, 0), (32, "blocks")),
    ((90, 4, 128, 0), (4, "registers")),
    ((90, 8, 255, 0), (1, "registers")),
    ((90, 4, 64, 49_152), (4, "shared memory")),
    ((90, 4, 32, 227 * 1024), (1, "shared memory")),
    ((90, 4, 32, 228 * 1024), (0, "shared memory")),
    ((89, 4, 32, 0), (12, "warps")),
    ((80, 4, 40, 20_000), (7, "shared memory")),
]


@pytest.mark.parametrize(("block", "expected"), OCCUPANCY)
def test_how_many_blocks_fit(block: tuple[int, int, int, int], expected: tuple[int, str]) -> None:
    capability, warps, registers, shared = block
    found = occupancy(CAPABILITIES[capability], warps, registers, shared)
    assert (found.blocks, found.limited_by) == expected
    assert found.fraction == found.blocks * warps / CAPABILITIES[capability].warps_per_multiprocessor


def test_waves() -> None:
    assert waves(GPUS["h100"], 132 * 4 * 3, 4) == 3 and waves(GPUS["h100"], 10, 0) == 0


@pytest.mark.parametrize("name", ["softmax", "flash_attention"])
def test_a_cubin_says_what_cuobjdump_says(name: str, on_cpu: TritonToolchain, tmp_path: Path) -> None:
    shapes = {"softmax": [(300, 781)], "flash_attention": [(1, 2, 150, 32)] * 3}[name]
    dtype = "float32" if name == "softmax" else "bfloat16"
    source = (KERNELS / f"{name}.py").read_text(encoding="utf-8")
    (kernel,) = on_cpu.compile(source, [TensorArgument(shape, dtype) for shape in shapes], 120).distinct
    path = tmp_path / "kernel.cubin"
    path.write_bytes(kernel.cubin)
    said = subprocess.run(
        [BIN / "cuobjdump", "--dump-resource-usage", path], capture_output=True, text=True, env={"PATH": str(BIN)}
    )
    found = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|SHARED):(\d+)", said.stdout)}
    resources = kernel.resources
    assert found == {
        "REG": resources.registers,
        "STACK": resources.stack_bytes,
        "SHARED": resources.static_shared_bytes,
    }
    assert resources.code_bytes > 500


def test_spills_are_seen(on_cpu: TritonToolchain) -> None:
    source = (
        (KERNELS / "flash_attention.py").read_text(encoding="utf-8").replace("num_stages=2", "num_stages=2, maxnreg=48")
    )
    (kernel,) = on_cpu.compile(source, [TensorArgument((1, 2, 150, 32), "bfloat16")] * 3, 120).distinct
    assert kernel.resources.stack_bytes > 0 and kernel.resources.registers <= 48


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: b"",
        lambda c: c[:100],
        lambda c: b"\x7fELF" + b"\xff" * 200,
        lambda c: c[:0x28] + b"\xff" * 8 + c[0x30:],
    ],
)
def test_damaged_machine_code_is_refused(damage: object, on_cpu: TritonToolchain) -> None:
    source = (KERNELS / "vector_add.py").read_text(encoding="utf-8")
    (kernel,) = on_cpu.compile(source, [TensorArgument((3000,), "float32")] * 2, 120).distinct
    assert callable(damage)
    with pytest.raises(CubinUnreadable):
        resources_of(damage(kernel.cubin), kernel.name)
    with pytest.raises(CubinUnreadable, match="no kernel absent"):
        resources_of(kernel.cubin, "absent")
