"""The numbers of one machine that prompts teach with, rounded to what a reader can use.

They come from `nki_sim.machine`, where each has its source; nothing here is a number of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from nki_sim.machine import MACHINES, Machine
from nki_sim.nki.language.ops import OP_TOKENS
from nki_sim.timing.contested import CONTESTED
from nki_sim.timing.cost import EVERY_TABLE, TABLES


@dataclass(frozen=True)
class MachineFacts:
    """Per NeuronCore."""

    name: str
    partitions: int
    sbuf_bytes_per_partition: int
    """What a kernel may use."""
    psum_banks: int
    psum_bank_bytes: int
    """Per partition."""
    matmul_columns: int
    """Longest free axis of one matmul's moving operand."""
    tensor_ghz: float
    vector_ghz: float
    scalar_ghz: float
    fp32_passes: int
    tflops_bf16: int
    tflops_fp32: int
    table_load_us: float
    no_table: str
    """Functions of the Scalar engine that every table has, by commas."""
    contested: str
    """What a result must not rest on (`nki_sim.timing.contested`), by commas."""
    shared_tables: str
    """Pairs of functions that share a table, by commas."""
    dma_engines: int
    dma_gb_per_s: int
    """All engines together, on long rows."""
    dma_issue_us: float
    """Between two transfers on one hardware queue."""
    dma_plain_issue_us: float
    """Between two whole tiles that name no queue, all of them together."""
    dma_plain_in_software: bool
    """GpSimd makes their descriptors then."""
    dma_latency_us: float
    """From issue to a consumer that may start, beside the bytes themselves."""
    dma_poor_row_bytes: int
    """Rows of this length spend half the time on overhead ..."""
    dma_good_row_bytes: int
    """... and of this length a ninth."""
    tensor_min_cycles: int
    fp32_transpose_passes: int
    vector_fixed_cycles: int
    """*_fixed_cycles: of every instruction, beside its elements."""
    vector_copy_speedup: float
    """Of fp32 copies and tensor_scalar that stay in SBUF."""
    vector_ready_us: float
    tensor_tensor_cycles: float
    """Of the Vector engine, for each element of an instruction that reads two tensors."""
    vector_gpsimd_take_turns: bool
    """Always, and not only in Vector's performance modes."""
    vector_scalar_share_psum: bool
    scalar_fixed_cycles: int
    scalar_function_ready_us: float
    gpsimd_fixed_cycles: int
    partitions_per_dma_engine: int
    dma_row_ns: float
    dma_engine_gb_per_s: float
    pe_warmup_us: float
    """Of work on all rows, which warms up the Tensor engine's array."""
    pe_warming_percent: int
    """Share of its rows below which no work warms it up."""
    pe_busy_percent: float
    """Share of its rows that has to be at work while it is warm."""
    pe_lacking_us: float
    """Work of the whole array that is lacking to that once it is cold again."""
    pe_cold_factor: float
    """How many times slower the Tensor engine is while cold."""
    priced_from: str
    """What the times below rest on, to stand behind `by the machine model,`."""


def machine_facts(machine: Machine) -> MachineFacts:
    row_bytes = machine.dma_row_ns * machine.dma_engine_bytes_per_ns
    return MachineFacts(
        name=machine.product,
        partitions=machine.partitions,
        sbuf_bytes_per_partition=machine.sbuf_partition_bytes,
        psum_banks=machine.psum_banks,
        psum_bank_bytes=machine.psum_bank_bytes,
        matmul_columns=machine.moving_fmax,
        tensor_ghz=machine.tensor_clock_ghz,
        vector_ghz=machine.vector_clock_ghz,
        scalar_ghz=machine.scalar_clock_ghz,
        fp32_passes=machine.tensor_fp32_passes,
        tflops_bf16=round(machine.matmul_bf16_flops_per_ns / 1e3),
        tflops_fp32=round(machine.matmul_fp32_flops_per_ns / 1e3),
        table_load_us=round(machine.activation_table_load_ns / 1e3, 1),
        no_table=", ".join(sorted(EVERY_TABLE & OP_TOKENS)),
        contested=", ".join(what for what, _ in CONTESTED.values()),
        shared_tables=", ".join(f"{one} with {other}" for one, other in TABLES.items() if one in OP_TOKENS),
        dma_engines=machine.dma_engines,
        dma_gb_per_s=round(machine.dma_bytes_per_ns),
        dma_issue_us=round(machine.dma_hardware_issue_ns / 1e3, 1),
        dma_plain_issue_us=round(machine.dma_plain_issue_ns / 1e3, 2),
        dma_plain_in_software=machine.dma_plain_descriptors == "software",
        dma_latency_us=round(machine.dma_latency_ns / 1e3, 1),
        dma_poor_row_bytes=_power_of_two(row_bytes),
        dma_good_row_bytes=_power_of_two(8 * row_bytes),
        tensor_min_cycles=machine.tensor_min_cycles,
        fp32_transpose_passes=machine.tensor_fp32_transpose_passes,
        vector_fixed_cycles=round(machine.vector_issue_cycles),
        vector_copy_speedup=machine.vector_perf_copy_32bit,
        vector_ready_us=round(machine.vector_latency_ns / 1e3, 2),
        tensor_tensor_cycles=machine.rates["tensor_tensor"].per_element,
        vector_gpsimd_take_turns=machine.vector_gpsimd_share_port == "always",
        vector_scalar_share_psum=machine.vector_scalar_share_psum,
        scalar_fixed_cycles=round(machine.scalar_issue_cycles),
        scalar_function_ready_us=round(machine.scalar_function_latency_ns / 1e3, 2),
        gpsimd_fixed_cycles=round(machine.gpsimd_issue_cycles + machine.rates["tensor_tensor@gpsimd"].fixed),
        partitions_per_dma_engine=machine.partitions_per_dma_engine,
        dma_row_ns=machine.dma_row_ns,
        dma_engine_gb_per_s=machine.dma_engine_bytes_per_ns,
        pe_warmup_us=round(machine.throttle_window_ns / 1e3, 1),
        pe_warming_percent=round(100 * machine.throttle_warming),
        pe_busy_percent=round(100 * machine.throttle_utilization, 1),
        pe_lacking_us=round(machine.throttle_lacking_ns / 1e3, 1),
        pe_cold_factor=machine.throttle_factor,
        priced_from="fitted to published measurements" if _as_shipped(machine) else machine.calibration,
    )


def _as_shipped(machine: Machine) -> bool:
    """And calibrated; otherwise its own line says how far to trust it."""
    return machine.calibrated and MACHINES.get(machine.name, machine).calibration == machine.calibration


def _power_of_two(value: float) -> int:
    """The nearest one from below or above, whichever is the closer factor."""
    lower = 1
    while 2 * lower <= value:
        lower *= 2
    return lower if value / lower <= 2 * lower / value else 2 * lower
