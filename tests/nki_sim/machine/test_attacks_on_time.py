"""What an attacker of the simulated time tried: the same work, written so that something is in two places at once.

Each program is the honest one's instructions in another order, or an instruction in place of one whose rate is known;
none takes less than what it holds. What else was tried is where its cause is: idle tiles and helpers in
test_text_alone.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from nki_sim.machine import TRN2
from nki_sim.profile.profile import measure
from nki_sim.program.program import Program
from nki_sim.timing.schedule import schedule
from tests.nki_sim.machine.traced_kernels import P, filled, nisa, nl, tile, traced

NOISE = 0.005
ROUNDS = 24


def latency_us(program: Program) -> float:
    return measure(program, TRN2).latency_us


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
