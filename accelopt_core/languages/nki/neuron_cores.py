"""NeuronCores as the judge sees them: peak rates, bounds, and gaps in microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from accelopt_core.evaluation import Bounds, Gap
from accelopt_core.languages.nki.gaps import gaps_for
from accelopt_core.task import PrecisionPolicy, Work
from accelopt_core.toolchain import Facts
from nki_sim.machine import Machine


@dataclass(frozen=True)
class NeuronCores:
    """One core of a machine, or several of them: their rates add up, and what each does by itself passes in a share of
    the time."""

    core: Machine
    """Each of its numbers has its source there."""
    cores: int = 1

    @property
    def name(self) -> str:
        return self.core.name if self.cores == 1 else f"{self.cores} cores of {self.core.name}"

    @cached_property
    def matmul_bf16_flops_per_ns(self) -> float:
        return self.cores * self.core.matmul_bf16_flops_per_ns

    @property
    def tensor_fp32_transpose_passes(self) -> int:
        return self.core.tensor_fp32_transpose_passes

    @property
    def activation_table_load_ns(self) -> float:
        return self.core.activation_table_load_ns / self.cores

    @cached_property
    def dma_bytes_per_ns(self) -> float:
        """All DMA engines together."""
        return self.cores * self.core.dma_bytes_per_ns

    @property
    def dma_latency_ns(self) -> float:
        return self.core.dma_latency_ns

    @property
    def cold_start_ns(self) -> float:
        return self.core.cold_start_ns

    @property
    def dma_plain_issue_ns(self) -> float:
        return self.core.dma_plain_issue_ns / self.cores

    @property
    def memory_bytes_per_ns(self) -> float:
        return self.dma_bytes_per_ns

    @property
    def fastest_flops_per_ns(self) -> float:
        """Those of bfloat16; fp8 is faster only where a task allows it."""
        return self.matmul_bf16_flops_per_ns

    def matmul_flops_per_ns(self, precision: PrecisionPolicy) -> float:
        """GFLOP/s: float32, bfloat16, or fp8 where the core has it at twice that rate."""
        if precision is PrecisionPolicy.FLOAT32_FAITHFUL:
            return self.cores * self.core.matmul_fp32_flops_per_ns
        if precision is PrecisionPolicy.FP8_ALLOWED and self.core.tensor_double_row:
            return 2 * self.matmul_bf16_flops_per_ns
        return self.matmul_bf16_flops_per_ns

    def bounds(self, work: Work, precision: PrecisionPolicy, declared: bool = True) -> Bounds:
        """NKIBench's t_peak: each kind of work at its own peak rate."""
        return Bounds(
            work.matmul_flops / self.matmul_flops_per_ns(precision) / 1e3,
            work.vector_ops / (self.cores * self.core.vector_pool_ops_per_ns) / 1e3,
            work.hbm_bytes / self.memory_bytes_per_ns / 1e3,
            "declared" if declared else "trace",
        )

    def gaps(self, facts: Facts, bounds: Bounds, latency_us: float) -> tuple[Gap, ...]:
        return gaps_for(facts, bounds, latency_us, self)

    def of_cores(self, cores: int) -> NeuronCores:
        return NeuronCores(self.core, cores)
