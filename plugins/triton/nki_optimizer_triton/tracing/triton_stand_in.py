"""What `import triton` means while a candidate is traced."""

from __future__ import annotations

from typing import Any

from nki_optimizer_triton.tracing import kernels, language_stand_in
from nki_optimizer_triton.tracing.gpu_facts import GpuFacts
from nki_optimizer_triton.tracing.recorder import Refused
from nki_optimizer_triton.tracing.refusing import StandIn, Word
from nki_optimizer_triton.tracing.tensors import Device, Tensor, reinterpreted

_MEASURES = "measures: nothing is timed while a function is traced, and the judge times what it launches"
_COMPILES = "reaches into Triton's compiler, which is not there while a function is traced"


def modules(gpu: GpuFacts) -> dict[str, StandIn]:
    language = language_stand_in.modules()
    driver = StandIn("triton.runtime.driver", {"active": _Active(gpu)}, _COMPILES)
    runtime = StandIn("triton.runtime", {"driver": driver, "JITFunction": kernels.Jit}, _COMPILES)
    runtime_jit = StandIn("triton.runtime.jit", {"JITFunction": kernels.Jit}, _COMPILES)
    testing = StandIn("triton.testing", {"Benchmark": _Benchmark, "perf_report": _perf_report}, _MEASURES)
    descriptors = StandIn("triton.tools.tensor_descriptor", {"TensorDescriptor": kernels.TensorDescriptor}, _COMPILES)
    tools = StandIn("triton.tools", {"tensor_descriptor": descriptors}, _COMPILES)
    triton = StandIn(
        "triton",
        {
            "__version__": gpu.triton_version,
            "jit": kernels.jit,
            "autotune": kernels.autotune,
            "heuristics": kernels.heuristics,
            "Config": kernels.Config,
            "JITFunction": kernels.Jit,
            "cdiv": _cdiv,
            "next_power_of_2": _next_power_of_2,
            "reinterpret": _reinterpret,
            "set_allocator": lambda allocator: None,  # the judge gives kernels the scratch memory that they ask for
            "language": language["triton.language"],
            "testing": testing,
            "runtime": runtime,
            "tools": tools,
        },
        _COMPILES,
    )
    runtime.__dict__["jit"] = runtime_jit
    return {
        "triton": triton,
        **language,
        "triton.testing": testing,
        "triton.runtime": runtime,
        "triton.runtime.driver": driver,
        "triton.runtime.jit": runtime_jit,
        "triton.tools": tools,
        "triton.tools.tensor_descriptor": descriptors,
        "triton.compiler": StandIn("triton.compiler", {}, _COMPILES),
        "triton.backends": StandIn("triton.backends", {}, _COMPILES),
        "triton.experimental": StandIn("triton.experimental", {}, "is refused: kernels are written in triton.language"),
    }


def _cdiv(x: Any, y: Any) -> int:
    return int((x + y - 1) // y)


def _next_power_of_2(n: Any) -> int:
    """As Triton's: 1 for 1 and below 1 whatever its bit arithmetic gives."""
    n = int(n) - 1
    for shift in (1, 2, 4, 8, 16, 32):
        n |= n >> shift
    return n + 1


def _reinterpret(tensor: Any, dtype: Any) -> Tensor:
    if not isinstance(tensor, Tensor) or not isinstance(dtype, language_stand_in.LanguageDtype):
        raise Refused("triton.reinterpret(tensor, tl.<type>)")
    return reinterpreted(tensor, dtype.name)


class _Target:
    def __init__(self, gpu: GpuFacts) -> None:
        self.backend = "cuda"
        self.arch = 10 * gpu.capability[0] + gpu.capability[1]
        self.warp_size = 32


class _Utils:
    def __init__(self, gpu: GpuFacts) -> None:
        self._gpu = gpu

    def get_device_properties(self, device: Any = 0) -> dict[str, int]:
        return {
            "max_shared_mem": self._gpu.shared_bytes_per_block,
            "max_num_regs": self._gpu.registers_per_multiprocessor,
            "multiprocessor_count": self._gpu.multiprocessors,
            "warpSize": 32,
        }


class _Active:
    """`triton.runtime.driver.active`."""

    def __init__(self, gpu: GpuFacts) -> None:
        self._gpu = gpu
        self.utils = _Utils(gpu)

    def get_current_target(self) -> _Target:
        return _Target(self._gpu)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> Device:
        return Device("cuda", 0)

    def get_device_capability(self, device: Any = 0) -> tuple[int, int]:
        return self._gpu.capability

    def __getattr__(self, name: str) -> Any:
        return Word(f"triton.runtime.driver.active.{name}", _COMPILES)


class _Benchmark:
    """`triton.testing.Benchmark`: a file may declare its own benchmark, which never runs."""

    def __init__(self, **_: Any) -> None: ...


def _perf_report(_: Any) -> Any:
    return lambda function: Word(function.__name__, _MEASURES)
