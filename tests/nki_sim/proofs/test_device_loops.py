"""Loops, registers and places that only the device knows are followed as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import nki_sim
from nki_sim import dtypes
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.proofs import execution
from nki_sim.proofs.equivalence import Original, Proofs, prove
from nki_sim.proofs.execution import Input
from nki_sim.proofs.proof import Finding
from nki_sim.tracing.session import TensorSpec

ROWS, WIDTH = 6, 5
TABLE = TensorSpec((ROWS, WIDTH), dtypes.float32)
NUMBERS = TensorSpec((ROWS, 1), dtypes.int32)


def proved(kernel: Callable[..., Any], against: Callable[..., Any], numbers: list[int]) -> Proofs:
    inputs = [Input(None), Input(np.array(numbers, np.int32).reshape(ROWS, 1))]
    return prove(
        nki_sim.trace(kernel, TABLE, NUMBERS), Original(lambda: nki_sim.trace(against, TABLE, NUMBERS), inputs, 9)
    )


def row(tensor: Any, i: Any) -> Any:
    return tensor.ap([[WIDTH, 1], [1, WIDTH]], scalar_offset=i, indirect_dim=0)


def doubled_by_a_device_loop(table: Any, numbers: Any) -> Any:
    """As many rows as the first number says."""
    out = nl.zeros((ROWS, WIDTH), nl.float32, buffer=nl.shared_hbm)
    upper = nisa.register_alloc()
    nisa.register_load(upper, numbers[0:1, 0:1])

    def body(i: Any) -> None:
        tile = nl.ndarray((1, WIDTH), nl.float32)
        nisa.dma_copy(dst=tile, src=row(table, i))
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=row(out, i), src=tile)

    nl.fori_loop(0, upper, body)
    return out


def doubled_by_scalars(table: Any, numbers: Any) -> Any:
    """From the last row to the first: bounds and offsets are computed on the device."""
    out = nl.zeros((ROWS, WIDTH), nl.float32, buffer=nl.shared_hbm)
    count = nisa.scalar_load(numbers[0:1, 0:1])

    def body(i: Any) -> None:
        tile = nl.ndarray((1, WIDTH), nl.float32)
        nisa.dma_copy(dst=tile, src=row(table, count - i))
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=row(out, -(i - count)), src=tile)

    nl.fori_loop(1, count * 2 - count + 1, body)
    return out


def doubled_at_once(table: Any, numbers: Any) -> Any:
    out = nl.ndarray((ROWS, WIDTH), nl.float32, buffer=nl.shared_hbm)
    tile = nl.load(table)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
    nl.store(out, tile)
    return out


def added_to_scattered_rows(table: Any, numbers: Any) -> Any:
    out = nl.ndarray((ROWS, WIDTH), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=table)
    tile = nl.load(table)
    target = out.ap([[WIDTH, ROWS], [1, WIDTH]], vector_offset=nl.load(numbers), indirect_dim=0)
    nisa.dma_compute(dst=target, srcs=[target, tile], reduce_op=nl.add)
    return out


def test_a_device_loop_does_what_one_instruction_does():
    proofs = proved(doubled_by_a_device_loop, doubled_at_once, [ROWS] * ROWS)

    assert (proofs.coverage.finding, proofs.equivalence.finding) == (Finding.HELD, Finding.HELD)


def test_address_arithmetic_is_followed_too():
    there, one_short = (proved(doubled_by_scalars, doubled_at_once, [n] * ROWS) for n in (ROWS, ROWS - 1))

    assert (there.coverage.finding, there.equivalence.finding) == (Finding.HELD, Finding.HELD)
    assert one_short.equivalence.finding is Finding.REFUTED


def test_a_loop_that_stops_one_row_short_is_refuted():
    equivalence = proved(doubled_by_a_device_loop, doubled_at_once, [ROWS - 1] * ROWS).equivalence

    assert equivalence.finding is Finding.REFUTED
    assert "[5, 0], one of 5 elements" in equivalence.reason


def test_rows_are_scattered_to_where_their_numbers_say():
    there = proved(added_to_scattered_rows, doubled_at_once, list(range(ROWS)))
    elsewhere = proved(added_to_scattered_rows, doubled_at_once, [1, 0, *range(2, ROWS)])

    assert there.equivalence.finding is Finding.HELD
    assert elsewhere.equivalence.finding is Finding.REFUTED


def test_an_index_outside_is_not_provable():
    coverage = proved(added_to_scattered_rows, doubled_at_once, [99] * ROWS).coverage

    assert coverage.finding is Finding.NOT_PROVABLE
    assert "an index read on the device is outside its tensor" in coverage.reason


def test_too_much_work_is_not_begun(monkeypatch):
    monkeypatch.setattr(execution, "MOST_PASSES", 3)
    assert "run more than 3 times" in proved(doubled_by_a_device_loop, doubled_at_once, [ROWS] * ROWS).coverage.reason
    monkeypatch.setattr(execution, "MOST_ELEMENTS", 50)
    assert "moves more than 50 elements" in proved(doubled_at_once, doubled_at_once, [0] * ROWS).coverage.reason
    monkeypatch.setattr(execution, "MOST_HELD", 20)
    assert "holds more than 20 elements" in proved(doubled_at_once, doubled_at_once, [0] * ROWS).coverage.reason
