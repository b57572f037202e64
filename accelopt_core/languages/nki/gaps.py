"""What separates a measured NKI kernel from the fastest that its machine could be, priced in microseconds.

Everything is computed from the profiler's named fields, so a simulated and a real profile are judged alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import fsum
from typing import Protocol

from accelopt_core.evaluation import Bounds, Gap
from accelopt_core.toolchain import Facts

_WORTH_NAMING = 0.002
"""Gaps below this fraction of the latency are left out."""


class Cause(str, Enum):
    """Why time is lost; a gap's name begins with its cause."""

    START_UP = "start-up before the busiest engine"
    TAIL = "tail after the busiest engine"
    WAITING = "engines wait for each other"
    HBM_TRAFFIC = "HBM traffic beyond the minimum"
    DMA_BANDWIDTH = "DMA below its bandwidth"
    DMA_ISSUING = "issuing transfers"
    ELEMENTWISE = "elementwise work on"
    TABLE_SWITCHES = "activation table switches"
    TRANSPOSES = "transposes on the Tensor engine"
    THROTTLED = "Tensor engine throttled"
    MATMUL = "matmul inefficiency"


def cause_of(gap: Gap) -> Cause | None:
    """None of a gap of another release, which named its causes otherwise."""
    return next((cause for cause in Cause if gap.name.startswith(cause.value)), None)


class Rates(Protocol):
    """What prices rest on, of one NeuronCore or of several together. `nki_sim.machine.Machine` has them, each with its
    source."""

    @property
    def matmul_bf16_flops_per_ns(self) -> float: ...

    @property
    def tensor_fp32_transpose_passes(self) -> int: ...

    @property
    def activation_table_load_ns(self) -> float: ...

    @property
    def dma_bytes_per_ns(self) -> float:
        """All DMA engines together."""
        ...

    @property
    def dma_plain_issue_ns(self) -> float:
        """Between two transfers of whole tiles that name no queue."""
        ...

    @property
    def dma_latency_ns(self) -> float:
        """From a transfer's issue to what it moved being usable, beside its bytes."""
        ...

    @property
    def cold_start_ns(self) -> float:
        """What a cold Tensor engine loses at least."""
        ...


def gaps_for(facts: Facts, bound: Bounds, latency_us: float, machine: Rates) -> tuple[Gap, ...]:
    """What could be gained, largest first. A field the profiler did not report closes the gaps that need it.

    A gap's price is what removing it alone would take off the latency: all of it on the busiest resource,
    and on the others the share that is not hidden behind the busiest one.
    """
    fields = facts.fields
    spent = _spent_us(fields, machine)
    if not spent:
        return ()
    gaps = []
    pipeline = max(spent.values())
    busiest = max(spent, key=lambda name: spent[name])
    idle = latency_us - pipeline
    if idle > 0:
        gaps += _idle_gaps(fields, busiest, pipeline, latency_us, machine)
    others = fsum(spent.values()) - pipeline
    exposed = min(1.0, max(0.0, idle / others)) if others > 0 else 0.0

    def price(resource: str, removable_us: float) -> float:
        after = max([us for name, us in spent.items() if name != resource] + [spent[resource] - removable_us])
        return max(pipeline - after, removable_us * exposed)

    for each in _inefficiencies(fields, spent, bound, machine):
        if each.resource in spent and each.removable_us > 0:
            removable_us = min(each.removable_us, spent[each.resource])
            gaps.append(Gap(each.name, price(each.resource, removable_us), each.remedy, each.evidence))
    worth = [gap for gap in gaps if gap.cost_us > _WORTH_NAMING * latency_us]
    return tuple(sorted(worth, key=lambda gap: -gap.cost_us))


def _idle_gaps(
    fields: Mapping[str, float], busiest: str, pipeline: float, latency_us: float, machine: Rates
) -> list[Gap]:
    """Where the busiest resource does nothing: before its first instruction, after its last, and in between.

    An engine waits for the first load, and the kernel for the last store; how long such a transfer takes beside its
    bytes cannot go, and is not in the price.
    """
    begin, end = fields.get(f"{busiest}_begin_time"), fields.get(f"{busiest}_end_time")
    start_us = 0.0 if begin is None else max(0.0, begin * 1e6)
    tail_us = 0.0 if end is None else max(0.0, latency_us - end * 1e6)
    stays_us = 0.0 if busiest == "dma" else machine.dma_latency_ns / 1e3
    stays = f", {stays_us:,.1f} of it a transfer's own latency" if stays_us else ""
    return [
        Gap(
            Cause.START_UP.value,
            max(0.0, start_us - stays_us),
            "issue first what the first instruction needs, in small pieces on more than one queue; put off all else",
            f"the busiest, {busiest}, begins after {start_us:,.1f} µs{stays}",
        ),
        Gap(
            Cause.TAIL.value,
            max(0.0, tail_us - stays_us),
            "make the last piece of work small: copy and store it in parts, on two engines and queues",
            f"the busiest, {busiest}, ends {tail_us:,.1f} µs before the kernel does{stays}",
        ),
        Gap(
            Cause.WAITING.value,
            latency_us - pipeline - start_us - tail_us,
            "overlap: double-buffer tiles, hoist or split loads, fewer dependent steps between engines",
            f"the busiest, {busiest}, works {pipeline:,.1f} of {latency_us:,.1f} µs",
        ),
    ]


def _spent_us(fields: Mapping[str, float], machine: Rates) -> dict[str, float]:
    """Time each resource works, as far as the profile says."""
    spent = {}
    for engine in ("tensor", "vector", "scalar", "gpsimd"):
        active = fields.get(f"{engine}_engine_active_time")
        if active is not None:
            spent[engine] = active * 1e6
    hbm = _hbm_bytes(fields)
    if hbm is not None:
        spent["dma"] = hbm / machine.dma_bytes_per_ns / 1e3
        if "dma_active_time" in fields:
            spent["dma"] = max(spent["dma"], fields["dma_active_time"] * 1e6)
    return spent


def _hbm_bytes(fields: Mapping[str, float]) -> float | None:
    if "hbm_read_bytes" not in fields or "hbm_write_bytes" not in fields:
        return None
    return fields["hbm_read_bytes"] + fields["hbm_write_bytes"]


@dataclass(frozen=True)
class _Inefficiency:
    """Time that one resource spends and that a perfect kernel would not."""

    name: str
    resource: str
    """An engine, or `dma`."""
    removable_us: float
    remedy: str
    evidence: str


def _inefficiencies(
    fields: Mapping[str, float], spent: Mapping[str, float], bound: Bounds, machine: Rates
) -> list[_Inefficiency]:
    found = []
    hbm = _hbm_bytes(fields)
    if hbm is not None:
        at_peak_us = hbm / machine.dma_bytes_per_ns / 1e3
        found.append(
            _Inefficiency(
                Cause.HBM_TRAFFIC.value,
                "dma",
                at_peak_us - bound.memory_us,
                "keep operands in SBUF: block the loops, hoist loads that do not depend on the inner loop, "
                "fuse passes over the same data",
                f"{hbm / 1e6:,.1f} MB moved, {bound.memory_us * machine.dma_bytes_per_ns / 1e3:,.1f} MB needed",
            )
        )
        transfers = fields.get("dma_transfer_count")
        average = f", {fields['dma_transfer_average_bytes'] / 1024:,.1f} KiB each" if transfers else ""
        found.append(
            _Inefficiency(
                Cause.DMA_BANDWIDTH.value,
                "dma",
                spent["dma"] - at_peak_us,
                "fewer and larger transfers with rows of 2 KiB or more per partition, over all 128 partitions, "
                "on more than one queue",
                f"{hbm / 1e3 / spent['dma'] if spent['dma'] else 0.0:,.0f} GB/s while active, "
                f"{machine.dma_bytes_per_ns:,.0f} possible{average}",
            )
        )
        if transfers:
            issue_us = transfers * machine.dma_plain_issue_ns / 1e3
            found.append(
                _Inefficiency(
                    Cause.DMA_ISSUING.value,
                    "dma",
                    min(issue_us, spent["dma"]) - at_peak_us,
                    "load several tiles with one dma_copy; spread transfers over the Sync, Scalar and GpSimd queues",
                    f"{transfers:,.0f} transfers, {machine.dma_plain_issue_ns / 1e3:.2f} µs apart on one queue",
                )
            )
    if "tensor" in spent:
        found.extend(_tensor_inefficiencies(fields, spent["tensor"], bound, machine))
    pool = {name: spent[name] for name in ("vector", "scalar", "gpsimd") if spent.get(name)}
    if pool:
        engine = max(pool, key=lambda name: pool[name])
        count = fields.get(f"{engine}_engine_instruction_count")
        each = f" in {count:,.0f} instructions" if count else ""
        found.append(
            _Inefficiency(
                f"{Cause.ELEMENTWISE.value} {engine}",
                engine,
                pool[engine] - bound.vector_us,
                "fuse operators into one instruction, use wider tiles, move work to the idler of Vector, Scalar "
                "and GpSimd, read PSUM directly instead of copying it first",
                f"{engine} works {pool[engine]:,.1f} µs{each}, {bound.vector_us:,.1f} µs for the reference's operators",
            )
        )
    loads = fields.get("activation_table_load_count")
    if loads and loads > 1:
        found.append(
            _Inefficiency(
                Cause.TABLE_SWITCHES.value,
                "scalar",
                (loads - 1) * machine.activation_table_load_ns / 1e3,
                "group activations by function, or move one of the functions to another engine",
                f"{loads:,.0f} loads of {machine.activation_table_load_ns / 1e3:.2f} µs",
            )
        )
    return found


def _tensor_inefficiencies(
    fields: Mapping[str, float], tensor_us: float, bound: Bounds, machine: Rates
) -> list[_Inefficiency]:
    found = []
    transposes = fields.get("transpose_flops", 0.0)
    transpose_us = (
        transposes / machine.matmul_bf16_flops_per_ns * machine.tensor_fp32_transpose_passes / 1e3
        if transposes
        else 0.0
    )
    if transposes:
        found.append(
            _Inefficiency(
                Cause.TRANSPOSES.value,
                "tensor",
                transpose_us,
                "transpose once and keep the turned copy, choose which operand is stationary, or (2-byte types) load "
                "with dma_transpose",
                f"{transposes / 1e9:,.2f} of {fields.get('hardware_flops', transposes) / 1e9:,.2f} GFLOP transpose",
            )
        )
    throttled_us = fields.get("throttle_time", 0.0) * 1e6
    won_us = throttled_us - machine.cold_start_ns / 1e3
    if won_us > 0:
        found.append(
            _Inefficiency(
                Cause.THROTTLED.value,
                "tensor",
                won_us,
                "group matmuls into long uninterrupted runs: below 50 % use the engine drops to half speed",
                f"{throttled_us:,.1f} µs lost, {throttled_us - won_us:,.1f} of it in any case",
            )
        )
    found.append(
        _Inefficiency(
            Cause.MATMUL.value,
            "tensor",
            tensor_us - transpose_us - throttled_us - bound.matmul_us,
            "512-column moving tiles, 128 rows of contraction, 128 stationary columns; no repeated products",
            f"Tensor works {tensor_us:,.1f} µs, {bound.matmul_us:,.1f} µs for the reference's operators",
        )
    )
    return found
