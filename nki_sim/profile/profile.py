"""A timeline as the Neuron profiler would summarise it, and where the time goes, line by line.

`measure(program)` is the one call most users need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nki_sim.machine import Machine, machine
from nki_sim.profile.waiting import ENGINES, Idle, Stall, longest_idle, resource_numbers, stalls
from nki_sim.program.passes import Passes, unrolled
from nki_sim.program.program import Program
from nki_sim.timing.compiler.spills import Spill
from nki_sim.timing.contested import contested
from nki_sim.timing.cost import Cost
from nki_sim.timing.intervals import Interval, interval
from nki_sim.timing.joint import schedule_jointly
from nki_sim.timing.schedule import Timeline, schedule


@dataclass(frozen=True)
class LineCost:
    """What one source line keeps its busiest engine (or `dma`) occupied with."""

    line: int
    engine: str
    active_us: float
    instructions: int


@dataclass(frozen=True)
class Measurement:
    """A simulated run. `latency_us` is the scheduled time, the one to compare kernels by."""

    latency_us: float
    resource_bound_us: float
    fields: dict[str, float]
    """Names and units of the Neuron profiler's summary: seconds, bytes, fractions of 1 (also where the name
    says percent). `latency` is NKIBench's, in ms. Of our own, in seconds: `<engine>_begin_time`, `<engine>_end_time`,
    `<engine>_wait_for_<other>_time`."""
    lines: tuple[LineCost, ...]
    """Most expensive first."""
    stalls: tuple[Stall, ...]
    """Longest first."""
    idle: tuple[Idle, ...]
    """The longest, in the order of time."""
    machine: str
    matmul_flops: int
    """Useful ones: without transposes."""
    vector_ops: int
    """Elementwise arithmetic on all engines, one per element and operator."""
    io_bytes: int
    """Every tensor argument read once and every result written once."""
    low_precision: tuple[str, ...]
    """Floating-point dtypes below float32 that instructions read or wrote."""
    interval: Interval
    """Where a device's latency lies, four times of five."""
    rests_on: tuple[str, ...]
    """What the interval rests on, one line each."""
    resource_us: dict[str, float] = field(default_factory=dict)
    """Time each engine and queue, and `dma` (the busiest DMA engine), must be busy at least."""
    cores: int = 1
    """NeuronCores that it runs on at once (LNC)."""
    contested: tuple[str, ...] = ()
    """As the function of that name."""


def measure(program: Program, on: str | Machine = "", passes: Passes | None = None) -> Measurement:
    """Time a program on a generation, by name or as calibrated; by default the one it was traced for.

    `passes`: how often the device loops ran whose bounds are registers (nki_sim.execution.executor.execute_counting).
    With LNC 2, both cores on one clock (joint). Raises KeyError for an unknown machine, NotSupported for an
    instruction without a price or such a loop without `passes`, and
    NkiValidationError for cores that race.
    """
    core = on if isinstance(on, Machine) else machine(on or program.machine)
    each = [summarise(line) for line in timelines(program, core, passes)]
    return each[0] if len(each) == 1 else _together(each, core)


def timelines(program: Program, core: Machine, passes: Passes | None = None) -> tuple[Timeline, ...]:
    """Of each core that the program runs on, on one clock. Arguments, and what is raised, as of `measure`."""
    cores = (program, *program.peers)
    counted = passes.cores if passes is not None else (None,) * len(cores)
    alone = [unrolled(replace(one, peers=()), ran) for one, ran in zip(cores, counted)]
    return (schedule(alone[0], core),) if len(alone) == 1 else schedule_jointly(alone, core)


def summarise(line: Timeline) -> Measurement:
    """Everything there is to say about a timeline."""
    waits, summary = stalls(line), profile(line)
    prediction, facts = interval(line, summary), contested([line])
    return Measurement(
        line.latency_us,
        line.resource_bound_us,
        {**summary, **_wait_fields(waits)},
        line_costs(line),
        waits,
        longest_idle(line),
        line.machine.name,
        *useful_work(line.program, line.costs),
        low_precision(line.program),
        prediction.interval,
        (*prediction.rests_on, *([f"contested: {', '.join(facts)}"] if facts else [])),
        dict(line.resource_us),
        contested=facts,
    )


_ADDED_UP = ("_count", "_bytes", "_flops", "flops")
"""Endings of what the cores have together; of other fields the larger counts, and shares are formed anew."""


def _together(cores: Sequence[Measurement], core: Machine) -> Measurement:
    """What the cores of a logical core come to: the longest time, and the work of all."""
    last = max(cores, key=lambda measured: measured.latency_us)
    total_s, count = last.latency_us / 1e6, len(cores)
    out: dict[str, float] = {}
    for name in dict.fromkeys(name for measured in cores for name in measured.fields):
        values = [measured.fields[name] for measured in cores if name in measured.fields]
        out[name] = sum(values) if name.endswith(_ADDED_UP) else min(values) if "_begin_" in name else max(values)
    for name in [name for name in out if name.endswith("_active_time_percent")]:
        out[name] = _share(out[name.removesuffix("_percent")], total_s)
    out["dma_transfer_total_bytes"] = sum(measured.fields["dma_transfer_total_bytes"] for measured in cores)
    out["dma_transfer_average_bytes"] = _share(out["dma_transfer_total_bytes"], out["dma_transfer_count"])
    out.update(_utilization(out, core, total_s, count))
    lines: dict[tuple[int, str], list[LineCost]] = {}
    waits: dict[tuple[str, str], list[Stall]] = {}
    for measured in cores:
        for line in measured.lines:
            lines.setdefault((line.line, line.engine), []).append(line)
        for stall in measured.stalls:
            waits.setdefault((stall.engine, stall.waiting_on), []).append(stall)
    spent = [LineCost(*key, sum(e.active_us for e in v), sum(e.instructions for e in v)) for key, v in lines.items()]
    stood = [Stall(*key, sum(e.us for e in v), sum(e.instructions for e in v)) for key, v in waits.items()]
    return replace(
        last,
        resource_bound_us=max(measured.resource_bound_us for measured in cores),
        fields=out,
        lines=tuple(sorted(spent, key=lambda line: (-line.active_us, line.line))),
        stalls=tuple(sorted(stood, key=lambda stall: (-stall.us, stall.engine, stall.waiting_on))),
        matmul_flops=sum(measured.matmul_flops for measured in cores),
        vector_ops=sum(measured.vector_ops for measured in cores),
        io_bytes=cores[0].io_bytes,
        low_precision=tuple(sorted({name for measured in cores for name in measured.low_precision})),
        rests_on=(*last.rests_on, f"the cores share {core.hbm_bytes_per_ns:g} GB/s of HBM in equal parts"),
        resource_us={name: max(measured.resource_us[name] for measured in cores) for name in last.resource_us},
        cores=count,
        contested=tuple(sorted({what for measured in cores for what in measured.contested})),
    )


def useful_work(program: Program, costs: Sequence[Cost]) -> tuple[int, int, int]:
    """(matmul FLOPs, elementwise operations, least HBM bytes) that this program itself performs."""
    counts = np.bincount(program.template_ids, minlength=len(costs)).tolist() if len(program) else [0] * len(costs)
    flops = sum((price.flops - price.transpose_flops) * count for price, count in zip(costs, counts))
    operations = sum(price.operations * count for price, count in zip(costs, counts))
    tensors = {ref.allocation for ref in (*program.inputs, *program.outputs)}
    written = {ref.allocation for ref in program.outputs}
    read = {ref.allocation for ref in program.inputs}
    both = sum(program.allocations[number].nbytes for number in written & read)
    return flops, operations, sum(program.allocations[number].nbytes for number in tensors) + both


def low_precision(program: Program) -> tuple[str, ...]:
    """By name, sorted. Filling a tile with a constant does not count."""
    found = {
        str(operand.dtype)
        for template in program.templates
        if template.opcode != "memset"
        for operand in template.operands
        if operand.dtype.is_float and (operand.dtype.itemsize < 4 or operand.dtype == "tfloat32")
    }
    return tuple(sorted(found))


def profile(timeline: Timeline) -> dict[str, float]:
    """The summary's fields."""
    program, core, costs = timeline.program, timeline.machine, timeline.costs
    counts = np.bincount(program.template_ids, minlength=len(costs)).tolist() if len(program) else [0] * len(costs)
    total_s = timeline.latency_us / 1e6
    out: dict[str, float] = {"total_time": total_s, "latency": total_s * 1e3}

    def total(name: str) -> int:
        return sum(int(getattr(price.traffic, name)) * count for price, count in zip(costs, counts))

    busy_until = _active_us(timeline)
    for engine in ENGINES:
        active_s = busy_until[engine] / 1e6
        out[f"{engine}_engine_active_time"] = active_s
        out[f"{engine}_engine_active_time_percent"] = _share(active_s, total_s)
        out[f"{engine}_engine_instruction_count"] = sum(
            count for price, count in zip(costs, counts) if price.resource == engine
        )
    moved = [(price.transfer, count) for price, count in zip(costs, counts) if price.transfer is not None]
    transfers = sum(count for _, count in moved)
    nbytes = sum(move.nbytes * count for move, count in moved)
    software = sum(count for move, count in moved if move.queue == "dma.gpsimd")
    out["dma_active_time"] = busy_until["dma"] / 1e6
    out["dma_active_time_percent"] = _share(out["dma_active_time"], total_s)
    out["dma_transfer_count"] = transfers
    out["dma_transfer_total_bytes"] = nbytes
    out["dma_transfer_average_bytes"] = nbytes / transfers if transfers else 0.0
    out["software_dynamic_dma_count"] = software
    out["hardware_dynamic_dma_count"] = transfers - software
    out["total_active_time"] = busy_until["any"] / 1e6
    out.update(_begin_and_end_s(timeline))
    for name in ("hbm_read", "hbm_write", "sbuf_read", "sbuf_write", "psum_read", "psum_write"):
        out[f"{name}_bytes"] = total(name)
    for name, reload in (("spill_save_bytes", False), ("spill_reload_bytes", True)):
        out[name] = sum(
            price.transfer.nbytes * count
            for template, price, count in zip(program.templates, costs, counts)
            if price.transfer is not None and isinstance(template.attrs, Spill) and template.attrs.reload is reload
        )

    flops = sum(price.flops * count for price, count in zip(costs, counts))
    transposes = sum(price.transpose_flops * count for price, count in zip(costs, counts))
    out["hardware_flops"] = flops
    out["transpose_flops"] = transposes
    out["model_flops"] = flops - transposes
    out.update(_utilization(out, core, total_s))
    out["matmul_instruction_count"] = sum(
        count for price, count in zip(costs, counts) if price.resource == "tensor" and price.flops
    )
    out["activate_instruction_count"] = sum(
        count for template, count in zip(program.templates, counts) if template.opcode.startswith("activat")
    )
    out["activation_table_load_count"] = timeline.table_loads
    out["throttle_time"] = timeline.throttled_us / 1e6
    return out


def _utilization(summary: dict[str, float], core: Machine, total_s: float, cores: int = 1) -> dict[str, float]:
    """Of the products' peak rate of so many cores, and of the bandwidth of their one HBM stack."""
    flops, useful = summary["hardware_flops"], summary["model_flops"]
    hbm = summary["hbm_read_bytes"] + summary["hbm_write_bytes"]
    peak_per_ns = cores * core.matmul_bf16_flops_per_ns
    return {
        "hfu_estimated_percent": _share(flops, peak_per_ns * 1e9 * total_s),
        "mfu_estimated_percent": _share(useful, peak_per_ns * 1e9 * total_s),
        "mbu_estimated_percent": _share(hbm, core.hbm_bytes_per_ns * 1e9 * total_s),
        "mm_arithmetic_intensity": _share(useful, hbm),
        "peak_flops_bandwidth_ratio": peak_per_ns / core.hbm_bytes_per_ns,
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _active_us(timeline: Timeline) -> dict[str, float]:
    """Time at least one instruction of each engine runs; `dma`: a transfer is issued or under way."""
    program = timeline.program
    active = dict.fromkeys((*ENGINES, "dma", "any"), 0.0)
    if not len(program):
        return active
    resources = resource_numbers(timeline)[program.template_ids]
    for number, engine in enumerate(ENGINES):
        chosen = resources == number
        active[engine] = _union_us(timeline.start_ns[chosen], timeline.end_ns[chosen])
    chosen = resources >= len(ENGINES)
    active["dma"] = _union_us(timeline.issued_ns[chosen], timeline.end_ns[chosen])
    active["any"] = _union_us(timeline.issued_ns, timeline.end_ns)
    return active


def _begin_and_end_s(timeline: Timeline) -> dict[str, float]:
    """When each engine starts its first instruction and ends its last."""
    program = timeline.program
    if not len(program):
        return {}
    resources = resource_numbers(timeline)[program.template_ids]
    found = {}
    for number, engine in enumerate((*ENGINES, "dma")):
        chosen = resources >= len(ENGINES) if engine == "dma" else resources == number
        if chosen.any():
            tail_us = timeline.latency_us - float(timeline.end_ns[chosen].max()) / 1e3
            found[f"{engine}_begin_time"] = float(timeline.issued_ns[chosen].min()) / 1e9
            found[f"{engine}_end_time"] = (timeline.latency_us - tail_us) / 1e6
    return found


def _wait_fields(waits: Sequence[Stall]) -> dict[str, float]:
    return {f"{stall.engine}_wait_for_{stall.waiting_on}_time": stall.us / 1e6 for stall in waits}


def _union_us(start: np.ndarray, end: np.ndarray) -> float:
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    begin, reach = start[order], np.maximum.accumulate(end[order])
    covered = reach[-1] - begin[0] - np.maximum(0.0, begin[1:] - reach[:-1]).sum()
    return float(covered) / 1e3


def line_costs(timeline: Timeline) -> tuple[LineCost, ...]:
    """Every source line that issues instructions."""
    program = timeline.program
    if not len(program):
        return ()
    counts = np.bincount(program.template_ids, minlength=len(program.templates)).tolist()
    spent: dict[int, dict[str, float]] = {}
    issued: dict[int, int] = {}
    for template, price, count in zip(program.templates, timeline.costs, counts):
        engines = spent.setdefault(template.line, {})
        issued[template.line] = issued.get(template.line, 0) + count
        engine = "dma" if price.transfer is not None else price.resource
        ns = max(price.busy_ns, price.transfer.engine_ns) if price.transfer is not None else price.busy_ns
        engines[engine] = engines.get(engine, 0.0) + ns * count / 1e3
    lines = []
    for line, engines in spent.items():
        engine, active = max(engines.items(), key=lambda pair: pair[1])
        lines.append(LineCost(line, engine, active, issued[line]))
    return tuple(sorted(lines, key=lambda cost: (-cost.active_us, cost.line)))
