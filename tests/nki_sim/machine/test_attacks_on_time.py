"""What an attacker of the simulated time tried: the same work, written so that something is in two places at once.

Each program is the honest one's instructions in another order, or an instruction in place of one whose rate is known;
none takes less than what it holds. What else was tried is where its cause is: idle tiles and helpers in
test_text_alone.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from nki_sim.machine import TRN2
from nki_sim.profile.profile import measure
from nki_sim.program.program import Program
from nki_sim.timing.schedule import Timeline, schedule
from tests.nki_sim.machine.traced_kernels import P, filled, nisa, nl, tile, traced

NOISE = 0.005
ROUNDS = 24

Step = Callable[[], Any]


def latency_us(program: Program) -> float:
    return measure(program, TRN2).latency_us


def held_us(timeline: Timeline, holds: Callable[[Any], bool]) -> float:
    """What the instructions together take that hold something: at least so long lasts a kernel in which one at a time
    may."""
    ids = timeline.program.template_ids
    return sum(timeline.costs[each].busy_ns for each in ids if holds(timeline.costs[each])) / 1e3


def orders(one: list[Step], other: list[Step]) -> dict[str, list[Step]]:
    """Of the steps of two independent streams, each in its own order."""
    mixed = [step for pair in zip(one, other) for step in pair]
    by_chance, left, right = [], list(one), list(other)
    choose = random.Random(0)
    while left or right:
        by_chance.append((left if left and (not right or choose.random() < 0.5) else right).pop(0))
    return {"in turns": mixed, "one first": one + other, "other first": other + one, "by chance": by_chance}


def in_every_order(one: Callable[[], list[Step]], other: Callable[[], list[Step]]) -> dict[str, Program]:
    """The programs; a stream's steps are made within the kernel."""
    found = {}
    for name in orders([], []):

        def body(source: Any, result: Any, name: str = name) -> None:
            for step in orders(one(), other())[name]:
                step()
            nisa.dma_copy(dst=result, src=source)

        found[name] = traced(body)
    return found


def additions(engine: Any, columns: int = 512) -> list[Step]:
    """One after the other, on a tile of their own."""
    total, more = filled(tile(columns)), filled(tile(columns))
    return [lambda: nisa.tensor_tensor(total, total, more, nl.add, engine=engine)] * ROUNDS


def copies_in_a_performance_mode() -> list[Step]:
    """They hold the port of SBUF that GpSimd needs, too."""
    one, other = filled(tile(2048, nl.bfloat16)), tile(2048, nl.bfloat16)
    return [lambda: nisa.tensor_copy(dst=other, src=one)] * ROUNDS


def loads_by_software() -> list[Step]:
    """GpSimd writes their descriptors."""
    source = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.hbm)
    return [lambda: nisa.dma_copy(dst=tile(), src=source, dge_mode=nisa.dge_mode.swdge)] * ROUNDS


@pytest.mark.parametrize("order", orders([], []))
def test_gpsimd_does_not_compute_while_it_writes_descriptors(order: str) -> None:
    program = in_every_order(lambda: additions(nisa.engine.gpsimd), loads_by_software)[order]
    timeline = schedule(program, TRN2)
    cores = held_us(timeline, lambda cost: cost.resource in ("gpsimd", "dma.gpsimd"))
    assert cores > 20 and timeline.latency_us >= cores * (1 - 1e-9)


@pytest.mark.parametrize("order", orders([], []))
def test_vector_and_gpsimd_share_their_port_in_whatever_order_they_are_written(order: str) -> None:
    program = in_every_order(copies_in_a_performance_mode, lambda: additions(nisa.engine.gpsimd))[order]
    timeline = schedule(program, TRN2)
    port = held_us(timeline, lambda cost: "sbuf" in cost.ports)
    assert port > 20 and timeline.latency_us >= port * (1 - 1e-9)


@pytest.mark.parametrize("stores_last", [False, True])
def test_stores_written_behind_the_work_take_no_less(stores_last: bool) -> None:
    """Loads, squares, stores; all data pass the same DMA engines, whenever a store is asked for."""

    def body(source: Any, result: Any) -> None:
        squares = []
        for _ in range(ROUNDS):
            loaded, square = tile(2048), tile(2048, partitions=P)
            nisa.dma_copy(dst=loaded, src=source, engine=nisa.engine.sync)
            nisa.activation(dst=square, op=nl.square, data=loaded)
            squares.append(square)
            if not stores_last:
                nisa.dma_copy(dst=result, src=square, engine=nisa.engine.scalar)
        for square in squares if stores_last else []:
            nisa.dma_copy(dst=result, src=square, engine=nisa.engine.scalar)

    timeline = schedule(traced(body, 2048), TRN2)
    moved = sum(
        timeline.costs[n].transfer.engine_ns for n in timeline.program.template_ids if timeline.costs[n].transfer
    )
    assert moved > 20_000 and timeline.latency_us >= moved / 1e3 * (1 - 1e-9)


def test_a_running_sum_takes_no_less_by_an_instruction_that_no_row_shows() -> None:
    """Than by the scan; neither instruction's rate is published."""

    def running(cumulative: bool) -> Program:
        def body(source: Any, result: Any) -> None:
            values, sums = tile(), tile()
            nisa.dma_copy(dst=values, src=source)
            if cumulative:
                nisa.tensor_scalar_cumulative(dst=sums, src=values, op0=nl.multiply, op1=nl.add, imm0=1.0)
            else:
                nisa.tensor_tensor_scan(sums, filled(tile()), values, initial=0.0, op0=nl.multiply, op1=nl.add)
            nisa.dma_copy(dst=result, src=sums)

        return traced(body)

    assert latency_us(running(True)) >= (1 - NOISE) * latency_us(running(False))


def through_engines(detour: bool) -> Program:
    """Independent chains of products, each through Scalar to the next; `detour`: and by a transfer within SBUF, on the
    queues in turn, so that it is a transfer that TensorE waits for."""

    def body(source: Any, result: Any) -> None:
        weights = filled(tile(P, nl.bfloat16))
        moving = [filled(tile(dtype=nl.bfloat16)) for _ in range(ROUNDS)]
        queues = (nisa.engine.sync, nisa.engine.scalar)
        for chain, values in enumerate(moving):
            for _ in range(3):
                total, made = tile(buffer=nl.psum), tile(dtype=nl.bfloat16)
                nisa.nc_matmul(dst=total, stationary=weights, moving=values)
                nisa.activation(dst=made, op=nl.exp, data=total)
                values = made
                if detour:
                    values = tile(dtype=nl.bfloat16)
                    nisa.dma_copy(dst=values, src=made, engine=queues[chain % 2], dge_mode=nisa.dge_mode.hwdge)
        nisa.dma_copy(dst=result, src=source)

    return traced(body)


def test_tensor_does_not_run_ahead_by_a_detour_of_what_is_computed() -> None:
    assert latency_us(through_engines(True)) >= (1 - NOISE) * latency_us(through_engines(False))
