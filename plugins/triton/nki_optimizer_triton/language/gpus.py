"""NVIDIA GPUs by name: what each could do at its best, every number with its source.

Rates are dense (without 2:4 sparsity, by which datasheets double what they print), at the boost clock. `vector`: by the
ordinary cores; `tensor`: by tensor cores, sums in float32. A GPU that is not here has no peaks, and says so.

Sources:
[A100] NVIDIA A100 Tensor Core GPU datasheet, and Architecture whitepaper v1.0, tables 1 to 4.
[H100] NVIDIA H100 Tensor Core GPU datasheet (tensor rates there are with sparsity: halved here), and Architecture
       whitepaper v1.04, table 3 (SMs, L2). The clocks are those at which the datasheet's FP32 rate is reached:
       rate / (SMs x 128 cores x 2).
[H200] NVIDIA H200 Tensor Core GPU datasheet: the chip is the H100 SXM's, memory and bandwidth are its own.
[L4], [L40S] NVIDIA L4 and L40S datasheets (tensor rates with sparsity halved); Ada GPU Architecture whitepaper v2.1.
[4090] NVIDIA Ada GPU Architecture whitepaper v2.1, appendix A (GeForce RTX 4090; rates with FP32 accumulation).
[B200] NVIDIA DGX B200 datasheet, an eighth of each; SMs and L2 are not in it: as the driver of one reports them
       (chipsandcheese.com, "Nvidia's B200: Keeping the CUDA Juggernaut Rolling").
[CC]   CUDA C++ Programming Guide, Technical Specifications per Compute Capability.
[OCC]  cuda_occupancy.h of the CUDA toolkit: granularities of allocation, and what the driver reserves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Capability:
    """What every GPU of one compute capability has."""

    number: int
    """E.g. 90."""
    blocks_per_multiprocessor: int
    warps_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block: int
    """That a launch may ask for."""
    registers_per_multiprocessor: int = 65_536
    registers_per_thread: int = 255
    register_granularity: int = 256
    """For each warp [OCC]."""
    shared_granularity: int = 128
    """Bytes [OCC]."""
    reserved_shared_bytes: int = 1_024
    """Of each block, by the driver [CC, note on shared memory of 8.0 and higher]."""
    partitions: int = 4
    """Of a multiprocessor, each with its registers [OCC]."""
    fp8: bool = False
    """Tensor cores take 8-bit floats."""

    @property
    def threads_per_multiprocessor(self) -> int:
        return 32 * self.warps_per_multiprocessor


CAPABILITIES = {
    each.number: each
    for each in (
        Capability(80, 32, 64, 164 * KIB, 163 * KIB),
        Capability(86, 16, 48, 100 * KIB, 99 * KIB),
        Capability(89, 24, 48, 100 * KIB, 99 * KIB, fp8=True),
        Capability(90, 32, 64, 228 * KIB, 227 * KIB, fp8=True),
        Capability(100, 32, 64, 228 * KIB, 227 * KIB, fp8=True),
        Capability(103, 32, 64, 228 * KIB, 227 * KIB, fp8=True),
        Capability(120, 24, 48, 100 * KIB, 99 * KIB, fp8=True),
    )
}
"""[CC]"""


@dataclass(frozen=True)
class Gpu:
    name: str
    """Short, as `--machine` says it, e.g. `h100`."""
    label: str
    """As NVIDIA calls it."""
    capability: Capability
    multiprocessors: int
    clock_mhz: float
    """Boost."""
    memory_bytes: int
    memory_bytes_per_s: float | None
    """None: unknown."""
    l2_bytes: int
    vector_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    """By element type, `float32` and so on; empty: unknown."""
    tensor_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    """By element type of what is multiplied, and `tf32`."""
    source: str = ""
    """In the list above; empty for a GPU that is not in it."""
    answers_to: tuple[str, ...] = ()
    """How the driver's name for it may begin."""

    @property
    def is_known(self) -> bool:
        """Whether anything is known of its peaks."""
        return bool(self.source)

    def flops_per_s(self, dtype: str, *, tensor_cores: bool = True) -> float | None:
        """The fastest that products of this type are computed; float32 as it is, and not as tf32. None: unknown."""
        rates = [self.vector_flops_per_s.get(dtype)]
        if tensor_cores:
            rates.append(self.tensor_flops_per_s.get(dtype))
        return max((rate for rate in rates if rate is not None), default=None)

    @property
    def caveat(self) -> str:
        return "" if self.is_known else f"the peaks of {self.label} are not known here: nothing is held against them"


def _gpu(
    name: str, label: str, capability: int, multiprocessors: int, clock: float, memory_gb: float, gb_per_s: float,
    l2_mib: float, vector: dict[str, float], tensor: dict[str, float], source: str, *answers_to: str,
) -> Gpu:  # fmt: skip
    """Rates in TFLOP/s."""
    return Gpu(
        name,
        label,
        CAPABILITIES[capability],
        multiprocessors,
        clock,
        int(memory_gb * 1e9),
        gb_per_s * 1e9,
        int(l2_mib * MIB),
        {dtype: rate * 1e12 for dtype, rate in vector.items()},
        {dtype: rate * 1e12 for dtype, rate in tensor.items()},
        source,
        answers_to,
    )


def _tensor(bf16: float, tf32: float, fp8: float | None, fp64: float | None = None) -> dict[str, float]:
    rates = {"bfloat16": bf16, "float16": bf16, "tf32": tf32}
    if fp8 is not None:
        rates.update(float8_e4m3fn=fp8, float8_e5m2=fp8)
    if fp64 is not None:
        rates["float64"] = fp64
    return rates


_A100 = {"float64": 9.7, "float32": 19.5, "float16": 78.0, "bfloat16": 39.0}
_H100 = _tensor(989.4, 494.7, 1978.9, 66.9)

GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100", "NVIDIA A100 80GB SXM", 80, 108, 1410, 80, 2039, 40, _A100, _tensor(312, 156, None, 19.5),
             "[A100]", "NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", "A100-SXM-80GB"),
        _gpu("a100-40gb", "NVIDIA A100 40GB SXM", 80, 108, 1410, 40, 1555, 40, _A100, _tensor(312, 156, None, 19.5),
             "[A100]", "NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        _gpu("a100-pcie", "NVIDIA A100 80GB PCIe", 80, 108, 1410, 80, 1935, 40, _A100, _tensor(312, 156, None, 19.5),
             "[A100]", "NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        _gpu("h100", "NVIDIA H100 SXM", 90, 132, 1980, 80, 3350, 50, {"float64": 33.5, "float32": 66.9}, _H100,
             "[H100]", "NVIDIA H100 80GB HBM3"),
        _gpu("h100-pcie", "NVIDIA H100 PCIe", 90, 114, 1755, 80, 2000, 50, {"float64": 25.6, "float32": 51.2},
             _tensor(756.5, 378.0, 1513.0, 51.2), "[H100]", "NVIDIA H100 PCIe"),
        _gpu("h200", "NVIDIA H200 SXM", 90, 132, 1980, 141, 4800, 50, {"float64": 33.5, "float32": 66.9}, _H100,
             "[H200]", "NVIDIA H200"),
        _gpu("l4", "NVIDIA L4", 89, 58, 2040, 24, 300, 48, {"float32": 30.3}, _tensor(121.0, 60.0, 242.5), "[L4]",
             "NVIDIA L4"),
        _gpu("l40s", "NVIDIA L40S", 89, 142, 2520, 48, 864, 96, {"float32": 91.6}, _tensor(362.05, 183.0, 733.0),
             "[L40S]", "NVIDIA L40S"),
        _gpu("b200", "NVIDIA B200", 100, 148, 1965, 180, 7700, 126, {"float64": 37.0, "float32": 75.0},
             _tensor(2250.0, 1125.0, 4500.0, 37.0), "[B200]", "NVIDIA B200"),
        _gpu("rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 2520, 24, 1008, 72, {"float32": 82.6, "float16": 82.6},
             _tensor(165.2, 82.6, 330.3), "[4090]", "NVIDIA GeForce RTX 4090"),
    )
}  # fmt: skip

DEFAULT = "h100"
"""What is compiled for where there is no GPU and nobody names one."""


def gpu_of_device(
    label: str, capability: int, multiprocessors: int, clock_mhz: float, memory_bytes: int, l2_bytes: int
) -> Gpu:
    """A device by what its driver says of it: one of the list, or one without peaks. Longer names first: an
    `NVIDIA L40S` is no `NVIDIA L4`. Raises KeyError for a compute capability that is not known."""
    matching = [
        (len(begin), gpu)
        for gpu in GPUS.values()
        for begin in gpu.answers_to
        if label == begin or label.startswith(f"{begin} ")
    ]
    for _, gpu in sorted(matching, key=lambda pair: -pair[0]):
        if gpu.capability.number == capability and gpu.multiprocessors == multiprocessors:
            return gpu
    name = "".join(letter if letter.isalnum() else "-" for letter in label.lower()).strip("-") or "gpu"
    return Gpu(name, label, CAPABILITIES[capability], multiprocessors, clock_mhz, memory_bytes, None, l2_bytes)
