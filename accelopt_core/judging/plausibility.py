"""Whether a measurement can be true: arithmetic over what the task needs, what the profiler counted and the time.

Every rule leaves room for what an honest kernel may do (another algorithm, code without effect that the compiler
drops, a profiler that misses events), and every verdict shows its numbers. Nothing is concluded from few HBM bytes:
without DGE notifications, which can overflow, the profiler does not see dynamic transfers (aws-neuron-sdk,
tools/neuron-explorer/troubleshooting.rst, "DMA results may not be accurate").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accelopt_core.evaluation import busy_fields
from accelopt_core.task import Task
from accelopt_core.toolchain import Facts, MachineModel, Traced

OWN_BOUND_SLACK = 0.999
"""Of what a kernel's own instructions need at least; the rest is rounding."""

WORK_SLACK = 0.9
"""Of the time that the needed matrix products take at the machine's fastest rate."""

TRAFFIC_SLACK = 0.5
"""Of the time that the declared traffic takes at the DMA rate: some inputs need not be read to the end."""

COUNTED_SLACK = 0.5
"""Of the needed FLOPs must have been counted. None counted at all says nothing: the profiler is known to lose
Tensor Engine events with certain workloads (troubleshooting.rst)."""

BUSY_SLACK, BUSY_SLACK_US = 1.25, 5.0
"""An engine may seem this much busier than the execution was long: the two come from different clocks."""


def contradiction(
    task: Task, facts: Facts, traced: Traced | None, latency_us: float, machine: MachineModel
) -> str | None:
    """The first reason, with the arithmetic, why this latency cannot be that of a kernel that does the task's work."""
    if not latency_us > 0:
        return f"a latency of {latency_us} µs: nothing was executed"
    for rule in (_own_instructions, _declared_traffic):
        found = rule(task, facts, latency_us, machine)
        if found is not None:
            return found
    needed = needed_flops(task, traced)
    return _needed_flops(task, facts, needed, latency_us, machine) or _busy_times(facts)


def needed_flops(task: Task, traced: Traced | None) -> int:
    """FLOPs of matrix products that must have been executed: what the task declares or, if less, the source does.

    A kernel that saves some by algebra is held to its own count, one with products of no effect to the task's. Where
    either is not known, nothing is: 0.
    """
    own = traced.matmul_flops if traced is not None else None
    declared = task.full.work.matmul_flops if task.full.work is not None else None
    return 0 if own is None or declared is None else min(own, declared)


def _own_instructions(task: Task, facts: Facts, latency_us: float, machine: MachineModel) -> str | None:
    floor = facts.resource_bound_us
    if floor is None or latency_us >= OWN_BOUND_SLACK * floor:
        return None
    return (
        f"{latency_us:,.1f} µs is below the {floor:,.1f} µs that its own instructions need at least on {machine.name}"
    )


def _declared_traffic(task: Task, facts: Facts, latency_us: float, machine: MachineModel) -> str | None:
    if task.full.work is None:
        return None
    rate = machine.memory_bytes_per_ns
    least_us = task.full.work.hbm_bytes / rate / 1e3
    if latency_us >= TRAFFIC_SLACK * least_us:
        return None
    return (
        f"{latency_us:,.1f} µs is below {TRAFFIC_SLACK:g} of the {least_us:,.1f} µs that the "
        f"{task.full.work.hbm_bytes:,} bytes declared by the task take at {rate:,.0f} GB/s on {machine.name}"
    )


def _needed_flops(task: Task, facts: Facts, needed: int, latency_us: float, machine: MachineModel) -> str | None:
    rate = max(machine.matmul_flops_per_ns(task.precision), machine.fastest_flops_per_ns)
    least_us = needed / rate / 1e3
    if latency_us < WORK_SLACK * least_us:
        return (
            f"{latency_us:,.1f} µs is below {WORK_SLACK:g} of the {least_us:,.1f} µs that {needed:,} FLOPs of matrix "
            f"products take at {rate / 1e3:,.1f} TFLOP/s, the most of {machine.name}"
        )
    counted = facts.counted_flops
    if counted is not None and 0 < counted < COUNTED_SLACK * needed:
        return (
            f"the profiler counts {counted:,} FLOPs of matrix products in the timed execution, {counted / needed:.3f} "
            f"of the {needed:,} that the source traces to and the task needs"
        )
    return None


def _busy_times(facts: Facts) -> str | None:
    total_us = 1e6 * facts.fields.get("total_time", 0.0)
    if not total_us > 0:
        return None
    for name in busy_fields(facts.fields).values():
        busy_us = 1e6 * facts.fields[name]
        if busy_us > BUSY_SLACK * total_us + BUSY_SLACK_US:
            return f"{name} is {busy_us:,.1f} µs in an execution of {total_us:,.1f} µs: one of them is wrong"
    return None


def one_value(got: np.ndarray, expected: np.ndarray) -> str | None:
    """For an output of one value only, NaN included, where the reference has several."""
    if got.size < 2 or got.shape != expected.shape or not np.isfinite(expected).any():
        return None
    if expected.min() == expected.max():
        return None
    value = got.reshape(-1)[0]
    if np.isnan(value):
        same = bool(np.isnan(got).all())
        return "every element of the output is NaN: nothing was written, or all of it is 0/0" if same else None
    if not np.isfinite(value) or not (got == value).all():
        return None
    return f"every element of the output is {float(value):g}, whatever the inputs are"


def same_bits(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    return len(first) == len(second) and first_changed(first, second) is None


def first_changed(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> int | None:
    """The number of the first array of which there are other bits in `second`."""
    return next((number for number, pair in enumerate(zip(first, second)) if not _same(*pair)), None)


_BLOCK = 1 << 20
"""Bytes compared at a time: copies of two outputs may be gigabytes."""


def _same(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether their elements are the same bytes in the same order, whatever their shapes."""
    if one.nbytes != two.nbytes:
        return False
    a, b = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, two))
    return all(np.array_equal(a[at : at + _BLOCK], b[at : at + _BLOCK]) for at in range(0, a.size, _BLOCK))
