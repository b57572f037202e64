"""The roofline of a run's kernels: work per byte moved against work per second, beneath the machine's two limits.

Work is useful floating-point operations of matrix products, or elementwise operations where those take the core longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accelopt_core.evaluation import Measured
from accelopt_core.toolchain import Calibration
from nki_sim.timing.calibration import calibrated_machine


class NoRoofline(Exception):
    """Why there is none, in one line."""


@dataclass(frozen=True)
class Roof:
    """A flat limit."""

    name: str
    per_second: float


@dataclass(frozen=True)
class Point:
    name: str
    per_byte: float
    """Operations for each byte that the kernel moves to and from HBM."""
    per_second: float


@dataclass(frozen=True)
class Roofline:
    unit: str
    """What is counted: FLOP, or elementwise operations (op)."""
    roofs: tuple[Roof, ...]
    """The lowest first."""
    bytes_per_second: float
    """Of all DMA engines together."""
    points: tuple[Point, ...]
    """The input first."""
    least_traffic: float | None
    """Operations per byte of a kernel that moves nothing twice; None where that is not known."""


def roofline(
    kernels: Sequence[tuple[str, Measured]], machine_name: str, calibration: Calibration | None = None
) -> Roofline:
    """`kernels`: by name, the input first; all on the machine of that name. Raises NoRoofline."""
    try:
        machine = calibrated_machine(machine_name, calibration)
    except (KeyError, ValueError) as error:
        raise NoRoofline(f"the rates of {machine_name!r} are not known here: {error}") from None
    baseline = kernels[0][1]
    bounds, cores = baseline.profile.bounds, baseline.cores
    products = baseline.profile.fields.get("model_flops", 0.0) > 0 and bounds.matmul_us >= bounds.vector_us
    bytes_per_ns = min(cores * machine.dma_bytes_per_ns, machine.hbm_bytes_per_ns)
    elementwise = bounds.vector_us * 1e3 * machine.vector_pool_ops_per_ns
    """Operations, as the bound counts them."""
    points = []
    for name, result in kernels:
        fields = result.profile.fields
        moved = fields.get("hbm_read_bytes", 0.0) + fields.get("hbm_write_bytes", 0.0)
        work = fields.get("model_flops", 0.0) if products else elementwise
        if not (moved > 0 and work > 0):
            raise NoRoofline(f"the profile of {name} does not say what it {'computes' if moved > 0 else 'moves'}")
        points.append(Point(name, work / moved, work / (result.latency_us / 1e6)))
    least_bytes = bounds.memory_us * 1e3 * machine.dma_bytes_per_ns
    work = baseline.profile.fields["model_flops"] if products else elementwise
    roofs = (
        (Roof("float32", cores * machine.matmul_fp32_flops_per_ns * 1e9),
         Roof("bfloat16", cores * machine.matmul_bf16_flops_per_ns * 1e9))
        if products
        else (Roof("elementwise", cores * machine.vector_pool_ops_per_ns * 1e9),)
    )  # fmt: skip
    return Roofline(
        "FLOP" if products else "op", roofs, bytes_per_ns * 1e9, tuple(points),
        work / least_bytes if least_bytes > 0 else None,
    )  # fmt: skip
