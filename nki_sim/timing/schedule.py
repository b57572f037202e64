"""When every instruction runs: in-order engines, dependences through memory, and memory that buffers hand on.

What runs is the program as the compiler leaves it (`compiler`): loads in the order of need, some dropped,
spills added, tiles in rotation. Two times come out:

* scheduled: in that order, except that an instruction may fill an idle gap that earlier ones left on its engine, as
  the compiler's scheduler would arrange it. This is the time that ranks;
* resource bound: the busiest engine with everything else hidden behind it, at the documented rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nki_sim import machine_code
from nki_sim.contract.opcodes import meeting_rows
from nki_sim.machine import Machine
from nki_sim.program.passes import unrolled
from nki_sim.program.program import Program, collector_resting
from nki_sim.timing import schedule_pass
from nki_sim.timing.compiler.loads import order_of_need, without_repeated_loads
from nki_sim.timing.compiler.renames import with_a_tile_for_each_content
from nki_sim.timing.compiler.spills import Spill, with_spills
from nki_sim.timing.cost import RESOURCES, Cost, cost

SHARED = {"sbuf": "sbuf port", "psum": "psum port", "descriptors": "gpsimd cores"}
"""`ports` of a price to what only one user has at a time: Vector or GpSimd, Vector or Scalar, and GpSimd's cores, which
compute or write descriptors."""


@dataclass(frozen=True)
class Timeline:
    """The scheduled order, instruction by instruction, and the two times."""

    program: Program
    """What runs: without device loops, as the compiler leaves it."""
    machine: Machine
    costs: tuple[Cost, ...]
    """By template."""
    latency_us: float
    """Scheduled."""
    resource_bound_us: float
    resource_us: dict[str, float]
    """Time each resource is busy at least; `dma` is the busiest DMA engine; and what several share (SHARED)."""
    start_ns: np.ndarray
    """float64 [instructions]; of a transfer: first byte."""
    issued_ns: np.ndarray
    """float64 [instructions]; of a transfer: its queue begins to issue it; else start_ns."""
    end_ns: np.ndarray
    """float64 [instructions]; of a transfer: last byte."""
    ready_ns: np.ndarray
    """float64 [instructions]: when its operands were ready."""
    cause: np.ndarray
    """int64 [instructions]: the instruction it waited for last; -1 if none."""
    table_loads: float
    throttled_us: float
    """Time TensorE lost to its throttle."""


def schedule(program: Program, machine: Machine, meetings: Sequence[float] = ()) -> Timeline:
    """Device loops with constant bounds count with all their passes. Raises NotSupported for an opcode without a price,
    and for a loop that runs as often as a register says (see `unrolled`).

    `meetings`: ns before which this core's meetings with another do not begin, in their order (nki_sim.timing.joint).
    """
    with collector_resting():
        machine_code.counted(len(program))
        program = compiled(program, machine)
        costs = tuple(cost(template, machine) for template in program.templates)
        bound_ns, busy = resource_bound(program, costs, machine)
        held = dict(zip(meeting_rows(program).tolist(), meetings))
        found = schedule_pass.timed(program, machine, costs, held, bound_ns)
        latency_ns = max(found.latency_ns, bound_ns)
        throttled_ns = found.throttled_ns * (latency_ns / found.latency_ns if found.latency_ns else 1.0)
        return Timeline(
            program, machine, costs, latency_ns / 1e3, bound_ns / 1e3, busy, found.start, found.issued, found.end,
            found.ready, found.cause, found.table_loads, throttled_ns / 1e3,
        )  # fmt: skip


def compiled(program: Program, machine: Machine) -> Program:
    """What the compiler makes of it.

    Raises NotSupported where a device loop is too long, CapacityExceeded where one instruction's tiles do not fit.
    """
    program = with_a_tile_for_each_content(unrolled(program), machine)
    program = without_repeated_loads(program, machine)
    order = order_of_need(program)
    if (np.diff(order) != 1).any():
        program = program.with_rows(order)
    return with_spills(program, machine)


def resource_bound(program: Program, costs: Sequence[Cost], machine: Machine) -> tuple[float, dict[str, float]]:
    """(ns of the busiest resource, µs by resource): no waiting, no throttling, no table loads, no spills."""
    counts = np.bincount(program.template_ids, minlength=len(costs)).tolist()
    for number, template in enumerate(program.templates):
        if isinstance(template.attrs, Spill):
            counts[number] = 0
    busy = dict.fromkeys((*RESOURCES, "dma", *SHARED.values()), 0.0)
    engines = np.zeros(machine.dma_engines)
    for price, count in zip(costs, counts):
        for name in (price.resource, *[SHARED[port] for port in price.ports]):
            busy[name] += price.busy_ns * count
        if price.transfer is not None:
            move = price.transfer
            engines[move.first_engine : move.last_engine + 1] += move.peak_engine_ns * count
    busy["dma"] = float(engines.max()) if len(engines) else 0.0
    return max(busy.values()), {name: ns / 1e3 for name, ns in busy.items()}
