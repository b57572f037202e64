"""How fast the machine could be, and what separates a measured kernel from that, priced in microseconds.

Everything is computed from the profiler's named fields, so a simulated and a real profile are judged alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from accelopt_core.candidate import Bottleneck
from accelopt_core.evaluation import Bounds, Gap, Profile
from accelopt_core.task import PrecisionPolicy, Task, Work
from accelopt_core.toolchain import Facts
from nki_sim.cost import cost
from nki_sim.machine import Machine, machine
from nki_sim.profile import useful_work
from nki_sim.program import Program

_WORTH_NAMING = 0.002
"""Gaps below this fraction of the latency are left out."""


def work_from_program(program: Program) -> Work:
    """What a kernel itself computes and moves at least, for a task that declares no work."""
    core = machine(program.machine)
    flops, operations, nbytes = useful_work(program, [cost(template, core) for template in program.templates])
    return Work(flops, operations, nbytes)


def bounds(work: Work, machine_name: str, precision: PrecisionPolicy, source_is_declared: bool = True) -> Bounds:
    """NKIBench's t_peak: each kind of work at its own peak rate, on one core.

    Matrix products run at the fastest rate that the precision policy permits.
    """
    core = machine(machine_name)
    return Bounds(
        work.matmul_flops / matmul_rate(core, precision) / 1e3,
        work.vector_ops / core.vector_pool_ops_per_ns / 1e3,
        work.hbm_bytes / core.dma_bytes_per_ns / 1e3,
        "declared" if source_is_declared else "trace",
    )


def matmul_rate(core: Machine, precision: PrecisionPolicy) -> float:
    """FLOPs per ns (GFLOP/s): float32, bfloat16, or fp8 where the core has it."""
    if precision is PrecisionPolicy.FLOAT32_FAITHFUL:
        return core.matmul_fp32_flops_per_ns
    if precision is PrecisionPolicy.FP8_ALLOWED and core.tensor_double_row:
        return 2 * core.matmul_bf16_flops_per_ns
    return core.matmul_bf16_flops_per_ns


def bounds_for(task: Task, facts: Facts, machine_name: str) -> Bounds:
    """From the work the task declares for its full shape, else from what this kernel was counted to do.

    Raises ValueError when neither is known.
    """
    declared = task.full.work
    if declared is not None:
        return bounds(declared, machine_name, task.precision)
    if facts.matmul_flops is None or facts.vector_ops is None or not facts.hbm_bytes:
        raise ValueError(
            f"task {task.name} declares no work for {task.full.name} and the profile counts none: "
            "add matmul_flops, vector_ops and hbm_bytes to the shape preset"
        )
    counted = Work(facts.matmul_flops, facts.vector_ops, facts.hbm_bytes)
    return bounds(counted, machine_name, task.precision, source_is_declared=False)


@dataclass(frozen=True)
class Limits:
    """What each part of a kernel would take on its own, in µs: how far down each remedy could lead.

    None where the profile does not say.
    """

    memory_as_run: float | None
    """Transfers under way."""
    memory_at_peak_bandwidth: float | None
    """The same bytes at the full DMA rate."""
    memory_without_reloads: float
    """Every input read once, every output written once."""
    compute_as_run: float | None
    """TensorE busy."""
    compute_ideal: float | None
    """The same FLOPs without gaps or throttling, at the rate the precision policy permits."""
    compute_useful: float
    """Without transposes and repeated products."""
    perfect_pipeline: float | None
    """The busiest engine as it is, all else hidden behind it."""


def limits_for(facts: Facts, bound: Bounds, machine_name: str, precision: PrecisionPolicy) -> Limits:
    core = machine(machine_name)
    fields = facts.fields
    spent = _spent_us(fields, core)
    hbm = _hbm_bytes(fields)
    flops = fields.get("hardware_flops")
    return Limits(
        memory_as_run=fields["dma_active_time"] * 1e6 if "dma_active_time" in fields else None,
        memory_at_peak_bandwidth=None if hbm is None else hbm / core.dma_bytes_per_ns / 1e3,
        memory_without_reloads=bound.memory_us,
        compute_as_run=spent.get("tensor"),
        compute_ideal=None if flops is None else flops / matmul_rate(core, precision) / 1e3,
        compute_useful=bound.matmul_us,
        perfect_pipeline=max(spent.values()) if spent else None,
    )


# --- what limits a kernel ---------------------------------------------------------------------------

BUSY = 0.6
"""Share of the time above which an engine, or the DMA, counts as what limits the kernel."""


def bottleneck_of(profile: Profile, latency_us: float) -> Bottleneck:
    """What limits the kernel, from its busiest engine, or from its bounds where there is no profile."""
    shares = busy_shares(profile)
    if shares:
        name, share = max(shares.items(), key=lambda item: item[1])
        if share < BUSY:
            return Bottleneck.UNDERUTILIZED
        return Bottleneck.MEMORY_BOUND if name == "dma" else Bottleneck.COMPUTE_BOUND
    if profile.bounds.peak_us < BUSY * latency_us:
        return Bottleneck.UNDERUTILIZED
    return Bottleneck.MEMORY_BOUND if profile.bounds.limiter == "memory" else Bottleneck.COMPUTE_BOUND


def busy_shares(profile: Profile) -> dict[str, float]:
    """Fraction of the time that each engine and the DMA are busy, as far as the profile says."""
    fields = profile.fields
    total_s = fields.get("total_time", 0.0)
    if not total_s > 0:
        return {}
    names = {engine: f"{engine}_engine_active_time" for engine in ("tensor", "vector", "scalar", "gpsimd")}
    names["dma"] = "dma_active_time"
    return {engine: fields[name] / total_s for engine, name in names.items() if name in fields}


# --- gaps -----------------------------------------------------------------------------------------


def gaps_for(facts: Facts, bound: Bounds, latency_us: float, machine_name: str) -> tuple[Gap, ...]:
    """What could be gained, largest first. A field the profiler did not report closes the gaps that need it.

    A gap's price is what removing it alone would take off the latency: all of it on the busiest resource,
    and on the others the share that is not hidden behind the busiest one.
    """
    core = machine(machine_name)
    fields = facts.fields
    spent = _spent_us(fields, core)
    if not spent:
        return ()
    gaps = []
    pipeline = max(spent.values())
    busiest = max(spent, key=lambda name: spent[name])
    idle = latency_us - pipeline
    if idle > 0:
        gaps += _idle_gaps(fields, busiest, pipeline, latency_us)
    others = fsum(spent.values()) - pipeline
    exposed = min(1.0, max(0.0, idle / others)) if others > 0 else 0.0

    def price(resource: str, removable_us: float) -> float:
        after = max([us for name, us in spent.items() if name != resource] + [spent[resource] - removable_us])
        return max(pipeline - after, removable_us * exposed)

    for name, resource, removable_us, remedy, evidence in _inefficiencies(fields, spent, bound, core):
        if resource in spent and removable_us > 0:
            gaps.append(Gap(name, price(resource, min(removable_us, spent[resource])), remedy, evidence))
    worth = [gap for gap in gaps if gap.cost_us > _WORTH_NAMING * latency_us]
    return tuple(sorted(worth, key=lambda gap: -gap.cost_us))


def _idle_gaps(fields: Mapping[str, float], busiest: str, pipeline: float, latency_us: float) -> list[Gap]:
    """Where the busiest resource does nothing: before its first instruction, after its last, and in between."""
    begin, end = fields.get(f"{busiest}_begin_time"), fields.get(f"{busiest}_end_time")
    start_us = 0.0 if begin is None else max(0.0, begin * 1e6)
    tail_us = 0.0 if end is None else max(0.0, latency_us - end * 1e6)
    return [
        Gap(
            "start-up before the busiest engine",
            start_us,
            "issue first what the first instruction needs, in small pieces on more than one queue; put off all else",
            f"the busiest, {busiest}, begins after {start_us:,.1f} µs",
        ),
        Gap(
            "tail after the busiest engine",
            tail_us,
            "make the last piece of work small: copy and store it in parts, on two engines and queues",
            f"the busiest, {busiest}, ends {tail_us:,.1f} µs before the kernel does",
        ),
        Gap(
            "engines wait for each other",
            latency_us - pipeline - start_us - tail_us,
            "overlap: double-buffer tiles, hoist or split loads, fewer dependent steps between engines",
            f"the busiest, {busiest}, works {pipeline:,.1f} of {latency_us:,.1f} µs",
        ),
    ]


def _spent_us(fields: Mapping[str, float], core: Machine) -> dict[str, float]:
    """Time each resource works, as far as the profile says."""
    spent = {}
    for engine in ("tensor", "vector", "scalar", "gpsimd"):
        active = fields.get(f"{engine}_engine_active_time")
        if active is not None:
            spent[engine] = active * 1e6
    hbm = _hbm_bytes(fields)
    if hbm is not None:
        spent["dma"] = hbm / core.dma_bytes_per_ns / 1e3
        if "dma_active_time" in fields:
            spent["dma"] = max(spent["dma"], fields["dma_active_time"] * 1e6)
    return spent


def _hbm_bytes(fields: Mapping[str, float]) -> float | None:
    if "hbm_read_bytes" not in fields or "hbm_write_bytes" not in fields:
        return None
    return fields["hbm_read_bytes"] + fields["hbm_write_bytes"]


def _inefficiencies(
    fields: Mapping[str, float], spent: Mapping[str, float], bound: Bounds, core: Machine
) -> list[tuple[str, str, float, str, str]]:
    """(name, resource, µs that a perfect kernel would not spend on it, remedy, evidence)."""
    found = []
    hbm = _hbm_bytes(fields)
    if hbm is not None:
        at_peak_us = hbm / core.dma_bytes_per_ns / 1e3
        found.append(
            (
                "HBM traffic beyond the minimum",
                "dma",
                at_peak_us - bound.memory_us,
                "keep operands in SBUF: block the loops, hoist loads that do not depend on the inner loop, "
                "fuse passes over the same data",
                f"{hbm / 1e6:,.1f} MB moved, {bound.memory_us * core.dma_bytes_per_ns / 1e3:,.1f} MB needed",
            )
        )
        transfers = fields.get("dma_transfer_count")
        average = f", {fields['dma_transfer_average_bytes'] / 1024:,.1f} KiB each" if transfers else ""
        found.append(
            (
                "DMA below its bandwidth",
                "dma",
                spent["dma"] - at_peak_us,
                "fewer and larger transfers with rows of 2 KiB or more per partition, over all 128 partitions, "
                "on more than one queue",
                f"{hbm / 1e3 / spent['dma'] if spent['dma'] else 0.0:,.0f} GB/s while active, "
                f"{core.dma_bytes_per_ns:,.0f} possible{average}",
            )
        )
        if transfers:
            issue_us = transfers * core.dma_hardware_issue_ns / 1e3
            found.append(
                (
                    "issuing transfers",
                    "dma",
                    min(issue_us, spent["dma"]) - at_peak_us,
                    "load several tiles with one dma_copy; spread transfers over the Sync, Scalar and GpSimd queues",
                    f"{transfers:,.0f} transfers, {core.dma_hardware_issue_ns / 1e3:.2f} µs apart on one queue",
                )
            )
    if "tensor" in spent:
        found.extend(_tensor_inefficiencies(fields, spent["tensor"], bound, core))
    pool = {name: spent[name] for name in ("vector", "scalar", "gpsimd") if spent.get(name)}
    if pool:
        engine = max(pool, key=lambda name: pool[name])
        count = fields.get(f"{engine}_engine_instruction_count")
        each = f" in {count:,.0f} instructions" if count else ""
        found.append(
            (
                f"elementwise work on {engine}",
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
            (
                "activation table switches",
                "scalar",
                (loads - 1) * core.activation_table_load_ns / 1e3,
                "group activations by function, or move one of the functions to another engine",
                f"{loads:,.0f} loads of {core.activation_table_load_ns / 1e3:.2f} µs",
            )
        )
    return found


def _tensor_inefficiencies(
    fields: Mapping[str, float], tensor_us: float, bound: Bounds, core: Machine
) -> list[tuple[str, str, float, str, str]]:
    found = []
    transposes = fields.get("transpose_flops", 0.0)
    transpose_us = (
        transposes / core.matmul_bf16_flops_per_ns * core.tensor_fp32_transpose_passes / 1e3 if transposes else 0.0
    )
    if transposes:
        found.append(
            (
                "transposes on the Tensor engine",
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
            (
                "Tensor engine throttled",
                "tensor",
                throttled_us,
                "group matmuls into long uninterrupted runs: below 50 % use the engine drops to half speed",
                f"{throttled_us:,.1f} µs lost",
            )
        )
    found.append(
        (
            "matmul inefficiency",
            "tensor",
            tensor_us - transpose_us - throttled_us - bound.matmul_us,
            "512-column moving tiles, 128 rows of contraction, 128 stationary columns; no repeated products",
            f"Tensor works {tensor_us:,.1f} µs, {bound.matmul_us:,.1f} µs is the minimum of the task",
        )
    )
    return found
