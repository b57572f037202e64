"""What no timeline may show: each kind of conflict is found, by name and time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nki_sim.machine import TRN2
from nki_sim.program.program import Program
from nki_sim.timing import resource_check
from nki_sim.timing.cost import cost
from nki_sim.timing.resource_check import ResourceConflict, check_resources
from tests.nki_sim.machine.traced_kernels import P, filled, instruction, nisa, nl, tile

SLICE_NS = 200.0


def test_every_schedule_of_these_tests_is_checked() -> None:
    assert resource_check.CHECKS


def both_engines() -> None:
    values = filled(tile(512, nl.bfloat16))
    nisa.tensor_copy(dst=values, src=values, engine=nisa.engine.vector)
    nisa.tensor_tensor(dst=values, data1=values, data2=values, op=nl.add, engine=nisa.engine.gpsimd)


def computing_and_describing() -> None:
    values = filled(tile(64))
    nisa.tensor_tensor(dst=values, data1=values, data2=values, op=nl.add, engine=nisa.engine.gpsimd)
    nisa.dma_copy(dst=values, src=nl.ndarray((P, 64), nl.float32, buffer=nl.hbm))


def two_loads() -> None:
    for _ in range(2):
        nisa.dma_copy(dst=tile(4096), src=nl.ndarray((P, 4096), nl.float32, buffer=nl.hbm))


def overlapping_products() -> None:
    weights, values = tile(P, nl.bfloat16), tile(512, nl.bfloat16)
    where = {"tile_position": (64, 0), "tile_size": (64, P)}
    nisa.nc_matmul(dst=tile(buffer=nl.psum), stationary=weights[64:], moving=values[64:], **where)
    nisa.nc_matmul(dst=tile(buffer=nl.psum), stationary=weights, moving=values)


def checked(program: Program, shift_ns: float) -> None:
    """Its last two instructions but the store, the second of which begins `shift_ns` after the end of the first; of
    transfers, their data. Raises ResourceConflict."""
    costs = [cost(template, TRN2) for template in program.templates]
    ids = program.template_ids[-3:-1]
    prices = [costs[number] for number in ids.tolist()]
    lasts = [price.transfer.engine_ns if price.transfer is not None else price.busy_ns for price in prices]
    start = np.array([100.0, 100.0 + lasts[0] + shift_ns])
    issued = np.array([100.0, 100.0 + prices[0].busy_ns + max(shift_ns, 0.0 if prices[0].transfer else shift_ns)])
    released = issued + [price.busy_ns for price in prices]
    check_resources(costs, ids, issued, released, start, start + lasts, SLICE_NS)


@pytest.mark.parametrize(
    ("body", "resource", "tolerance_ns"),
    [
        (both_engines, "sbuf port", 0.0),
        (computing_and_describing, "GpSimd's cores", 0.0),
        (two_loads, "DMA engine 0", 3 * SLICE_NS),
        (overlapping_products, "tensor", 0.0),
    ],
)
def test_what_two_hold_at_once_is_found(body: Callable[[], Any], resource: str, tolerance_ns: float) -> None:
    program = instruction(body)
    checked(program, 0.0)
    checked(program, -tolerance_ns)
    with pytest.raises(ResourceConflict, match=rf"{resource}.*ns"):
        checked(program, -tolerance_ns - 1.0)
