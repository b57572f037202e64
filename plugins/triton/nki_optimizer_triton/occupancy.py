"""How many blocks of a kernel a multiprocessor holds at once, and what keeps it from more.

The arithmetic is that of cuda_occupancy.h in the CUDA toolkit, for compute capability 8.0 and higher and as much shared
memory as a multiprocessor can have (which is what the driver gives a kernel that asks for more than its preference).
"""

from __future__ import annotations

from dataclasses import dataclass

from nki_optimizer_triton.language.gpus import Capability, Gpu


@dataclass(frozen=True)
class Occupancy:
    blocks: int
    """On one multiprocessor at once."""
    warps: int
    limited_by: str
    """`warps`, `blocks`, `registers` or `shared memory`."""
    fraction: float
    """Of the warps that a multiprocessor can hold."""


def occupancy(capability: Capability, warps: int, registers: int, shared_bytes: int) -> Occupancy:
    """`warps` and `shared_bytes` of one block, `registers` of one thread."""
    limits = {
        "blocks": capability.blocks_per_multiprocessor,
        "warps": capability.warps_per_multiprocessor // warps,
        "registers": _by_registers(capability, warps, registers),
        "shared memory": _by_shared_memory(capability, shared_bytes),
    }
    limited_by = min(limits, key=lambda name: limits[name])
    blocks = limits[limited_by]
    return Occupancy(blocks, blocks * warps, limited_by, blocks * warps / capability.warps_per_multiprocessor)


def waves(gpu: Gpu, blocks: int, resident: int) -> float:
    """How often all multiprocessors have to be filled to come through a grid; 0 where no block fits."""
    return blocks / (gpu.multiprocessors * resident) if resident else 0.0


def _by_registers(capability: Capability, warps: int, registers: int) -> int:
    each = _up(32 * registers, capability.register_granularity)
    if not each:
        return capability.blocks_per_multiprocessor
    in_partition = capability.registers_per_multiprocessor // capability.partitions // each
    return in_partition * capability.partitions // warps


def _by_shared_memory(capability: Capability, shared_bytes: int) -> int:
    each = _up(shared_bytes + capability.reserved_shared_bytes, capability.shared_granularity)
    return capability.shared_bytes_per_multiprocessor // each


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
