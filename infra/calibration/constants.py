"""The constants that a user's device decides: where each lives, which kernels show it, how far it may be believed.

To add one: an entry of `CONSTANTS` (docs/extending.md). `NOT_MEASURED` has those that no kernel of a user's shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.calibration import dma_kernels as dma
from infra.calibration import engine_kernels as engines
from infra.calibration.held_out_kernels import HELD_OUT_KERNELS
from infra.calibration.kernel import CalibrationKernel
from nki_sim.machine import Machine
from nki_sim.timing.calibration import constant_of


@dataclass(frozen=True)
class Constant:
    """One number of a machine that kernels can tell."""

    name: str
    """As `nki_sim.timing.calibration` names it."""
    what: str
    """For people, with its unit."""
    shown_by: CalibrationKernel
    """Its kernel: the difference to `beside` is a straight line in this constant, or close to one."""
    beside: CalibrationKernel | None
    """The same without it, or with less of it; so what the two have in common cancels. None: every kernel has it."""
    least: float
    most: float
    """Of what is plausible. A device that seems to want more was disturbed, or is not as the model has it."""
    steps: bool = False
    """Kernels answer it in steps, or not at all beyond some value, or it is a whole number: values are tried."""
    confirmed_by: tuple[CalibrationKernel, ...] = ()
    """Measured besides, so that one disturbed kernel does not decide alone."""
    also: tuple[str, ...] = ()
    """Constants of the same kind that no kernel tells apart: changed in proportion."""

    @property
    def kernels(self) -> tuple[CalibrationKernel, ...]:
        """Without these it is not decided."""
        return (self.shown_by,) if self.beside is None else (self.shown_by, self.beside)

    def within(self, value: float) -> float:
        return min(self.most, max(self.least, value))

    def values(self, core: Machine, value: float) -> dict[str, float]:
        """This constant at `value`, and those that go with it."""
        factor = value / constant_of(core, self.name)
        return {self.name: value, **{name: factor * constant_of(core, name) for name in self.also}}


def _per_element(*opcodes: str) -> tuple[str, ...]:
    return tuple(f"rates.{opcode}.per_element" for opcode in opcodes)


_TWO_OPERANDS = _per_element("tensor_tensor", "scalar_tensor_tensor")
_ACTIVATIONS = _per_element("activation", "activation_reduce", "activation+reduce")
_GPSIMD = _per_element("tensor_tensor@gpsimd", "tensor_copy@gpsimd", "tensor_scalar@gpsimd")
_GPSIMD_FIXED = tuple(f"rates.{op}@gpsimd.fixed" for op in ("tensor_tensor", "tensor_copy", "tensor_scalar", "memset"))

CONSTANTS: tuple[Constant, ...] = (
    # transfers
    Constant("dma_sustained", "share of the DMA engines' rate", dma.WIDE_LOADS, dma.NOTHING, 0.3, 1.0),
    Constant(
        "dma_hardware_issue_ns", "ns a transfer on sync, scalar", dma.SYNC_LOADS, dma.NOTHING, 100, 3000,
        confirmed_by=(dma.SCALAR_LOADS,),
    ),
    Constant("dma_row_ns", "ns a contiguous row", dma.SHORT_ROWS, dma.NOTHING, 0.5, 60),
    Constant("dma_hardware_start_ns", "ns to the first byte, on sync, scalar", dma.ONE_TILE, dma.HOPS, 20, 5000),
    Constant("dma_spread_ns", "ns from the first engine to the last", dma.HOPS, dma.NARROW_HOPS, 30, 3000),
    Constant("dma_completion_ns", "ns from the last byte to a reader", dma.NARROW_HOPS, dma.NOTHING, 30, 3000),
    Constant("profiler_ns", "ns that a profile adds to a kernel", dma.NOTHING, None, 200, 60_000),
    Constant("dma_software_descriptor_ns", "ns a descriptor on gpsimd", dma.GPSIMD_LOADS, dma.ONE_ROW, 0.2, 60),
    Constant("dma_software_issue_ns", "ns a transfer on gpsimd besides", dma.ONE_ROW, dma.NOTHING, 10, 3000),
    Constant("dma_software_start_ns", "ns to the first byte, on gpsimd", dma.GPSIMD_HOPS, dma.NOTHING, 20, 5000),
    Constant("dma_prepared_issue_ns", "ns a transfer, descriptors in memory", dma.PREPARED_LOADS, dma.NOTHING, 8, 3000),
    Constant("dma_start_ns", "ns to the first byte, the same", dma.PREPARED_HOPS, dma.NOTHING, 20, 5000),
    # Vector
    Constant(
        _TWO_OPERANDS[0], "Vector cycles an element, two operands", engines.VECTOR_WIDE, engines.VECTOR_NARROW, 0.2, 4,
        also=_TWO_OPERANDS[1:],
    ),
    Constant("vector_issue_cycles", "Vector cycles an instruction", engines.VECTOR_NARROW, dma.NOTHING, 8, 400),
    Constant("vector_latency_ns", "ns to a reader of Vector", engines.VECTOR_CHAIN, engines.VECTOR_NARROW, 10, 900),
    Constant(
        "vector_perf_copy_32bit", "Vector's speed-up, one operand in SBUF", engines.VECTOR_FAST, dma.NOTHING, 0.5, 8
    ),
    Constant(
        "rates.tensor_copy.per_element", "cycles an element from PSUM", engines.VECTOR_EVICTIONS, dma.NOTHING, 0.2, 4,
        confirmed_by=(engines.SCALAR_EVICTIONS,),
    ),
    Constant(
        "rates.tensor_reduce.per_element", "Vector cycles an element summed", engines.ROW_SUMS, dma.NOTHING, 0.2, 4
    ),
    Constant(
        "rates.tensor_tensor_scan.per_element", "Vector cycles an element scanned", engines.VECTOR_SCAN, dma.NOTHING,
        0.4, 10,
    ),
    # Scalar
    Constant(
        _ACTIVATIONS[0], "Scalar cycles an element", engines.SCALAR_WIDE, engines.SCALAR_NARROW, 0.2, 4,
        also=_ACTIVATIONS[1:],
    ),
    Constant("scalar_issue_cycles", "Scalar cycles an instruction", engines.SCALAR_NARROW, dma.NOTHING, 8, 400),
    Constant(
        "scalar_function_latency_ns", "ns to a reader of an activation", engines.SCALAR_CHAIN, engines.SCALAR_NARROW,
        20, 1500,
    ),
    Constant("scalar_latency_ns", "ns to a reader of Scalar's others", engines.SCALAR_COPIES, dma.NOTHING, 10, 900),
    Constant("activation_table_load_ns", "ns to load a function's table", engines.TABLES, dma.NOTHING, 200, 6000),
    # GpSimd
    Constant(
        _GPSIMD[0], "GpSimd cycles an element", engines.GPSIMD_WIDE, engines.GPSIMD_NARROW, 0.2, 8, also=_GPSIMD[1:]
    ),
    Constant(
        _GPSIMD_FIXED[0], "GpSimd cycles an instruction", engines.GPSIMD_NARROW, dma.NOTHING, 20, 900,
        also=_GPSIMD_FIXED[1:],
    ),
    Constant("gpsimd_latency_ns", "ns to a reader of GpSimd", engines.GPSIMD_CHAIN, engines.GPSIMD_NARROW, 10, 1500),
    # Tensor
    Constant("tensor_latency_ns", "ns from PSUM written to PSUM read", engines.STEPS, dma.NOTHING, 20, 1500),
    Constant(
        "tensor_pass_ns", "ns between two passes of the array", engines.PASSES, dma.NOTHING, 0.1, 30,
        confirmed_by=(engines.MORE_PASSES,),
    ),
    Constant(
        "tensor_wait_ns", "ns a product waits for each transfer", engines.FETCHED, engines.FETCHED_AT_ONCE, 2, 1000
    ),
    Constant(
        "stationary_columns_per_cycle", "columns of weights a cycle", engines.WEIGHTS, dma.NOTHING, 0.4, 8,
        confirmed_by=(engines.CLOSE_WEIGHTS,),
    ),
    Constant("throttle_factor", "slowdown of Tensor while cold", engines.COLD, engines.PAUSES, 1, 6),
    Constant(
        "throttle_utilization", "load that keeps Tensor warm", engines.COOLING, engines.COLD, 0.15, 0.95, steps=True
    ),
    # what documentation contradicts itself about
    Constant(
        "tensor_tile_slowdown", "slowdown of products side by side", engines.BOTH_HALVES, engines.ONE_HALF, 0.5, 4
    ),
    Constant(
        "dma_transpose_4byte_slowdown", "slowdown of 4-byte dma_transpose", dma.TURNED, dma.NOT_TURNED, 0.3, 200
    ),
    # what the compiler decides
    Constant(
        "reload_window_bytes", "bytes for which a loaded tile is remembered", dma.RELOADS, dma.NOTHING, 8192, 400_000,
        steps=True,
    ),
    Constant(
        "sbuf_partition_bytes", "bytes of a partition beyond which tiles spill", dma.SPILLS, dma.NOTHING, 150_000,
        250_000, steps=True,
    ),
)  # fmt: skip
"""In an order in which each can be guessed once those before it are."""

NOT_MEASURED: Mapping[str, str] = {
    "stationary_latency_ns": "what a weight load takes alone: within a kernel the product before hides it",
    "profiler_transfer_ns": "a profile shows only its sum with dma_software_issue_ns",
    "launch_ns": "the runtime's, in no profile and in no simulated latency",
    "throttle_window_ns": "documented; without it the load at which Tensor cools would mean nothing",
    "vector_psum_issue_cycles": "no kernel here keeps Vector busy with reading PSUM alone",
    "hbm_sustained": "it takes two cores to fill their stack, and these kernels run on one",
    "dma_unaligned_row_ns": "no kernel here has rows that end within what HBM moves at once",
    "stride_slowdown": "documented; what weights take to load is measured by it",
}
"""Numbers that stay as shipped although a device has them, each with why: no kernel tells them from another."""


def kernels_of(constants: Sequence[Constant] = CONSTANTS) -> tuple[CalibrationKernel, ...]:
    """What is measured to decide these constants."""
    found = [kernel for each in constants for kernel in (*each.kernels, *each.confirmed_by)]
    return tuple(dict.fromkeys(found))


def in_order_of_worth(constants: Sequence[Constant] = CONSTANTS) -> tuple[CalibrationKernel, ...]:
    """What to measure, what tells most first: where time runs out, the rest is missing and not the beginning.

    Of the kernels that are only predicted some come early, since without them nobody knows what a fit is worth.
    """
    wanted = kernels_of(constants)
    last = [kernel for each in constants for kernel in each.confirmed_by]
    first = [kernel for kernel in _FIRST if kernel in wanted]
    rest = [kernel for kernel in wanted if kernel not in (*first, *last)]
    return (*first, *HELD_OUT_KERNELS[:4], *rest, *HELD_OUT_KERNELS[4:], *last)


_FIRST = (
    dma.NOTHING, dma.HOPS, dma.SYNC_LOADS, dma.GPSIMD_LOADS, dma.ONE_ROW, dma.GPSIMD_HOPS, dma.WIDE_LOADS,
    dma.SHORT_ROWS, engines.VECTOR_WIDE, engines.VECTOR_NARROW, engines.SCALAR_WIDE, engines.SCALAR_NARROW,
    engines.VECTOR_EVICTIONS, engines.STEPS,
)  # fmt: skip
