"""The whole way with a GPU, a pretend one: loaded, launched between guard zones, timed cold; and faults."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelopt_core.toolchain import RunError, StepTimeout, TensorArgument, ToolchainMissing
from nki_optimizer_triton.artifact import TritonArtifact
from nki_optimizer_triton.execution.on_device.counters import why_no_counters
from nki_optimizer_triton.toolchain import TritonToolchain, open_triton_toolchain
from triton_tests.honest import CASES, agrees, specs, tensors
from triton_tests.pretend.gpu import PretendGpu
from triton_tests.test_faults import DOUBLE, LANES, ONCE, OUT, file

N = 64
X = np.arange(1, N + 1, dtype=np.float32)
SPECS = (TensorArgument((N,), "float32"),)
HONEST = file(DOUBLE, OUT + "k[(1,)](x, y, 64, 64)\nreturn y")

Opened = Callable[..., TritonToolchain]


@pytest.fixture
def gpu(tmp_path: Path) -> PretendGpu:
    return PretendGpu(tmp_path)


@pytest.fixture
def opened(gpu: PretendGpu, on_cpu: TritonToolchain) -> Iterator[Opened]:
    """On the pretend GPU as it is told to behave; what was compiled for these tests before need not be again."""
    made = []

    def open_it(**state: Any) -> TritonToolchain:
        gpu.behave(**state)
        toolchain = open_triton_toolchain(packages=str(gpu.packages))
        toolchain._compiler._kept = on_cpu._compiler._kept
        made.append(toolchain)
        return toolchain

    yield open_it
    for toolchain in made:
        toolchain.close()


def known(gpu: PretendGpu, toolchain: TritonToolchain, source: str = HONEST) -> TritonArtifact:
    return gpu.knows(toolchain.compile(source, SPECS, 120))


def test_a_device_is_opened_and_named(opened: Opened) -> None:
    toolchain = opened()
    assert (
        toolchain.on_device and toolchain.gpu.name == "h100" and toolchain.name.startswith("NVIDIA H100 SXM (Triton 3.")
    )
    assert toolchain.name.endswith("driver 12.8)") and toolchain.fingerprint.startswith("triton-h100-")
    assert toolchain.installed.instance == "NVIDIA H100 SXM" and toolchain.caveat == ""


def test_a_gpu_that_is_not_known_has_no_peaks_and_says_so(opened: Opened) -> None:
    toolchain = opened(name="NVIDIA Something", multiprocessors=7)
    assert "peaks of NVIDIA Something are not known" in toolchain.caveat
    with pytest.raises(ToolchainMissing, match="compute capability 7.5, of which nothing is known"):
        opened(capability=75)


def test_a_device_says_itself_what_it_is_whatever_was_to_be_compiled_for(gpu: PretendGpu) -> None:
    toolchain = open_triton_toolchain("l4", packages=str(gpu.packages))
    assert toolchain.gpu.name == "h100"
    toolchain.close()
    with pytest.raises(ToolchainMissing, match="no GPU is named 'tpu'"):
        open_triton_toolchain("tpu")


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"devices": 0}, "cuInit fails with CUDA_ERROR_NO_DEVICE"),
        ({"fails": {"DeviceGetCount": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}}, "cuDeviceGetCount fails"),
    ],
)
def test_without_a_device_the_cpu_executes_and_says_why(opened: Opened, state: dict[str, Any], why: str) -> None:
    toolchain = opened(**state)
    assert not toolchain.on_device and why in toolchain.why_no_device
    assert "executed on the CPU, not on a GPU" in toolchain.name


def test_without_its_bindings_the_cpu_executes_and_says_why(gpu: PretendGpu, opened: Opened) -> None:
    gpu.without("cuda/bindings/driver")
    assert "no GPU can be used: no such package here" in opened().why_no_device


@pytest.mark.parametrize(
    ("text", "administrator", "why"),
    [
        (None, True, "is not known"),
        ("RmProfilingAdminOnly: 1\n", False, "are for administrators here"),
        ("EnableMSI: 1\n", True, "are for administrators here"),
        ("RmProfilingAdminOnly: 1\n", True, "may be read here"),
        ("EnableMSI: 1\nRmProfilingAdminOnly: 0\n", False, "may be read here"),
    ],
)
def test_why_counters_are_not_read_is_said(tmp_path: Path, text: str | None, administrator: bool, why: str) -> None:
    path = tmp_path / "params"
    if text is not None:
        path.write_text(text)
    assert why in why_no_counters(path, administrator)


# --- right -------------------------------------------------------------------------------------------

ON_DEVICE = ["layernorm", "matmul", "rope", "host_descriptors", "atomic_sum"]


@pytest.mark.parametrize("name", ON_DEVICE)
def test_an_honest_kernel_is_right_and_timed(name: str, gpu: PretendGpu, opened: Opened) -> None:
    case = next(case for case in CASES if case.file == name)
    arguments = case.arguments(np.random.default_rng(0))
    toolchain = opened()
    artifact = gpu.knows(toolchain.compile(case.source, specs(arguments), 120))
    outputs = toolchain.run(artifact, tensors(arguments), 120)
    for got, want in zip(outputs, case.expected(*arguments)):
        assert not agrees(case, got, want)
    timing = toolchain.time(artifact, tensors(arguments), 1, 3, 120)
    assert len(timing.samples_us) == 3 and min(timing.samples_us) > 0


def test_fills_of_every_width(gpu: PretendGpu, opened: Opened) -> None:
    body = "tl.store(y_ptr, tl.load(x_ptr))"
    fills = [
        ("int8", -3),
        ("float16", 1.5),
        ("int32", 1 << 30),
        ("int64", -(1 << 40) + 5),
        ("float64", 0.1),
        ("bool", True),
    ]
    made = "".join(
        f"f{n} = torch.full((5,), {value}, dtype=torch.{kind}, device=x.device)\n"
        for n, (kind, value) in enumerate(fills)
    )
    source = file(
        body, f"{made}y = torch.zeros_like(x)\nk[(1,)](x, y, 1, 2)\nreturn y, " + ", ".join(f"f{n}" for n in range(6))
    )
    toolchain = opened()
    y, *filled = toolchain.run(known(gpu, toolchain, source), [X], 60)
    assert y[0] == X[0] and not y[1:].any()
    for array, (kind, value) in zip(filled, fills):
        assert array.dtype == kind and (array == np.array(value, kind)).all()


def test_clusters_are_launched_as_such(gpu: PretendGpu, opened: Opened) -> None:
    source = HONEST.replace("k[(1,)](x, y, 64, 64)", "k[(4,)](x, y, 64, 16, num_ctas=2)")
    toolchain = opened()
    artifact = known(gpu, toolchain, source)
    assert artifact.kernels[0].num_ctas == 2
    assert np.array_equal(toolchain.run(artifact, [X], 60)[0], 2 * X)


# --- time --------------------------------------------------------------------------------------------


def test_what_is_timed_is_cold_and_long_enough_for_the_events(gpu: PretendGpu, opened: Opened) -> None:
    toolchain = opened(kernel_us=3.3, warm_us=1.0)
    timing = toolchain.time(known(gpu, toolchain), [X], 2, 5, 60)
    assert all(abs(sample - 3.3) < 0.02 for sample in timing.samples_us)
    assert toolchain.facts(known(gpu, toolchain)).fields["launches"] == 1


def test_a_long_call_is_a_region_of_its_own(gpu: PretendGpu, opened: Opened) -> None:
    toolchain = opened(kernel_us=5000.0)
    artifact = known(gpu, toolchain)
    timing = toolchain.time(artifact, [X], 1, 4, 60)
    assert timing.samples_us == (5000.0,) * 4
    assert toolchain.facts(artifact).fields["calls_per_sample"] == 1


def test_all_launches_of_a_call_are_in_its_time(gpu: PretendGpu, opened: Opened) -> None:
    source = HONEST.replace(
        "k[(1,)](x, y, 64, 64)", "z = torch.zeros_like(x)\n    k[(1,)](x, z, 64, 64)\n    k[(1,)](z, y, 64, 64)"
    )
    toolchain = opened(kernel_us=300.0, warm_us=300.0)
    timing = toolchain.time(known(gpu, toolchain, source), [X], 1, 3, 60)
    assert all(600 <= sample < 610 for sample in timing.samples_us), timing


def test_a_slow_host_is_waited_for_by_overwriting_longer(gpu: PretendGpu, opened: Opened) -> None:
    """What it takes to hand a region over takes longer than the cache takes to overwrite once: none of it is timed."""
    toolchain = opened(kernel_us=80.0, warm_us=80.0, call_us=150.0, bytes_per_us=4000.0)
    artifact = known(gpu, toolchain)
    timing = toolchain.time(artifact, [X], 1, 3, 60)
    assert all(abs(sample - 80.0) < 1 for sample in timing.samples_us), timing
    assert toolchain.facts(artifact).fields["samples_begun_late"] == 0


def test_a_host_that_is_never_ready_in_time_is_told(gpu: PretendGpu, opened: Opened) -> None:
    toolchain = opened(kernel_us=80.0, call_us=5000.0)
    artifact = known(gpu, toolchain)
    toolchain.time(artifact, [X], 1, 3, 60)
    assert toolchain.facts(artifact).fields["samples_begun_late"] == 3


def test_jitter_and_drift_are_in_the_samples(gpu: PretendGpu, opened: Opened) -> None:
    toolchain = opened(kernel_us=400.0, jitter=0.05)
    samples = toolchain.time(known(gpu, toolchain), [X], 1, 9, 60).samples_us
    assert 360 < min(samples) < max(samples) < 440 and len(set(samples)) > 5
    toolchain.close()  # it holds the GPU
    toolchain = opened(kernel_us=400.0, drift=0.001)
    samples = toolchain.time(known(gpu, toolchain), [X], 1, 9, 60).samples_us
    assert list(samples) == sorted(samples) and samples[-1] > samples[0]


def test_throttling_and_clocks_are_told(gpu: PretendGpu, opened: Opened) -> None:
    toolchain = opened(clocks_mhz=[1980, 1200, 1980], throttle=0x40 | 0x1)
    artifact = known(gpu, toolchain)
    timing = toolchain.time(artifact, [X], 1, 5, 60)
    fields = toolchain.facts(artifact).fields
    assert (fields["sm_clock_mhz_min"], fields["sm_clock_mhz_max"], fields["throttled"]) == (1200, 1980, 1)
    assert fields["temperature_c"] == 61 and fields["total_time"] == pytest.approx(
        statistics.median(timing.samples_us) * 1e-6
    )
    assert fields["achieved_io_bytes_per_s"] == pytest.approx(512 / fields["total_time"])


@pytest.mark.parametrize("nvml", ["Driver Not Loaded", None])
def test_without_nvml_it_is_timed_all_the_same(gpu: PretendGpu, opened: Opened, nvml: str | None) -> None:
    if nvml is None:
        gpu.without("pynvml")
    toolchain = opened(nvml=nvml or "works")
    artifact = known(gpu, toolchain)
    assert toolchain.time(artifact, [X], 1, 3, 60).samples_us
    assert "sm_clock_mhz_min" not in toolchain.facts(artifact).fields
    assert "NVML: Driver Not Loaded" in toolchain.unseen or "nvidia-ml-py is not installed" in toolchain.unseen


def test_what_is_updated_in_place_is_put_back_before_each_region(gpu: PretendGpu, opened: Opened) -> None:
    source = file(
        "i = tl.arange(0, BLOCK)\ntl.store(y_ptr + i, tl.load(y_ptr + i) * 2)", "k[(1,)](x, x, 64, 64)\nreturn x"
    )
    toolchain = opened()
    artifact = known(gpu, toolchain, source)
    assert np.array_equal(toolchain.run(artifact, [X], 60)[0], 2 * X)
    assert toolchain.time(
        artifact, [X], 1, 3, 60
    ).samples_us  # and the last call's outputs are those that were verified


def test_a_kernel_that_computes_otherwise_once_it_is_timed_is_found(gpu: PretendGpu, opened: Opened) -> None:
    toolchain = opened(right_launches=10)
    artifact = known(gpu, toolchain)
    toolchain.run(artifact, [X], 60)
    with pytest.raises(RunError, match="a timed execution computed other outputs than the verified one"):
        toolchain.time(artifact, [X], 20, 3, 60)


# --- faults ------------------------------------------------------------------------------------------

WRONG = {
    "beyond its tensors, unseen by the hardware": (
        file("i = tl.arange(0, BLOCK)\ntl.store(y_ptr + i, tl.load(x_ptr + i))\ntl.store(y_ptr + 64 + i, 1.0)",
             OUT + "k[(1,)](x, y, 64, 64)\nreturn y"),
        "out of bounds: memory next to the tensor allocated in line 12 was written",
    ),
    "reading beyond": (
        file(f"{LANES}tl.store(y_ptr + i, tl.load(x_ptr + i + 1) + 1)", OUT + ONCE),
        "output 0 depends on memory that nobody wrote, or that lies outside its tensors",
    ),
    "never written": (file(DOUBLE, OUT + "k[(1,)](x, y, 60, 64)\nreturn y"), "4 of 64 elements are never written"),
    "an input": (
        file(DOUBLE, OUT + "k[(1,)](x, y, 64, 64)\nk[(1,)](y, x, 64, 64)\nreturn y"), "write to tensor argument 0",
    ),
    "far beyond": (
        file("tl.store(y_ptr + (1 << 28), 1.0)", OUT + "k[(1,)](x, y, 64, 64)\nreturn y"),
        "kernel k on the GPU: it reads or writes memory that is not there (CUDA_ERROR_ILLEGAL_ADDRESS)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found_and_the_next_one_runs(name: str, gpu: PretendGpu, opened: Opened) -> None:
    source, why = WRONG[name]
    toolchain = opened()
    artifact = known(gpu, toolchain, source)
    with pytest.raises(RunError) as fault:
        toolchain.run(artifact, [X], 60)
    assert why in str(fault.value)
    assert np.array_equal(toolchain.run(known(gpu, toolchain), [X], 60)[0], 2 * X)


def test_chance_is_found(gpu: PretendGpu, opened: Opened) -> None:
    toolchain = opened(right_launches=0)
    with pytest.raises(RunError, match="memory next to|the same inputs give different bits"):
        toolchain.run(known(gpu, toolchain), [X], 60)


@pytest.mark.parametrize(
    ("step", "error", "why"),
    [
        ("run", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "it comes to an instruction that the GPU does not have"),
        ("run", "CUDA_ERROR_LAUNCH_TIMEOUT", "it runs longer than the system lets a kernel run"),
        ("time", "CUDA_ERROR_MISALIGNED_ADDRESS", "it reads or writes at an address that is no multiple of"),
        ("time", "CUDA_ERROR_LAUNCH_FAILED", "it crashes"),
    ],
)
def test_a_crash_ends_the_process_and_not_the_judge(
    gpu: PretendGpu, opened: Opened, step: str, error: str, why: str
) -> None:
    toolchain = opened(kernel_fails={"k": error})
    artifact = known(gpu, toolchain)
    for _ in range(2):  # the second in a new process
        with pytest.raises(RunError) as fault:
            toolchain.run(artifact, [X], 60) if step == "run" else toolchain.time(artifact, [X], 1, 3, 60)
        assert f"kernel k on the GPU: {why}" in str(fault.value) and error in str(fault.value)


def test_a_hanging_kernel_is_ended_and_the_next_one_runs(gpu: PretendGpu, opened: Opened) -> None:
    toolchain = opened(hangs=True)
    artifact = known(gpu, toolchain)
    with pytest.raises(StepTimeout, match="run took more than 2 s"):
        toolchain.run(artifact, [X], 2)
    with pytest.raises(StepTimeout, match="benchmark took more than 2 s"):
        toolchain.time(artifact, [X], 1, 3, 2)
    gpu.behave()
    assert np.array_equal(toolchain.run(artifact, [X], 60)[0], 2 * X)


def test_too_little_memory_is_told(gpu: PretendGpu, opened: Opened) -> None:
    source = HONEST.replace(
        "y = torch.empty_like(x)", "y = torch.empty_like(x); z = torch.empty(1 << 24, device=x.device)"
    )
    toolchain = opened(memory_bytes=1 << 22)
    with pytest.raises(RunError, match="need more memory than the GPU has left"):
        toolchain.run(known(gpu, toolchain, source), [X], 60)


def test_a_broken_driver_is_no_fault_of_a_kernel(gpu: PretendGpu, opened: Opened) -> None:
    toolchain = opened(fails={"ModuleLoadData": "CUDA_ERROR_NO_BINARY_FOR_GPU"})
    with pytest.raises(ToolchainMissing, match="cuModuleLoadData fails with CUDA_ERROR_NO_BINARY_FOR_GPU"):
        toolchain.run(known(gpu, toolchain), [X], 60)


def test_many_programs_are_loaded_one_after_the_other(gpu: PretendGpu, opened: Opened) -> None:
    toolchain = opened()
    artifact = known(gpu, toolchain)
    copies = [TritonArtifact(artifact.program, artifact.kernels, artifact.plan) for _ in range(20)]
    for each in (*copies, *copies):
        assert np.array_equal(toolchain.run(each, [X], 60)[0], 2 * X)
