"""Two cores of one kernel: one memory, two streams, and an order only where they meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nki_sim
from nki_sim import dtypes
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.nki.kernel import jit
from nki_sim.program.program import Program
from nki_sim.proofs.equivalence import Original, Proofs, prove
from nki_sim.proofs.execution import Input
from nki_sim.proofs.proof import Finding
from nki_sim.tracing.session import TensorSpec

P, N = 128, 64


def on_two_cores(body: Callable[[Any, Any, int], None]) -> Program:
    """body(source, result, core): both [256, 64] float32 in shared HBM."""

    def kernel(source: Any) -> Any:
        result = nl.ndarray((2 * P, N), nl.float32, buffer=nl.shared_hbm)
        body(source, result, nl.program_id(0))
        return result

    return nki_sim.trace(jit(kernel)[2], TensorSpec((2 * P, N), dtypes.float32))


def proved(body: Callable[[Any, Any, int], None], against: Callable[[Any, Any, int], None]) -> Proofs:
    return prove(on_two_cores(body), Original(lambda: on_two_cores(against), [Input(None)], 3))


def half(tensor: Any, core: int) -> Any:
    return tensor[core * P : (core + 1) * P, :]


def exponential_of(source: Any, where: Any, op: Any = nl.exp) -> None:
    tile = nl.ndarray((P, N), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    nisa.activation(dst=tile, op=op, data=tile)
    nisa.dma_copy(dst=where, src=tile)


def each_its_half(source: Any, result: Any, core: int) -> None:
    exponential_of(half(source, core), half(result, core))


def both_by_the_first(source: Any, result: Any, core: int) -> None:
    for number in range(2):
        if core == 0:
            exponential_of(half(source, number), half(result, number))


def both_store_one(source: Any, result: Any, core: int) -> None:
    """Core 1 stores its own half into both."""
    exponential_of(half(source, core), half(result, core))
    if core:
        exponential_of(half(source, 1), half(result, 0))


def first_half_only(source: Any, result: Any, core: int) -> None:
    if core == 0:
        exponential_of(half(source, core), half(result, core))


def by_way_of_the_other(source: Any, result: Any, core: int) -> None:
    """Each core stores the other's half, once that is there."""
    between = nl.ndarray((2 * P, N), nl.float32, buffer=nl.shared_hbm)
    exponential_of(half(source, core), half(between, core))
    nisa.core_barrier(data=between, cores=(0, 1))
    exponential_of(half(between, 1 - core), half(result, 1 - core), nl.copy)


def test_who_does_what_makes_no_difference():
    proofs = proved(both_by_the_first, each_its_half)

    assert (proofs.coverage.finding, proofs.equivalence.finding) == (Finding.HELD, Finding.HELD)


def test_what_crosses_between_two_barriers_is_the_same():
    assert proved(by_way_of_the_other, each_its_half).equivalence.finding is Finding.HELD


def test_two_unordered_writers_of_one_place_are_refuted():
    coverage = proved(both_store_one, each_its_half).coverage

    assert coverage.finding is Finding.REFUTED
    assert "output 0 depends at [0, 0] on which of the two cores is first" in coverage.reason


def test_a_half_that_no_core_stores_is_refuted():
    coverage = proved(first_half_only, each_its_half).coverage

    assert coverage.finding is Finding.REFUTED
    assert "output 0 is not written at [128, 0], one of 8,192" in coverage.reason
