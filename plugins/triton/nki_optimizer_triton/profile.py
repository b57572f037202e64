"""What is known of a launch program without special rights: of its kernels by their code, of its time by events.

Names of a kernel's fields begin with its own: `softmax_kernel.registers_per_thread`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nki_optimizer_triton.artifact import TritonArtifact
from nki_optimizer_triton.language.gpus import Gpu
from nki_optimizer_triton.occupancy import occupancy, waves


def static_fields(artifact: TritonArtifact, gpu: Gpu) -> dict[str, float]:
    """Of each kernel what a block takes, how many blocks fit, and how often the GPU is filled."""
    fields: dict[str, float] = {
        "launches": float(len(artifact.program.launches)),
        "fills": float(len(artifact.program.steps) - len(artifact.program.launches)),
        "io_bytes": float(artifact.io_bytes),
        "allocated_bytes": float(artifact.program.allocated_bytes),
    }
    for launch, kernel in zip(artifact.program.launches, artifact.kernels):
        resources = kernel.resources
        held = occupancy(gpu.capability, kernel.num_warps, resources.registers, kernel.shared_bytes)
        blocks = launch.programs * kernel.num_ctas
        name = launch.function.name
        fields[f"{name}.blocks"] = fields.get(f"{name}.blocks", 0.0) + blocks
        fields[f"{name}.threads_per_block"] = float(kernel.threads)
        fields[f"{name}.registers_per_thread"] = float(resources.registers)
        fields[f"{name}.shared_bytes_per_block"] = float(kernel.shared_bytes)
        fields[f"{name}.local_bytes_per_thread"] = float(resources.stack_bytes)
        fields[f"{name}.code_bytes"] = float(resources.code_bytes)
        fields[f"{name}.resident_blocks_per_multiprocessor"] = float(held.blocks)
        fields[f"{name}.occupancy"] = held.fraction
        fields[f"{name}.waves"] = waves(gpu, blocks, held.blocks)
    return fields


def timed_fields(artifact: TritonArtifact, measured: Mapping[str, Any], latency_us: float) -> dict[str, float]:
    """Of the execution that was timed last."""
    seconds = latency_us * 1e-6
    fields = {
        "total_time": seconds,
        "calls_per_sample": float(measured["calls"]),
        "samples_begun_late": float(measured["begun_late"]),
    }
    if seconds > 0:
        fields["achieved_io_bytes_per_s"] = artifact.io_bytes / seconds
    for name in ("sm_clock_mhz_min", "sm_clock_mhz_max", "temperature_c"):
        if name in measured:
            fields[name] = float(measured[name])
    if "throttled" in measured:
        fields["throttled"] = float(bool(measured["throttled"]))
    return fields
