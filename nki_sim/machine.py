"""Trainium generations as data: every hardware number, once, with where it comes from.

`ISA` is what instructions are checked against, alike on every generation; a `Machine` is one generation. Both
hold plain numbers, so that the cost model and the scheduler read them at full speed; beside each number stands
a `Source`. A generation is one table and one line at the end of this file; no other file knows one by name. To
ask "what if", copy a machine: `dataclasses.replace(TRN2, dma_engines=32)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

Confidence = Literal["documented", "measured", "fitted", "prior", "contested"]
"""documented: AWS says so; measured: someone with hardware did; fitted: chosen to match calibration rows;
prior: an informed guess that no row constrains; contested: a prior that AWS's documentation contradicts itself about,
or that a compiler crashed on (`nki_sim.timing.contested` says which latencies rest on it)."""
GUESSED: tuple[Confidence, ...] = ("prior", "contested")


@dataclass(frozen=True)
class Source:
    text: str
    confidence: Confidence


@dataclass(frozen=True)
class Rate:
    """Cycles one elementwise instruction keeps its engine busy: `fixed + per_element * max(n, minimum)`.

    n counts elements per partition; the engine's own overhead comes on top.
    """

    per_element: float = 1.0
    fixed: float = 0.0
    minimum: int = 64
    source: Source = Source("NKI isa pages of SDK v2.26.1, last published cycle formulas", "documented")


@dataclass(frozen=True)
class InstructionSet:
    """What every generation accepts. A trace is checked by it, once, whichever machine times it later.

    NeuronCore-v4 also multiplies moving tiles that span all of PSUM (nc_matmul API page): not modelled.
    """

    partitions: int
    """Of SBUF and of PSUM; lanes of every compute engine."""
    quadrant_partitions: int
    """Where an access may start, and what one shuffle works within."""
    access_pattern_free_dims: int
    """Dimensions of an access pattern besides the partition."""
    access_pattern_least_stride: int
    access_pattern_most_stride: int
    """In elements."""
    access_pattern_elements: int
    """Per partition, that one instruction of a compute engine reads or writes."""
    psum_banks: int
    psum_bank_bytes: int
    """Per partition; what one matmul may write."""
    psum_align_bytes: int
    sbuf_align_bytes: int
    tensor_rows: int
    """Of the array: the contraction K of one matmul."""
    tensor_columns: int
    tensor_tile_sizes: tuple[int, ...]
    """Rows or columns of a part of the array that a tiled matmul takes."""
    stationary_fmax: int
    moving_fmax: int
    vector_transpose_fmax: int
    """Rows and columns."""
    bn_stats_fmax: int
    search_fmin: int
    search_fmax: int
    """*_fmin, *_fmax: elements per partition; search is max8, nc_find_index8 and nc_match_replace8."""
    gpsimd_core_partitions: int
    """Partitions connected to one of GpSimd's cores."""
    local_gather_indices: int
    """At most, of one group of partitions."""
    local_gather_run_sizes: tuple[int, ...]
    """Elements that one index may fetch."""
    topk_fmin: int
    topk_fmax: int
    topk_results: int
    """At most."""
    dma_compute_sources: int
    """At most."""
    dma_transpose_columns: int
    """At most, with hardware descriptors."""
    dma_transpose_item_bytes: int
    """With hardware descriptors."""
    logical_core_cores: int
    """NeuronCores in one logical core (LNC), at most."""
    sources: Mapping[str, Source] = field(repr=False, compare=False)
    """By field name."""

    @property
    def quadrants(self) -> int:
        return self.partitions // self.quadrant_partitions


@dataclass(frozen=True)
class Machine:
    """One physical NeuronCore of one generation. Times in ns, rates in bytes/ns (= GB/s), clocks in GHz."""

    name: str
    product: str
    """As AWS spells it, e.g. Trainium2."""
    calibration: str
    """How far to trust a latency of this machine: one line, at most 110 characters, shown beside the latency."""

    # which it is
    neuron_core_version: int
    """3 for NeuronCore-v3; what instructions and dtypes are counted by."""
    targets: tuple[str, ...]
    """Its names in NEURON_PLATFORM_TARGET_OVERRIDE."""
    cores_per_device: int
    """Physical NeuronCores of a chip, which is what LNC=1 counts."""
    device_hbm_bytes: int
    """Of a chip, all cores together."""

    # memories
    partitions: int
    sbuf_partition_bytes: int
    """What a kernel may use of a partition of SBUF."""
    sbuf_physical_partition_bytes: int
    """All of it, the compiler's share included."""
    psum_banks: int
    psum_bank_bytes: int
    """Per partition."""
    hbm_bytes_per_ns: float
    """What the profiler divides by for MBU."""
    hbm_sustained: float
    """Share of that rate which two cores that use the stack at once keep up together."""

    # TensorE
    tensor_clock_ghz: float
    tensor_rows: int
    tensor_columns: int
    stationary_fmax: int
    moving_fmax: int
    tensor_min_cycles: int
    """Least issue interval of a matmul."""
    tensor_fp32_passes: int
    tensor_fp32_transpose_passes: int
    tensor_double_row: bool
    """fp8 with twice the rows."""
    stationary_columns_per_cycle: float
    """Loading weights; hidden behind the previous matmul unless that one is shorter."""
    stationary_latency_ns: float
    """What a weight load takes besides its columns, when nothing hides it."""
    tensor_pass_ns: float
    """Between two passes over the array, besides their columns."""
    tensor_tile_slowdown: float
    """Of a product on a part of the array, over its share of the array's time; 1: all parts work side by side."""
    tensor_wait_ns: float
    """To wait for a transfer, once for each whose data a matmul reads."""
    tensor_latency_ns: float
    """From the last column in to the result readable in PSUM by another engine."""
    throttle_factor: float
    """Slowdown while cold. 1 turns the state machine off."""
    throttle_window_ns: float
    """Of work on all rows of the array that warms it up."""
    throttle_warming: float
    """Share of the array's rows that has to be at work to warm it up at all: what is beyond it adds up, and a pause
    takes off as much as all of the rows add in that time."""
    throttle_utilization: float
    """Share of the array's rows that has to be at work while it is warm: what is lacking adds up."""
    throttle_lacking_ns: float
    """Work of the whole array that is lacking once it is cold again."""

    # VectorE, ScalarE, GpSimdE
    vector_clock_ghz: float
    scalar_clock_ghz: float
    gpsimd_clock_ghz: float
    vector_issue_cycles: float
    scalar_issue_cycles: float
    gpsimd_issue_cycles: float
    """*_issue_cycles: added to every instruction; the engine is busy."""
    vector_psum_issue_cycles: float
    """Of an instruction of Vector's that reads PSUM, in place of vector_issue_cycles; its result is there as early."""
    vector_latency_ns: float
    scalar_latency_ns: float
    scalar_function_latency_ns: float
    gpsimd_latency_ns: float
    """*_latency_ns: until a dependent instruction may start; the engine is free."""
    vector_perf_copy_16bit: float
    """Speed-up of copy and tensor_scalar, SBUF to SBUF, contiguous, 2-byte types."""
    vector_perf_copy_16bit_slow: float
    """The same when not contiguous, or with one side in PSUM."""
    vector_perf_copy_32bit: float
    """The same instructions on 4-byte types, SBUF to SBUF."""
    vector_perf_tensor_16bit: float
    """tensor_tensor with everything 2-byte and both inputs in SBUF."""
    stride_limit_bytes: int
    """An innermost stride above this in SBUF or PSUM slows every engine's reads and writes (`stride_slowdown`)."""
    stride_slowdown: float
    dynamic_min_cycles: float
    """Least issue interval of an instruction that reads or writes where a device value says."""
    activation_table_load_ns: float
    vector_gpsimd_share_port: Literal["always", "perf modes"]
    vector_scalar_share_psum: bool

    # DMA
    dma_engines: int
    partitions_per_dma_engine: int
    dma_engine_bytes_per_ns: float
    dma_sustained: float
    """Share of that rate which long streams of mixed reads and writes keep up."""
    dma_row_ns: float
    """Per contiguous run that an engine moves."""
    hbm_access_bytes: int
    """What HBM reads or writes at once."""
    dma_unaligned_row_ns: float
    """Besides dma_row_ns, for a longer run that begins or ends within one."""
    dma_cut_bytes: int
    """Between HBM tensors, rows are not cut shorter to be dealt to more engines."""
    dma_start_ns: float
    """From issue to the first byte."""
    dma_spread_ns: float
    """Between the first and the last engine starting on the same transfer."""
    dma_completion_ns: float
    """From the last byte to a consumer starting."""
    dma_hardware_start_ns: float
    """The same where a hardware engine generates the descriptors."""
    dma_software_start_ns: float
    """The same where software generates the descriptors: the first ones move while the last are being made."""
    dma_prepared_issue_ns: float
    """Interval between transfers on one queue whose descriptors the compiler left in memory."""
    dma_hardware_issue_ns: float
    """The same where a hardware engine generates them."""
    dma_software_issue_ns: float
    """The same where software on GpSimd does, for all queues together; besides its descriptors."""
    dma_software_descriptor_ns: float
    """And for each of them: one for every partition that takes part."""
    dma_plain_descriptors: Literal["software", "prepared"]
    """What a dma_copy that names neither mode nor queue gets."""
    dma_transpose_efficiency: float
    dma_transpose_onchip_efficiency: float
    dma_transpose_4byte_slowdown: float
    dma_accumulate_efficiency: float
    """Read-add-write transfers (dma_compute)."""

    # what the compiler decides
    renames_tiles: bool
    """A tile that is written anew as a whole is a new one."""
    reload_window_bytes: int
    """Of a partition, of other tiles allocated since: a tile loaded again sooner is not loaded."""
    reorder_reach: int
    """Rows of the program by which an instruction may be taken earlier than it is written."""
    tensor_runs_ahead: bool
    """TensorE does later products while one waits for whatever it is; else not while what one reads is computed."""

    # the rest
    register_access_ns: float
    scalar_arithmetic_ns: float
    """One addition, subtraction or product of the sequencer."""
    barrier_ns: float
    profiler_ns: float
    """What the total time of a profile holds besides the kernel's own; in no simulated latency."""
    profiler_transfer_ns: float
    """What a capture adds to the issue of each transfer with software descriptors; likewise."""
    launch_ns: float
    """What the runtime adds to an execution; in its own benchmark's figures, in no profile."""

    rates: Mapping[str, Rate] = field(repr=False)
    """Elementwise opcodes by name; `opcode@engine` wins over `opcode`, and so does an operator's `op@engine`. Each has
    a source of its own."""
    sources: Mapping[str, Source] = field(repr=False, compare=False)
    """By field name."""

    @property
    def calibrated(self) -> bool:
        """Does any number rest on a measurement of this generation?"""
        return any(source.confidence in ("measured", "fitted") for source in self.sources.values())

    @property
    def dma_plain_issue_ns(self) -> float:
        """Between two transfers of whole tiles that name no queue."""
        if self.dma_plain_descriptors == "prepared":
            return self.dma_prepared_issue_ns
        return self.dma_software_issue_ns + self.partitions * self.dma_software_descriptor_ns

    def clock_ghz(self, engine: str) -> float:
        return {
            "tensor": self.tensor_clock_ghz,
            "vector": self.vector_clock_ghz,
            "scalar": self.scalar_clock_ghz,
            "gpsimd": self.gpsimd_clock_ghz,
        }[engine]

    # What follows is NKIBench's "peak", the numbers a percent of peak is computed from.

    @property
    def matmul_bf16_flops_per_ns(self) -> float:
        """78.6 TFLOP/s on trn2; multiply and add counted separately."""
        return 2 * self.tensor_rows * self.tensor_columns * self.tensor_clock_ghz

    @property
    def matmul_fp32_flops_per_ns(self) -> float:
        """19.66 TFLOP/s on trn2."""
        return self.matmul_bf16_flops_per_ns / self.tensor_fp32_passes

    @property
    def vector_pool_ops_per_ns(self) -> float:
        """276.5 G operations/s on trn2: one per lane and cycle on Vector and on Scalar."""
        return self.partitions * (self.vector_clock_ghz + self.scalar_clock_ghz)

    @property
    def dma_bytes_per_ns(self) -> float:
        """435 GB/s on trn2: all engines together."""
        return self.dma_engines * self.dma_engine_bytes_per_ns

    @property
    def dma_latency_ns(self) -> float:
        """From a transfer's issue to what it moved being usable, beside its bytes: no kernel is without."""
        return self.dma_start_ns + self.dma_spread_ns + self.dma_completion_ns

    @property
    def cold_start_ns(self) -> float:
        """What a cold Tensor engine loses at least: only until data arrive may products of zeros warm it."""
        return max(0.0, self.throttle_window_ns - self.dma_latency_ns) * (1 - 1 / self.throttle_factor)


# --- instruction rates ----------------------------------------------------------------------------

_COPIES = Source("M21, M22: one cycle per element", "measured")
_SCALARS = Source("M24: one cycle per element, less the performance mode", "measured")
_SUMS = Source("M23: one cycle per element", "measured")
_FUNCTIONS = Source("M01, M02, M19, M20: one cycle per element", "measured")
_PAIRS = Source("C04, C06-C18: one cycle per element, half of what was published", "fitted")
_SLOW = Source("NKI isa pages of SDK v2.26.1; above one cycle per element, which M and C rows confirm of none", "prior")
_UNPUBLISHED = Source("not published; like its kin", "prior")
_GPSIMD = Source("not published; 150 cycles to start a GpSimd program, then one element per cycle", "prior")

_LIKE_A_SCAN = Source("not published; each element waits for the one before, as tensor_tensor_scan", "prior")
_ACROSS_PARTITIONS = Source("not published; a program that reads once and halves 128 partitions 7 times", "prior")

_RATES_V2_26 = {
    # SDK v2.26.1 nki.isa pages: "max(64, N) cycles" unless said
    "tensor_copy": Rate(source=_COPIES),
    "tensor_scalar": Rate(source=_SCALARS),
    "tensor_tensor": Rate(source=_PAIRS),
    "scalar_tensor_tensor": Rate(source=_PAIRS),
    "tensor_reduce": Rate(source=_SUMS),
    "tensor_scalar_reduce": Rate(fixed=64),
    "tensor_scalar_cumulative": Rate(per_element=2, source=_LIKE_A_SCAN),
    "tensor_tensor_scan": Rate(per_element=2, source=_SLOW),
    "select_reduce": Rate(per_element=2, source=_UNPUBLISHED),
    "tensor_copy_predicated": Rate(per_element=2, source=_SLOW),
    "range_select": Rate(),
    "memset": Rate(),
    "reciprocal": Rate(per_element=8, source=_SLOW),
    "bn_stats": Rate(),
    "bn_aggr": Rate(per_element=13 / 3, source=_SLOW),
    "max8": Rate(),
    "nc_find_index8": Rate(),
    "nc_match_replace8": Rate(),
    "nc_stream_shuffle": Rate(),
    "nc_transpose": Rate(),
    "dropout": Rate(),
    "rng": Rate(source=_UNPUBLISHED),
    "exponential": Rate(per_element=0.25, source=_UNPUBLISHED),
    "quantize_mx": Rate(source=_UNPUBLISHED),
    "activation": Rate(source=_FUNCTIONS),
    "activate2": Rate(source=_UNPUBLISHED),
    "activation_reduce": Rate(fixed=64),
    "activation+reduce": Rate(fixed=64),
    "affine_select": Rate(fixed=150, minimum=1),
    "iota": Rate(fixed=150, minimum=1),
    "local_gather": Rate(fixed=150, minimum=1, source=_GPSIMD),
    "nc_n_gather": Rate(fixed=150, minimum=1, source=_GPSIMD),
    "tensor_partition_reduce": Rate(per_element=8, fixed=150, minimum=1, source=_ACROSS_PARTITIONS),
    "nonzero_with_count": Rate(fixed=150, minimum=1, source=_GPSIMD),
    "sequence_bounds": Rate(fixed=150, minimum=1, source=_GPSIMD),
    "topk": Rate(
        per_element=4, minimum=1, source=Source("NKI isa pages of SDK 2.32, topk; results not counted", "prior")
    ),
    "set_rng_seed": Rate(source=_UNPUBLISHED),
    "rand_set_state": Rate(source=_UNPUBLISHED),
    "rand_get_state": Rate(source=_UNPUBLISHED),
    "rand2": Rate(per_element=0.25, source=_UNPUBLISHED),
    "tensor_copy@gpsimd": Rate(fixed=150, minimum=1, source=_GPSIMD),
    "tensor_scalar@gpsimd": Rate(fixed=150, minimum=1, source=_GPSIMD),
    "tensor_tensor@gpsimd": Rate(fixed=150, minimum=1, source=_GPSIMD),
    "memset@gpsimd": Rate(fixed=150, minimum=1, source=_GPSIMD),
    "rng@gpsimd": Rate(fixed=150, minimum=1, source=_GPSIMD),
    # an operator that is slower than its instruction; reciprocal: 8N, and no word of rsqrt on Vector
    "reciprocal@vector": Rate(per_element=8),
    "rsqrt@vector": Rate(per_element=8, source=_UNPUBLISHED),
    "reciprocal@gpsimd": Rate(per_element=4, fixed=150, minimum=1, source=_GPSIMD),
    "rsqrt@gpsimd": Rate(per_element=4, fixed=150, minimum=1, source=_GPSIMD),
}


def _elsewhere(source: Source) -> Source:
    """On another generation: what was measured or fitted on trn2 is a guess there."""
    kept = source.confidence in ("documented", "contested")
    return Source(f"as on trn2: {source.text}", source.confidence if kept else "prior")


def _rates_elsewhere(rates: Mapping[str, Rate]) -> dict[str, Rate]:
    return {name: replace(rate, source=_elsewhere(rate.source)) for name, rate in rates.items()}


_RATES_TRN1 = {
    **_rates_elsewhere(_RATES_V2_26),
    "tensor_tensor": Rate(per_element=2),
    "scalar_tensor_tensor": Rate(per_element=2),
}


# --- constants, each with its source --------------------------------------------------------------

Table = Mapping[str, tuple[object, str, Confidence]]
"""Field name to value, source and confidence."""

_ARCH1 = "Trainium architecture guide"
_ARCH2 = "Trainium2 architecture guide"
_ARCH3 = "Trainium3 architecture guide"
_PAGES = "NKI isa pages of SDK 2.32"
_TILE_SIZE = "NKI language guide, tile_size"
_TABLE = ("NKI isa pages of SDK v2.26.1, last published cycle formulas", "documented")
_SBUF = "nkipy HardwareConstants.h: physical size less the compiler's share"
_TARGETS = "nki.jit API page, NEURON_PLATFORM_TARGET_OVERRIDE"

_EVERY: Table = {
    # of the instruction set and of every machine
    "partitions": (128, _ARCH1 + ", unchanged since", "documented"),
    "psum_banks": (8, _ARCH1 + ", unchanged since", "documented"),
    "psum_bank_bytes": (2048, _ARCH1 + ", unchanged since", "documented"),
    "tensor_rows": (128, _ARCH1 + ", unchanged since", "documented"),
    "tensor_columns": (128, _ARCH1 + ", unchanged since", "documented"),
    "stationary_fmax": (128, _TILE_SIZE, "documented"),
    "moving_fmax": (512, _TILE_SIZE + "; all that v2 and v3 accept", "documented"),
}

_ISA: Table = {
    **_EVERY,
    "quadrant_partitions": (32, "NKI language guide, start partitions; nc_stream_shuffle", "documented"),
    "access_pattern_free_dims": (4, _ARCH1 + ", data access; NKI access patterns", "documented"),
    "access_pattern_least_stride": (-32_768, _ARCH1 + ", data access: int16 elements", "documented"),
    "access_pattern_most_stride": (32_767, _ARCH1 + ", data access: int16 elements", "documented"),
    "access_pattern_elements": (65_536, _ARCH1 + ": 64K elements of SBUF", "documented"),
    "psum_align_bytes": (4, _TILE_SIZE, "documented"),
    "sbuf_align_bytes": (1, _TILE_SIZE, "documented"),
    "tensor_tile_sizes": ((32, 64, 128), _PAGES + ", nc_matmul, tiling mode", "documented"),
    "vector_transpose_fmax": (32, _PAGES + ", nc_transpose", "documented"),
    "bn_stats_fmax": (512, _TILE_SIZE, "documented"),
    "search_fmin": (8, _PAGES + ", max8", "documented"),
    "search_fmax": (16_384, _PAGES + ", max8", "documented"),
    "gpsimd_core_partitions": (16, _ARCH1 + ": eight cores of 16 lanes", "documented"),
    "local_gather_indices": (4096, _PAGES + ", local_gather", "documented"),
    "local_gather_run_sizes": ((1, 2, 4, 8, 16, 32), _PAGES + ", local_gather", "documented"),
    "topk_fmin": (8, _PAGES + ", topk", "documented"),
    "topk_fmax": (65_535, _PAGES + ", topk", "documented"),
    "topk_results": (32_767, _PAGES + ", topk", "documented"),
    "dma_compute_sources": (16, _PAGES + ", dma_compute", "documented"),
    "dma_transpose_columns": (128, _PAGES + ", dma_transpose", "documented"),
    "dma_transpose_item_bytes": (2, _PAGES + ", dma_transpose", "documented"),
    "logical_core_cores": (2, "Logical NeuronCore configuration: LNC is 1 or 2", "documented"),
}

_TRN2_OWN: Table = {
    "neuron_core_version": (3, _ARCH2, "documented"),
    "targets": (("trn2", "gen3"), _TARGETS, "documented"),
    "cores_per_device": (8, "Neuron documentation, trainium2.rst", "documented"),
    "device_hbm_bytes": (96 << 30, _ARCH2 + ": 96 GiB", "documented"),
    "sbuf_partition_bytes": (212_984, _SBUF, "documented"),
    "sbuf_physical_partition_bytes": (224 << 10, _ARCH2 + ": 224 KiB", "documented"),
    "hbm_bytes_per_ns": (716.0, "profiler MBU of the matmul tutorial (C01: 272 GB/s = 38.06 %)", "measured"),
    "hbm_sustained": (0.844, "G003: 1,250 MB in 2,070 us, two cores: 604 of 716 bytes/ns", "fitted"),
    "tensor_clock_ghz": (2.4, _ARCH2, "documented"),
    "tensor_min_cycles": (64, _TABLE[0], "documented"),
    "tensor_fp32_passes": (4, _ARCH2 + "; M17: 859 ns for 512 columns", "documented"),
    "tensor_fp32_transpose_passes": (2, _ARCH2 + ", transpose mode; M26: 271 ns for 128 columns", "documented"),
    "tensor_double_row": (True, _ARCH2, "documented"),
    "stationary_columns_per_cycle": (1.86, "M25: 191 - 105 ns = three more passes of 128 columns", "fitted"),
    "stationary_latency_ns": (76.3, "M25: 105 ns less one pass of 128 columns", "fitted"),
    "tensor_pass_ns": (1.45, "M17: 859 ns less four passes of 512 columns", "fitted"),
    "tensor_tile_slowdown": (
        1.0,
        "nki.isa.nc_matmul, tiling mode: row tiles run in parallel; its table: column 0, size 128; no row has one",
        "contested",
    ),
    "tensor_wait_ns": (64.0, "A001-A075, C001-C047, N031-N037: order and spacing of the settings", "fitted"),
    "tensor_latency_ns": (163.0, "M26: 271 ns less two passes of 128 columns", "fitted"),
    "throttle_factor": (2.0, "Neuron Explorer guide: about half speed while cold", "documented"),
    "throttle_window_ns": (4000.0, "Neuron Explorer guide: about 3 us; K010, K011: 3.5 us do not, 7 do", "fitted"),
    "throttle_warming": (0.75, "K007-K010: work on half of the rows does not; N034, N038 agree", "prior"),
    "throttle_utilization": (0.505, "Neuron Explorer guide: 50 %; K011-K013: 1.5 us are lacking after 300", "fitted"),
    "throttle_lacking_ns": (1500.0, "Neuron Explorer guide: less than 50 % of about 3 us", "documented"),
    "vector_clock_ghz": (0.96, _ARCH2, "documented"),
    "scalar_clock_ghz": (1.2, _ARCH2, "documented"),
    "gpsimd_clock_ghz": (1.2, _ARCH2, "documented"),
    "vector_issue_cycles": (20.0, "K031: at most 29 ns besides the elements", "fitted"),
    "vector_psum_issue_cycles": (65.0, "Q073-Q090, K = 256: 617 ns per 512 columns added", "fitted"),
    "scalar_issue_cycles": (64.0, "least issue interval in the published formulas", "prior"),
    "gpsimd_issue_cycles": (0.0, "contained in the 150 cycles of its programs", "prior"),
    "vector_latency_ns": (136.0, "M22, M23: 157 ns beside one element per cycle, less issue", "fitted"),
    "scalar_latency_ns": (104.0, "M21: 157 ns beside one element per cycle, less issue", "fitted"),
    "scalar_function_latency_ns": (232.0, "M01, M02, M19, M20: 285 ns beside one element per cycle", "fitted"),
    "gpsimd_latency_ns": (100.0, "like Vector", "prior"),
    "vector_perf_copy_16bit": (4.0, _ARCH2 + ", Vector performance mode", "documented"),
    "vector_perf_copy_16bit_slow": (2.0, _ARCH2 + ", Vector performance mode", "documented"),
    "vector_perf_copy_32bit": (1.65, "M24: 481 ns for 512 elements; 256 bytes wide, so 2 at most", "fitted"),
    "vector_perf_tensor_16bit": (2.0, _ARCH2 + ", Vector performance mode", "documented"),
    "stride_limit_bytes": (16, _ARCH1 + ", access pattern: SBUF and PSUM", "documented"),
    "stride_slowdown": (2.0, _ARCH1 + ", access pattern: each read or write interface", "documented"),
    "dynamic_min_cycles": (
        600.0,
        "NKI isa pages of SDK v2.26.1, tensor_copy_dynamic_src: MIN_II_DYNAMIC",
        "documented",
    ),
    "activation_table_load_ns": (1283.0, "M03", "measured"),
    "vector_gpsimd_share_port": ("perf modes", _ARCH2 + ", data movement updates", "documented"),
    "vector_scalar_share_psum": (False, _ARCH2 + ", data movement updates", "documented"),
    "dma_engines": (16, "NKI DMA bandwidth guide", "documented"),
    "partitions_per_dma_engine": (8, "NKI DMA bandwidth guide", "documented"),
    "dma_engine_bytes_per_ns": (27.2, "profiler metadata dma_ddr_bandwidth, 435 GB/s over 16; M27", "documented"),
    "dma_sustained": (0.955, "C06-C18: centre of the AdamW sweep", "fitted"),
    "dma_row_ns": (7.0, "M27: 8 ns for 4 bytes, 157 ns for 4096", "fitted"),
    "hbm_access_bytes": (64, "two bursts of 32 bytes, as memory with error correction has it", "prior"),
    "dma_unaligned_row_ns": (12.0, "C09, C15: 12.4 and 11.5 ns a row beside C07, C08, C11, C14, C17", "fitted"),
    "dma_cut_bytes": (512, "least efficient row of older DMA guides", "prior"),
    "dma_start_ns": (736.0, "M05 less M04 and completion", "fitted"),
    "dma_spread_ns": (333.0, "M04: 468 ns for 2 KiB per engine, less the rows", "fitted"),
    "dma_completion_ns": (300.0, "NKI DMA overview, completion to consumer", "measured"),
    "dma_hardware_start_ns": (200.0, "N004, N005, N014, N015: 1.6 us less than with software", "fitted"),
    "dma_software_start_ns": (500.0, "L001-L004, Q067-Q090", "fitted"),
    "dma_prepared_issue_ns": (60.0, "K025: 8,192 transfers of 512-byte rows in 1.4 ms on two queues", "fitted"),
    "dma_hardware_issue_ns": (600.0, _ARCH2 + ": about 600 ns", "documented"),
    "dma_software_issue_ns": (115.0, "S003-S005: 128 transfers of one row", "fitted"),
    "dma_software_descriptor_ns": (4.2, "Q067-Q090: 0.65 us for 128 rows; M08-M12: 0.73 us", "fitted"),
    "dma_plain_descriptors": ("software", "trn2_device: plain dma_copy of NKI 0.6", "measured"),
    "dma_transpose_efficiency": (0.9, "NKI DMA bandwidth guide: HBM to SBUF at most 90 %", "documented"),
    "dma_transpose_onchip_efficiency": (0.5, "NKI DMA bandwidth guide: SBUF to SBUF at most 50 %", "documented"),
    "dma_transpose_4byte_slowdown": (
        4.0,
        _PAGES + ", dma_transpose: 2 and 4 bytes, hardware descriptors 2 alone; a Beta 1 compiler crashed on 4",
        "contested",
    ),
    "dma_accumulate_efficiency": (0.5, "Trainium3 architecture guide, of earlier generations", "documented"),
    "renames_tiles": (True, "Q096, Q099: a tile filled in every pass is as fast as a new one", "measured"),
    "reload_window_bytes": (106_492, "L001, Q067-Q072: half of SBUF; C01 reloads from further", "fitted"),
    "reorder_reach": (64, "K030, K031: an engine's waits are filled by the next iteration; 16 to 256 alike", "prior"),
    "tensor_runs_ahead": (False, "trn2_device, heads_loop: 3.1 us a head of 96 x 32, in program order", "measured"),
    "profiler_ns": (10_000.0, "A001-D010: what all settings share; N001: profiled 22.3 us, run 7.2 us", "fitted"),
    "profiler_transfer_ns": (90.0, "C001-C003 (profiled) 0.74 us, Q067-Q090 (run) 0.65 us", "fitted"),
    "register_access_ns": (640.0, "published TENSOR_LOAD durations, 640-930 ns", "measured"),
    "scalar_arithmetic_ns": (640.0, "not published; no more than a register access", "prior"),
    "barrier_ns": (1300.0, "like a DMA semaphore", "prior"),
    "launch_ns": (
        10_560.0,
        "runtime device benchmark: a straight line over repeats cuts the axis at 10.56 us",
        "measured",
    ),
    "rates": (_RATES_V2_26, _TABLE[0] + "; tensor_tensor and scalar_tensor_tensor at N per C06-C18", "documented"),
}

_TRN2: Table = {**_EVERY, **_TRN2_OWN}


def _as_on_trn2() -> Table:
    """For another generation."""
    found: dict[str, tuple[object, str, Confidence]] = {}
    for key, (value, text, confidence) in _TRN2_OWN.items():
        source = _elsewhere(Source(text, confidence))
        found[key] = (value, source.text, source.confidence)
    found["rates"] = (_rates_elsewhere(_RATES_V2_26), *found["rates"][1:])
    return found


_TRN1: Table = {
    **_EVERY,
    **_as_on_trn2(),
    "neuron_core_version": (2, _ARCH1, "documented"),
    "targets": (("trn1", "inf2", "gen2"), _TARGETS, "documented"),
    "cores_per_device": (2, "Neuron documentation, trainium.rst", "documented"),
    "device_hbm_bytes": (32 << 30, "Neuron documentation, trainium.rst: 32 GiB", "documented"),
    "sbuf_partition_bytes": (180_224, _SBUF, "documented"),
    "sbuf_physical_partition_bytes": (192 << 10, _ARCH1 + ": 192 KiB", "documented"),
    "hbm_bytes_per_ns": (410.0, _ARCH1 + ": 820 GB/s for two cores", "documented"),
    "tensor_clock_ghz": (2.8, _ARCH1, "documented"),
    "vector_clock_ghz": (1.12, _ARCH1, "documented"),
    "scalar_clock_ghz": (1.4, _ARCH1, "documented"),
    "gpsimd_clock_ghz": (1.4, _ARCH1, "documented"),
    "tensor_fp32_transpose_passes": (4, _ARCH1 + ": no transpose mode", "documented"),
    "tensor_double_row": (False, _ARCH1, "documented"),
    "throttle_factor": (1.0, "none documented", "documented"),
    "vector_perf_copy_16bit": (1.0, _ARCH1 + ": no performance mode", "documented"),
    "vector_perf_copy_16bit_slow": (1.0, _ARCH1 + ": no performance mode", "documented"),
    "vector_perf_copy_32bit": (1.0, _ARCH1 + ": no performance mode", "documented"),
    "vector_perf_tensor_16bit": (2.0, "published formulas: N instead of 2N when all is bf16", "documented"),
    "vector_gpsimd_share_port": ("always", _ARCH1, "documented"),
    "vector_scalar_share_psum": (True, _ARCH1, "documented"),
    "dma_plain_descriptors": ("prepared", _ARCH1 + ": no descriptor generation", "prior"),
    "dma_engine_bytes_per_ns": (17.0, "NKI DMA bandwidth guide", "documented"),
    "rates": (_RATES_TRN1, _TABLE[0], "documented"),
}

_TRN3: Table = {
    **_EVERY,
    **_as_on_trn2(),
    "neuron_core_version": (4, _ARCH3, "documented"),
    "targets": (("trn3", "gen4"), _TARGETS, "documented"),
    "cores_per_device": (8, "Neuron documentation, trainium3.rst", "documented"),
    "device_hbm_bytes": (144 << 30, _ARCH3 + ": 144 GiB", "documented"),
    "sbuf_partition_bytes": (245_752, _SBUF, "documented"),
    "sbuf_physical_partition_bytes": (256 << 10, _ARCH3 + ": 32 MiB over 128 partitions", "documented"),
    "hbm_bytes_per_ns": (1175.0, _ARCH3 + ": 4.7 TB/s for eight cores, two per stack", "documented"),
    "vector_clock_ghz": (1.2, _ARCH3, "documented"),
    "dma_engine_bytes_per_ns": (33.0, "NKI DMA bandwidth guide", "documented"),
    "dma_accumulate_efficiency": (1.0, _ARCH3 + ": near-memory accumulation", "documented"),
}


def _filled(kind: type[Any], table: Table, **named: str) -> Any:
    """An object of `kind` with the table's values and sources. Raises ValueError for a field left out or unknown."""
    wanted = {f.name for f in fields(kind)} - {"sources", *named}
    if wanted != set(table):
        raise ValueError(f"{kind.__name__} {named}: {sorted(wanted ^ set(table))} are missing or unknown")
    sources = {key: Source(text, confidence) for key, (_, text, confidence) in table.items()}
    return kind(**named, sources=sources, **{key: value for key, (value, _, _) in table.items()})


ISA: InstructionSet = _filled(InstructionSet, _ISA)

TRN1: Machine = _filled(
    Machine,
    _TRN1,
    name="trn1",
    product="Trainium1",
    calibration="not calibrated: no measured trn1 latency went into it; documented rates, the rest as on trn2",
)
TRN2: Machine = _filled(
    Machine,
    _TRN2,
    name="trn2",
    product="Trainium2",
    calibration="calibrated: fitted to published trn2 measurements, 276 whole kernels and 20 micro rows",
)
TRN3: Machine = _filled(
    Machine,
    _TRN3,
    name="trn3",
    product="Trainium3",
    calibration="not calibrated: no measured trn3 latency went into it; documented rates, the rest as on trn2",
)

MACHINES: Mapping[str, Machine] = {machine.name: machine for machine in (TRN1, TRN2, TRN3)}
"""Oldest first."""
DEFAULT_MACHINE = "trn2"
"""What kernels are traced for when nobody says otherwise."""
TARGETS: Mapping[str, str] = {target: machine.name for machine in MACHINES.values() for target in machine.targets}
"""Name in NEURON_PLATFORM_TARGET_OVERRIDE to machine."""

SIMULATED_VERSION = 3
"""The newest NeuronCore whose instructions and dtypes are simulated. A newer machine runs those, at its own rates;
what only it has can be named, not run."""


def compiled_by_beta1(core: Machine) -> Machine:
    """The generation as the compiler of NKI's first beta (`neuronxcc.nki`) used it.

    It renamed nothing, let TensorE run ahead into any gap, and its instructions that read PSUM issued as fast as
    others: with 65 cycles each, row K031 would have been 6 % faster than Vector can be.
    """
    return replace(core, renames_tiles=False, tensor_runs_ahead=True, vector_psum_issue_cycles=core.vector_issue_cycles)


def machine(name: str) -> Machine:
    """Raises KeyError naming the known generations."""
    if name not in MACHINES:
        raise KeyError(f"no machine {name!r}: one of {', '.join(MACHINES)}")
    return MACHINES[name]


def first_with(neuron_core_version: int) -> str:
    """For messages: the oldest machine of at least that version, e.g. `trn3 (NeuronCore-v4)`."""
    found = next(each for each in MACHINES.values() if each.neuron_core_version >= neuron_core_version)
    return f"{found.name} (NeuronCore-v{found.neuron_core_version})"
