"""How fast the machine could be, and what separates a measured kernel from that, priced in microseconds.

Everything is computed from the profiler's named fields, so a simulated and a real profile are judged alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from accelopt_core.evaluation import Bounds, Cause, Gap
from accelopt_core.task import PrecisionPolicy, Task, Work
from accelopt_core.toolchain import Facts, MachineModel

_WORTH_NAMING = 0.002
"""Gaps below this fraction of the latency are left out."""


def bounds(work: Work, machine: MachineModel, precision: PrecisionPolicy, source_is_declared: bool = True) -> Bounds:
    """NKIBench's t_peak: each kind of work at its own peak rate, on one core.

    Matrix products run at the fastest rate that the precision policy permits.
    """
    return Bounds(
        work.matmul_flops / matmul_rate(machine, precision) / 1e3,
        work.vector_ops / machine.vector_pool_ops_per_ns / 1e3,
        work.hbm_bytes / machine.dma_bytes_per_ns / 1e3,
        "declared" if source_is_declared else "trace",
    )


def matmul_rate(machine: MachineModel, precision: PrecisionPolicy) -> float:
    """FLOPs per ns (GFLOP/s): float32, bfloat16, or fp8 where the core has it."""
    if precision is PrecisionPolicy.FLOAT32_FAITHFUL:
        return machine.matmul_fp32_flops_per_ns
    if precision is PrecisionPolicy.FP8_ALLOWED and machine.tensor_double_row:
        return 2 * machine.matmul_bf16_flops_per_ns
    return machine.matmul_bf16_flops_per_ns


def bounds_for(task: Task, facts: Facts, machine: MachineModel) -> Bounds:
    """From the work the task declares for its full shape, else from what this kernel was counted to do.

    Raises ValueError when neither is known.
    """
    declared = task.full.work
    if declared is not None:
        return bounds(declared, machine, task.precision)
    if facts.matmul_flops is None or facts.vector_ops is None or not facts.hbm_bytes:
        raise ValueError(
            f"task {task.name} declares no work for {task.full.name} and the profile counts none: "
            "add matmul_flops, vector_ops and hbm_bytes to the shape preset"
        )
    counted = Work(facts.matmul_flops, facts.vector_ops, facts.hbm_bytes)
    return bounds(counted, machine, task.precision, source_is_declared=False)


# --- gaps -----------------------------------------------------------------------------------------


def gaps_for(facts: Facts, bound: Bounds, latency_us: float, machine: MachineModel) -> tuple[Gap, ...]:
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
    fields: Mapping[str, float], busiest: str, pipeline: float, latency_us: float, machine: MachineModel
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


def _spent_us(fields: Mapping[str, float], machine: MachineModel) -> dict[str, float]:
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
    fields: Mapping[str, float], spent: Mapping[str, float], bound: Bounds, machine: MachineModel
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
                f"{engine} works {pool[engine]:,.1f} µs{each}, {bound.vector_us:,.1f} µs is the minimum of the task",
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
    fields: Mapping[str, float], tensor_us: float, bound: Bounds, machine: MachineModel
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
    if throttled_us:
        found.append(
            _Inefficiency(
                Cause.THROTTLED.value,
                "tensor",
                throttled_us,
                "group matmuls into long uninterrupted runs: below 50 % use the engine drops to half speed",
                f"{throttled_us:,.1f} µs lost",
            )
        )
    found.append(
        _Inefficiency(
            Cause.MATMUL.value,
            "tensor",
            tensor_us - transpose_us - throttled_us - bound.matmul_us,
            "512-column moving tiles, 128 rows of contraction, 128 stationary columns; no repeated products",
            f"Tensor works {tensor_us:,.1f} µs, {bound.matmul_us:,.1f} µs is the minimum of the task",
        )
    )
    return found
