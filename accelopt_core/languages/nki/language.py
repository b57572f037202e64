"""NKI as the rest of the program asks for a language."""

from __future__ import annotations

from dataclasses import dataclass

from accelopt_core.language import Finding
from accelopt_core.languages.nki import static_checks
from accelopt_core.languages.nki.operators import kernel_operators
from accelopt_core.task import ENTRY_POINTS
from nki_sim.machine import DEFAULT_MACHINE, MACHINES
from nki_sim.migrate.command import kernels_of


@dataclass(frozen=True)
class Nki:
    key: str = "nki"
    name: str = "NKI"
    core: str = "NeuronCore"
    several_cores: str = "kernel[{cores}]"
    machines: tuple[str, ...] = (DEFAULT_MACHINE, *(name for name in MACHINES if name != DEFAULT_MACHINE))
    packages: frozenset[str] = frozenset({"nki", "neuronxcc"})
    entry_points: tuple[str, ...] = ENTRY_POINTS
    marked: str = "that nki.jit decorates"

    def kernels(self, source: str) -> list[str]:
        return kernels_of(source)

    def peaks(self, machine: str) -> str:
        core = MACHINES.get(machine)
        if core is None:
            return ""
        return (
            f"one core's peak: {core.matmul_fp32_flops_per_ns / 1e3:,.2f} TFLOPS of float32 products, "
            f"{core.vector_pool_ops_per_ns:,.0f} Gop/s elementwise, {core.dma_bytes_per_ns:,.0f} GB/s of DMA"
        )

    def forbidden(self, source: str, neighbours: frozenset[str] = frozenset()) -> list[Finding]:
        return static_checks.forbidden(source, neighbours)

    def notes(self, source: str) -> list[Finding]:
        return static_checks.dialect(source)

    def operators(self, source: str) -> tuple[str, ...]:
        return kernel_operators(source)


NKI = Nki()
