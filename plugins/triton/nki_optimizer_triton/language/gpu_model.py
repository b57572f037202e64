"""A GPU as the judge sees it: peak rates, bounds, and the one gap that can be priced without counters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accelopt_core.evaluation import Bounds, Gap
from accelopt_core.task import PrecisionPolicy, Work
from accelopt_core.toolchain import Facts
from nki_optimizer_triton.language.gpus import Gpu

_NARROW = ("bfloat16", "float16")
_NARROWEST = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class GpuModel:
    """Of a GPU whose peaks are not known every rate is infinite: every bound is 0, and nothing is held against it."""

    gpu: Gpu

    @property
    def name(self) -> str:
        return self.gpu.name

    @property
    def memory_bytes_per_ns(self) -> float:
        rate = self.gpu.memory_bytes_per_s
        return math.inf if rate is None else rate / 1e9

    @property
    def fastest_flops_per_ns(self) -> float:
        """Those of 16-bit types; 8-bit ones are faster only where a task allows them."""
        return self._fastest(*_NARROW)

    def matmul_flops_per_ns(self, precision: PrecisionPolicy) -> float:
        """float32 on the ordinary cores (tf32 rounds its operands and is no float32), else tensor cores."""
        if precision is PrecisionPolicy.FLOAT32_FAITHFUL:
            return self._fastest("float32")
        if precision is PrecisionPolicy.FP8_ALLOWED:
            return self._fastest(*_NARROW, *_NARROWEST)
        return self._fastest(*_NARROW)

    def bounds(self, work: Work, precision: PrecisionPolicy, declared: bool = True) -> Bounds:
        """`vector`: one operation at a time, half of float32's rate, which counts a product and a sum."""
        return Bounds(
            work.matmul_flops / self.matmul_flops_per_ns(precision) / 1e3,
            work.vector_ops / (self._fastest("float32") / 2) / 1e3,
            work.hbm_bytes / self.memory_bytes_per_ns / 1e3,
            "declared" if declared else "trace",
        )

    def gaps(self, facts: Facts, bounds: Bounds, latency_us: float) -> tuple[Gap, ...]:
        """What lies above the bound, as one: how it divides, only counters could tell."""
        above_us = latency_us - bounds.floor_us
        if not self.gpu.is_known or not bounds.floor_us > 0 or above_us <= 0:
            return ()
        shares = f"{100 * bounds.memory_us / latency_us:.0f} % of the memory's rate"
        if bounds.matmul_us:
            shares += f", {100 * bounds.matmul_us / latency_us:.0f} % of the products'"
        launches = facts.fields.get("launches")
        if launches is not None and launches > 1:
            shares += f", in {launches:.0f} launches"
        return (
            Gap(
                "time above the bound",
                above_us,
                "memory bound: fewer passes over the same data, wider and coalesced accesses, fewer launches; compute "
                "bound: larger tiles, tensor cores as far as the precision policy permits, more stages",
                f"{bounds.limiter} alone needs {bounds.floor_us:,.1f} of {latency_us:,.1f} µs: {shares}",
            ),
        )

    def of_cores(self, cores: int) -> GpuModel:
        """A kernel runs on one."""
        if cores != 1:
            raise ValueError(f"a Triton kernel runs on one GPU, not on {cores}")
        return self

    def _fastest(self, *dtypes: str) -> float:
        rates = [rate for dtype in dtypes if (rate := self.gpu.flops_per_s(dtype)) is not None]
        return max(rates) / 1e9 if rates else math.inf
