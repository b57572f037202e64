"""What a candidate may ask about the GPU that its kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuFacts:
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    triton_version: str
    """Of the Triton that compiles."""
