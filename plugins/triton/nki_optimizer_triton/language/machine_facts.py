"""The numbers of one GPU that prompts teach with. They come from `gpus.py`, where each has its source."""

from __future__ import annotations

from dataclasses import dataclass

from nki_optimizer_triton.language.gpus import KIB, MIB, Gpu


@dataclass(frozen=True)
class GpuFacts:
    name: str
    capability: str = ""
    """E.g. `9.0`; empty for a GPU that is not in the table, of which all that follows is not known."""
    multiprocessors: int = 0
    clock_ghz: float = 0.0
    memory_gb: float = 0.0
    memory_gb_per_s: float | None = None
    """None where it is not known, as in the rates below."""
    l2_mib: float = 0.0
    shared_kib: int = 0
    """Per multiprocessor."""
    shared_kib_per_block: int = 0
    """That one program instance may use at most."""
    registers: int = 0
    """Of 32 bits, per multiprocessor."""
    registers_per_thread: int = 0
    warps: int = 0
    """Resident at once, per multiprocessor."""
    blocks: int = 0
    """Likewise."""
    tflops: tuple[tuple[str, float], ...] = ()
    """(element type and unit, dense rate), the slowest first."""


def gpu_facts(gpu: Gpu) -> GpuFacts:
    has = gpu.capability
    rates = [(f"{dtype}, ordinary cores", rate) for dtype, rate in gpu.vector_flops_per_s.items()]
    rates += [(f"{dtype}, tensor cores", rate) for dtype, rate in gpu.tensor_flops_per_s.items()]
    return GpuFacts(
        name=gpu.label,
        capability=f"{has.number // 10}.{has.number % 10}",
        multiprocessors=gpu.multiprocessors,
        clock_ghz=round(gpu.clock_mhz / 1e3, 2),
        memory_gb=round(gpu.memory_bytes / 1e9),
        memory_gb_per_s=None if gpu.memory_bytes_per_s is None else round(gpu.memory_bytes_per_s / 1e9),
        l2_mib=round(gpu.l2_bytes / MIB),
        shared_kib=has.shared_bytes_per_multiprocessor // KIB,
        shared_kib_per_block=has.shared_bytes_per_block // KIB,
        registers=has.registers_per_multiprocessor,
        registers_per_thread=has.registers_per_thread,
        warps=has.warps_per_multiprocessor,
        blocks=has.blocks_per_multiprocessor,
        tflops=tuple(sorted(((what, round(rate / 1e12, 1)) for what, rate in rates), key=lambda pair: pair[1])),
    )
