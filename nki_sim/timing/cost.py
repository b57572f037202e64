"""What one instruction costs on a machine, in isolation: computed once per template.

Order and waiting are the scheduler's business (`nki_sim.timing.schedule`); here is only how long an engine is
busy, how long until the result may be used, and what is moved and computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from nki_sim.by_object import by_object
from nki_sim.dtypes import float32
from nki_sim.errors import NotSupported
from nki_sim.machine import Machine
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Operand, Template

RESOURCES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma.sync", "dma.scalar", "dma.gpsimd")
"""What an instruction can keep busy: an engine, or a DMA queue."""

OPERATIONS = {
    "tensor_tensor": 1,
    "tensor_scalar": 1,
    "scalar_tensor_tensor": 2,
    "tensor_tensor_scan": 2,
    "tensor_scalar_cumulative": 2,
    "tensor_scalar_reduce": 2,
    "tensor_reduce": 1,
    "tensor_partition_reduce": 1,
    "activation": 1,
    "activation_reduce": 2,
    "activate2": 1,
    "reciprocal": 1,
    "exponential": 1,
    "select_reduce": 1,
    "range_select": 1,
    "affine_select": 1,
    "dropout": 1,
}
"""Arithmetic per element, for useful work; moving, filling and transposing count as none."""

FLOAT32_BYTES = float32.itemsize

EVERY_TABLE = frozenset({"copy", "identity", "square", "relu", "abs", "sign", "add", "multiply", "subtract"})
"""Of the Scalar engine: what needs no table loaded for it."""
TABLES = {"rsqrt": "sqrt", "reciprocal_sqrt": "sqrt"}
"""Functions known to share a table under another's name; any other function has a table of its own."""


@dataclass(frozen=True)
class Transfer:
    """A DMA: descriptors issued on a queue, rows moved by a range of engines."""

    queue: str
    """`dma.sync`, `dma.scalar` or `dma.gpsimd`."""
    outward: bool
    """To HBM."""
    start_ns: float
    """From the start of its issue to the first byte."""
    first_engine: int
    last_engine: int
    """Inclusive."""
    engine_ns: float
    """Time the busiest of them spends on it."""
    peak_engine_ns: float
    """The same at the full documented rate, which nothing beats."""
    rows: int
    row_bytes: int
    nbytes: int


@dataclass(frozen=True)
class ArrayTile:
    """The part of TensorE's array that a tiled product occupies while others run beside it."""

    row: int
    column: int
    rows: int
    columns: int
    hold_ns: float
    """As long as the product would have the whole array; `Cost.busy_ns` is its share of that, and never less than
    the interval at which TensorE issues."""


@dataclass(frozen=True)
class Traffic:
    """Bytes by memory."""

    hbm_read: int = 0
    hbm_write: int = 0
    sbuf_read: int = 0
    sbuf_write: int = 0
    psum_read: int = 0
    psum_write: int = 0


@dataclass(frozen=True)
class Cost:
    resource: str
    """The engine that is busy, or the DMA queue."""
    busy_ns: float
    """For a transfer: issuing it."""
    latency_ns: float
    """From the end of busy until a dependent instruction may start."""
    traffic: Traffic
    flops: int = 0
    """All of TensorE's multiply-adds times two, transposes included."""
    transpose_flops: int = 0
    operations: int = 0
    """Elementwise arithmetic."""
    table: str = ""
    """Activation function table it needs; empty if any will do."""
    ports: tuple[str, ...] = ()
    """What it holds that another engine or queue uses too: the ports `sbuf` (Vector and GpSimd) and `psum` (Vector and
    Scalar); `descriptors`: GpSimd's cores, which compute and generate descriptors."""
    transfer: Transfer | None = None
    array_tile: ArrayTile | None = None
    """None: the whole array, or no product."""
    activity_ns: float = 0.0
    """Of a product: the time it needs at full clock, times the share of the array's rows that it uses."""


@by_object
def cost(template: Template, machine: Machine) -> Cost:
    """Raises NotSupported for an opcode that has no price."""
    opcode = template.opcode
    if template.engine is Engine.dma or opcode.startswith("dma_") or opcode == "sendrecv":
        return _dma(template, machine)
    if opcode in ("nc_matmul", "nc_matmul_mx") or (opcode == "nc_transpose" and template.engine is Engine.tensor):
        return _tensor(template, machine)
    if opcode.startswith("register_") or opcode in ("scalar_load", "scalar_store", "tensor_load", "tensor_store"):
        engine = template.engine.name if template.engine is not Engine.unknown else "sync"
        return Cost(engine, machine.register_access_ns, 0.0, _traffic(template))
    if opcode == "scalar_arithmetic":
        return Cost(template.engine.name, machine.scalar_arithmetic_ns, 0.0, Traffic())
    if opcode == "core_barrier":  # it blocks the engine that executes it, and no other (nki.isa, core_barrier)
        return Cost(template.engine.name, machine.barrier_ns, 0.0, Traffic())
    return _elementwise(template, machine)


# --- TensorE --------------------------------------------------------------------------------------


def _tensor(template: Template, machine: Machine) -> Cost:
    transposes = template.opcode == "nc_transpose" or bool(getattr(template.attrs, "is_transpose", False))
    if template.opcode == "nc_transpose":
        data = template.operands[1]
        rows, stationary_columns, columns = data.partitions, data.free_size, data.partitions
        inputs = [data]
        loaded, streamed = [data], [_role(template, "dst")]
        cycles = max(data.partitions, machine.tensor_min_cycles)
        tile_size: tuple[int, ...] = ()
    else:
        stationary, moving = _role(template, "stationary"), _role(template, "moving")
        inputs = [stationary, moving]
        loaded, streamed = [stationary], [moving, _role(template, "dst")]
        doubled = getattr(getattr(template.attrs, "perf_mode", None), "name", "none").startswith("double")
        if doubled and not machine.tensor_double_row:
            raise NotSupported(f"nc_matmul perf_mode double_row does not exist on {machine.name}")
        rows = stationary.partitions * (2 if doubled else 1)
        stationary_columns = stationary.free_size // (2 if doubled else 1)
        columns = moving.free_size // (2 if doubled else 1)
        cycles = max(columns, machine.tensor_min_cycles)
        tile_size = tuple(getattr(template.attrs, "tile_size", ()) or ())
    passes = 1
    if transposes and any(operand.dtype.itemsize >= FLOAT32_BYTES for operand in inputs):
        passes = machine.tensor_fp32_transpose_passes  # it moves bits: four bytes of any type are those of a float32
    elif not transposes and any(operand.dtype == "float32" for operand in inputs):
        passes = machine.tensor_fp32_passes
    slowed = cycles * _stride_slowdown(streamed, machine)
    moving_ns = passes * (slowed / machine.tensor_clock_ghz + machine.tensor_pass_ns)
    loading_ns = load_stationary_ns(stationary_columns, passes, machine) - machine.stationary_latency_ns
    loading_ns *= _stride_slowdown(loaded, machine)
    flops = 2 * rows * stationary_columns * columns
    hold_ns = max(moving_ns, loading_ns, _dynamic_cycles(template, machine) / machine.tensor_clock_ghz)
    tile = _array_tile(tile_size, tuple(getattr(template.attrs, "tile_position", ()) or ()), hold_ns, machine)
    share = 1.0 if tile is None else tile.rows * tile.columns / (machine.tensor_rows * machine.tensor_columns)
    busy_ns = hold_ns if tile is None else hold_ns * share * machine.tensor_tile_slowdown
    return Cost(
        "tensor",
        max(busy_ns, passes * machine.tensor_min_cycles / machine.tensor_clock_ghz),
        machine.tensor_latency_ns,
        _traffic(template),
        flops=flops,
        transpose_flops=flops if transposes else 0,
        array_tile=tile,
        activity_ns=hold_ns * share * min(1.0, rows / (machine.tensor_rows if tile is None else tile.rows)),
    )


def load_stationary_ns(columns: int, passes: int, machine: Machine) -> float:
    """A weight load on its own; back to back, all but the latency counts."""
    per_pass = columns / (machine.stationary_columns_per_cycle * machine.tensor_clock_ghz)
    return machine.stationary_latency_ns + passes * per_pass


def _array_tile(size: tuple[int, ...], position: tuple[int, ...], hold_ns: float, machine: Machine) -> ArrayTile | None:
    """Products on different tiles of the array run side by side (NKI's documentation of nc_matmul, tiling mode)."""
    if not size:
        return None
    columns = size[1] if len(size) > 1 else machine.tensor_columns
    row, column = position if len(position) > 1 else (position[0] if position else 0, 0)
    if (size[0], columns) == (machine.tensor_rows, machine.tensor_columns):
        return None
    return ArrayTile(row, column, size[0], columns, hold_ns)


# --- VectorE, ScalarE, GpSimdE --------------------------------------------------------------------


def _elementwise(template: Template, machine: Machine) -> Cost:
    engine = template.engine.name
    if engine not in ("vector", "scalar", "gpsimd"):
        raise NotSupported(f"{template.describe()}: no price for {template.opcode} on {engine}")
    operands = [operand for operand in template.operands if operand.region.on_chip]
    elements = max((operand.free_size for operand in operands), default=1)
    lanes = max((operand.partitions for operand in operands), default=1)
    op = str(getattr(template.attrs, "op", "") or "")
    rates = machine.rates
    opcode = template.opcode
    reduces = any(operand.role in ("accumulators", "reduce_res") for operand in template.operands)
    slow = [rates[key] for key in (f"{name}@{engine}" for name in _operators(template)) if key in rates]
    rate = max(slow, key=lambda rate: rate.per_element) if slow else rates.get(f"{opcode}@{engine}")
    if rate is None and opcode == "activation" and reduces:
        rate = rates.get("activation+reduce")
    rate = rate or rates.get(opcode)
    if rate is None:
        raise NotSupported(f"{template.describe()}: no price for {opcode}; add its rate to nki_sim.machine")
    speedup = _vector_speedup(template, operands, machine) if engine == "vector" else 1.0
    beats = max((operand.free_size * _stride_slowdown([operand], machine) for operand in operands), default=1.0)
    if _stride_slowdown(operands, machine) > 1 or slow:
        speedup = 1.0
    cycles = rate.fixed + max(rate.per_element * beats / speedup, rate.minimum, _dynamic_cycles(template, machine))
    issue = {
        "vector": machine.vector_issue_cycles,
        "scalar": machine.scalar_issue_cycles,
        "gpsimd": machine.gpsimd_issue_cycles,
    }[engine]
    function = opcode in ("activation", "activation_reduce", "activate2")
    latency = {
        "vector": machine.vector_latency_ns,
        "scalar": machine.scalar_function_latency_ns if function else machine.scalar_latency_ns,
        "gpsimd": machine.gpsimd_latency_ns,
    }[engine]
    if engine == "vector" and any(o.region is MemoryRegion.psum and o.access != "w" for o in operands):
        latency -= (machine.vector_psum_issue_cycles - issue) / machine.clock_ghz(engine)
        issue = machine.vector_psum_issue_cycles
    return Cost(
        engine,
        (cycles + issue) / machine.clock_ghz(engine),
        latency,
        _traffic(template),
        operations=OPERATIONS.get(opcode, 0) * elements * lanes + _second_operation(template) * elements * lanes,
        table=_table(op) if engine == "scalar" and function else "",
        ports=_ports(engine, operands, speedup > 1, machine),
    )


def _ports(engine: str, operands: list[Operand], perf_mode: bool, machine: Machine) -> tuple[str, ...]:
    regions = {operand.region for operand in operands}
    ports = []
    if MemoryRegion.sbuf in regions and (
        engine == "gpsimd" or (engine == "vector" and (perf_mode or machine.vector_gpsimd_share_port == "always"))
    ):
        ports.append("sbuf")
    if MemoryRegion.psum in regions and engine in ("vector", "scalar") and machine.vector_scalar_share_psum:
        ports.append("psum")
    if engine == "gpsimd":
        ports.append("descriptors")
    return tuple(ports)


def _operators(template: Template) -> list[str]:
    """The arithmetic that its attributes name."""
    return [str(name) for name in (getattr(template.attrs, field, None) for field in ("op", "op0", "op1")) if name]


def _second_operation(template: Template) -> int:
    return int(template.opcode == "tensor_scalar" and bool(getattr(template.attrs, "op1", None)))


def _table(op: str) -> str:
    return "" if not op or op in EVERY_TABLE else TABLES.get(op, op)


def _vector_speedup(template: Template, operands: list[Operand], machine: Machine) -> float:
    """Vector's performance modes; the hardware enters them by itself."""
    tiles = [operand for operand in operands if operand.role in ("dst", "data", "src", "data1", "data2")]
    if not tiles:
        return 1.0
    in_sbuf = all(operand.region is MemoryRegion.sbuf for operand in tiles)
    narrow = all(operand.dtype in ("bfloat16", "float16") for operand in tiles)
    contiguous = all(_contiguous_elements(operand) == operand.free_size for operand in tiles)
    if template.opcode in ("tensor_copy", "tensor_scalar", "memset"):
        if narrow and in_sbuf and contiguous:
            return machine.vector_perf_copy_16bit
        if narrow and (in_sbuf or contiguous):
            return machine.vector_perf_copy_16bit_slow
        if in_sbuf and contiguous and all(operand.dtype.itemsize <= 4 for operand in tiles):
            return machine.vector_perf_copy_32bit
    elif template.opcode == "tensor_tensor" and narrow and all(o.region is MemoryRegion.sbuf for o in tiles[1:]):
        return machine.vector_perf_tensor_16bit
    return 1.0


def _dynamic_cycles(template: Template, machine: Machine) -> float:
    """What an instruction takes at least when one of its places is only known on the device."""
    return machine.dynamic_min_cycles if any(o.indirection is not None for o in template.operands) else 0.0


def _stride_slowdown(operands: Sequence[Operand], machine: Machine) -> float:
    """Each read or write interface to SBUF or PSUM has half its rate where the innermost stride is too long."""
    widest = max((_inner_stride_bytes(operand) for operand in operands if operand.region.on_chip), default=0)
    return machine.stride_slowdown if widest > machine.stride_limit_bytes else 1.0


def _inner_stride_bytes(operand: Operand) -> int:
    for stride, size in reversed(operand.pattern[1:]):
        if size > 1:
            return abs(stride) * operand.dtype.itemsize
    return 0


def _contiguous_elements(operand: Operand) -> int:
    """Elements in the innermost contiguous run; on chip, within a partition."""
    run = 1
    for stride, size in reversed(operand.pattern[1:] if operand.region.on_chip else operand.pattern):
        if size == 1:
            continue
        if stride != run:
            break
        run *= size
    return run


# --- DMA ------------------------------------------------------------------------------------------


def _dma(template: Template, machine: Machine) -> Cost:
    tensors = [operand for operand in template.operands if not operand.role.endswith(".index")]
    written = [operand for operand in tensors if operand.access != "r"]
    read = [operand for operand in tensors if operand.access != "w"]
    if not written or not read:
        raise NotSupported(f"{template.describe()}: a transfer needs a source and a destination")
    dst = written[0]
    nbytes = max(dst.nbytes, *(operand.nbytes for operand in read))
    item = max(operand.dtype.itemsize for operand in tensors)
    row_elements = min(_contiguous_elements(operand) for operand in tensors)
    efficiency = 1.0
    if template.opcode == "dma_transpose":
        efficiency = (
            machine.dma_transpose_onchip_efficiency
            if all(operand.region.on_chip for operand in tensors)
            else machine.dma_transpose_efficiency
        )
        if item >= 4:
            efficiency /= machine.dma_transpose_4byte_slowdown
        row_elements = max(_contiguous_elements(operand) for operand in read)
    elif template.opcode == "dma_compute":
        efficiency = machine.dma_accumulate_efficiency
        nbytes = sum(operand.nbytes for operand in read)
    rows = max(1, nbytes // (row_elements * item))
    first, last, rows_on_busiest, rows = _deal_rows(tensors, rows, nbytes, machine)
    bytes_on_busiest = nbytes * rows_on_busiest / rows
    rows_ns = rows_on_busiest * machine.dma_row_ns
    if any(_ends_within_an_access(operand, machine) for operand in tensors):
        rows_ns += rows_on_busiest * machine.dma_unaligned_row_ns
    bytes_ns = bytes_on_busiest / (machine.dma_engine_bytes_per_ns * efficiency)
    partitions = max((operand.partitions for operand in tensors if operand.region.on_chip), default=machine.dma_engines)
    queue, issue_ns, start_ns = _queue(template, machine, partitions)
    issue_ns += machine.register_access_ns * _addresses_read(template)
    spread = machine.dma_spread_ns if last > first else 0.0
    moving_ns = rows_ns + bytes_ns / machine.dma_sustained
    return Cost(
        queue,
        issue_ns,
        machine.dma_completion_ns + spread,
        _traffic(template),
        ports=("descriptors",) if queue == "dma.gpsimd" else (),
        transfer=Transfer(
            queue, not dst.region.on_chip, start_ns, first, last, moving_ns, bytes_ns, rows, nbytes // rows, nbytes
        ),
    )


def _addresses_read(template: Template) -> int:
    """Places that the queue's engine has to load into a register of its own before it can issue the transfer."""
    pairs = zip(template.operands, template.operands[1:])
    return sum(
        steered.indirection is not None
        and steered.indirection[0] == "scalar"
        and index.region is not MemoryRegion.register
        for steered, index in pairs
    )


def _ends_within_an_access(operand: Operand, machine: Machine) -> bool:
    """Do most of its runs in HBM begin or end within what HBM moves at once? As if the first began with one."""
    access, item = machine.hbm_access_bytes, operand.dtype.itemsize
    run = _contiguous_elements(operand) * item
    apart = [abs(stride) * item for stride, size in operand.pattern if size > 1 and abs(stride) * item >= run]
    return not operand.region.on_chip and run > access and any(each % access for each in (run, *apart))


def _deal_rows(tensors: list[Operand], rows: int, nbytes: int, machine: Machine) -> tuple[int, int, int, int]:
    """Which engines move the rows: (first, last, rows on the busiest, rows in all).

    A partition belongs to an engine; between HBM tensors, rows are cut and dealt to all engines.
    """
    on_chip = [operand for operand in tensors if operand.region.on_chip]
    if not on_chip:
        engines = machine.dma_engines
        if rows < engines:
            rows = max(rows, min(engines, nbytes // machine.dma_cut_bytes))
        used = min(rows, engines)
        return 0, used - 1, ceil(rows / used), rows
    widest = max(on_chip, key=lambda operand: operand.partitions)
    start, partitions = widest.partition_start, widest.partitions
    per_engine = machine.partitions_per_dma_engine
    first, last = start // per_engine, (start + partitions - 1) // per_engine
    rows = max(rows, partitions)
    rows_per_partition = ceil(rows / partitions)
    return first, min(last, machine.dma_engines - 1), rows_per_partition * min(per_engine, partitions), rows


def _queue(template: Template, machine: Machine, descriptors: int) -> tuple[str, float, float]:
    """(queue that issues the transfer, how long the next one has to wait behind it, until the first byte).

    Scalar and Sync have a hardware engine each that generates descriptors, GpSimd generates them in software, and
    the compiler can leave them in memory.
    """
    engine = getattr(template.attrs, "queue", None) or getattr(template.attrs, "engine", None)
    mode = getattr(getattr(template.attrs, "dge_mode", None), "name", "unknown")
    named = engine if engine in (Engine.scalar, Engine.gpsimd, Engine.sync) else None
    if mode == "unknown":
        if named is Engine.gpsimd:
            mode = "swdge"
        elif named is not None or template.opcode == "dma_transpose":
            mode = "hwdge"
        else:
            mode = "swdge" if machine.dma_plain_descriptors == "software" else "none"
    if mode == "swdge":
        issue_ns = machine.dma_software_issue_ns + descriptors * machine.dma_software_descriptor_ns
        return "dma.gpsimd", issue_ns, machine.dma_software_start_ns
    queue = "dma.scalar" if named is Engine.scalar else "dma.sync"
    if mode == "none":
        return queue, machine.dma_prepared_issue_ns, machine.dma_start_ns
    return queue, machine.dma_hardware_issue_ns, machine.dma_hardware_start_ns


# --- bytes ----------------------------------------------------------------------------------------


def _traffic(template: Template) -> Traffic:
    totals = dict.fromkeys(("hbm_read", "hbm_write", "sbuf_read", "sbuf_write", "psum_read", "psum_write"), 0)
    for operand in template.operands:
        region = operand.region.value
        memory = "hbm" if region in ("private_hbm", "shared_hbm") else region
        if memory == "register":
            continue
        if operand.access != "w" and not _overwrites(template, operand):
            totals[f"{memory}_read"] += operand.nbytes
        if operand.access != "r":
            totals[f"{memory}_write"] += operand.nbytes
    return Traffic(**totals)


def _overwrites(template: Template, operand: Operand) -> bool:
    """A matmul's destination is accumulated in place, inside PSUM: nothing is read out."""
    return template.opcode.startswith("nc_matmul") and operand.role == "dst"


def _role(template: Template, role: str) -> Operand:
    operand = template.operand(role)
    if operand is None:
        raise NotSupported(f"{template.describe()}: operand {role} is missing")
    return operand
