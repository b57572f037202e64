"""Which loads the compiler leaves out, and in which order it issues the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.execution.executor import execute
from nki_sim.machine import TRN2, Machine
from nki_sim.program.program import Edge, Program
from nki_sim.timing.compiler.loads import order_of_need, without_repeated_loads
from nki_sim.timing.schedule import compiled
from tests.nki_sim.compiler.random_kernels import shared_tiles, source
from tests.nki_sim.machine.traced_kernels import nisa, nl, tile, traced

TILE_BYTES = 4 * 512
"""Of a partition."""


def opcodes(program: Program) -> list[str]:
    return [program.templates[number].opcode for number in program.template_ids.tolist()]


def twice(between: Callable[[Any, Any, Any], None], columns: slice = slice(0, 512)) -> Program:
    """Loads the same columns into two tiles from one line, squares each; between(first tile, source, result)."""

    def body(given: Any, result: Any) -> None:
        for again in (False, True):
            loaded, squared = tile(), tile()
            nisa.dma_copy(dst=loaded[:, columns], src=given[:, columns])
            nisa.activation(dst=squared[:, columns], op=nl.square, data=loaded[:, columns])
            nisa.dma_copy(dst=result[:, columns], src=squared[:, columns])
            if not again:
                between(loaded, given, result)

    return traced(body)


def nothing(loaded: Any, given: Any, result: Any) -> None:
    pass


def left_out(program: Program, machine: Machine = TRN2) -> int:
    """How many instructions; what is left computes the same."""
    shorter = without_repeated_loads(program, machine)
    values = np.random.default_rng(1).standard_normal(tuple(program.allocations[0].shape)).astype(np.float32)
    for got, wanted in zip(execute(shorter, [values]), execute(program, [values])):
        np.testing.assert_array_equal(got, wanted)
    assert opcodes(program).count("dma_copy") - opcodes(shorter).count("dma_copy") == len(program) - len(shorter)
    return len(program) - len(shorter)


def test_a_tile_that_is_loaded_again_is_not() -> None:
    program = twice(nothing)
    assert left_out(program) == 1
    shorter = without_repeated_loads(program, TRN2)
    assert opcodes(shorter) == ["dma_copy", "activation", "dma_copy", "activation", "dma_copy"]
    first, second = (
        shorter.operand_data[shorter.operand_starts[row] + 1, 0]
        for row, opcode in enumerate(opcodes(shorter))
        if opcode == "activation"
    )
    assert first == second, "both read the tile that is left"


def test_only_what_was_loaded_not_long_before_serves_again() -> None:
    def fill(loaded: Any, given: Any, result: Any) -> None:
        nisa.memset(dst=tile(3 * 512), value=0.0)

    program = twice(fill)
    since = (1 + 1 + 3) * TILE_BYTES  # the copy, its square, the filler
    assert left_out(program, replace(TRN2, reload_window_bytes=since)) == 1
    assert left_out(program, replace(TRN2, reload_window_bytes=since - 1)) == 0


@pytest.mark.parametrize(
    "between",
    [
        lambda loaded, given, result: nisa.memset(dst=loaded, value=0.0),
        lambda loaded, given, result: nisa.memset(dst=loaded[:, :8], value=0.0),
        lambda loaded, given, result: nisa.tensor_tensor(dst=loaded, data1=loaded, data2=loaded, op=nl.add),
    ],
    ids=["filled", "partly filled", "computed in place"],
)
def test_a_copy_that_is_written_otherwise_does_not_serve(between: Callable[[Any, Any, Any], None]) -> None:
    assert left_out(twice(between)) == 0


def test_another_place_of_the_same_tensor_is_loaded() -> None:
    def body(given: Any, result: Any) -> None:
        for at in (0, 512, 0):
            loaded = tile()
            nisa.dma_copy(dst=loaded, src=given[:, at : at + 512])
            nisa.dma_copy(dst=result[:, at : at + 512], src=loaded)

    assert left_out(traced(body, 1024)) == 1


def test_what_the_kernel_writes_in_hbm_is_loaded_every_time() -> None:
    def body(given: Any, result: Any) -> None:
        for _ in range(2):
            nisa.dma_copy(dst=result, src=given)
            loaded = tile()
            nisa.dma_copy(dst=loaded, src=result)
            nisa.dma_copy(dst=result, src=loaded)

    assert left_out(traced(body)) == 0


def test_with_explicit_edges_nothing_is_left_out_and_nothing_moves() -> None:
    program = replace(twice(nothing), edges=(Edge(0, 2),))
    assert without_repeated_loads(program, TRN2) is program
    assert (np.diff(order_of_need(program)) == 1).all()


def in_order_of_need(program: Program) -> list[int]:
    return order_of_need(program).tolist()


def test_loads_stand_right_before_what_needs_them() -> None:
    def body(given: Any, result: Any) -> None:
        first, second = tile(), tile()
        nisa.dma_copy(dst=first, src=given)
        nisa.dma_copy(dst=second, src=given)
        nisa.dma_copy(dst=result, src=second)
        nisa.dma_copy(dst=result, src=first)

    assert in_order_of_need(traced(body)) == [1, 2, 0, 3]


def test_a_load_stays_before_what_overwrites_it_and_behind_what_reads_the_tile_before() -> None:
    def body(given: Any, result: Any) -> None:
        again, other = tile(), tile()
        nisa.dma_copy(dst=again, src=given)
        nisa.dma_copy(dst=result, src=again)
        nisa.dma_copy(dst=again, src=given)
        nisa.memset(dst=other, value=0.0)
        nisa.memset(dst=again, value=0.0)
        nisa.dma_copy(dst=result, src=again)

    assert in_order_of_need(traced(body)) == [0, 1, 3, 2, 4, 5]


def test_loads_of_what_the_kernel_writes_in_hbm_do_not_move() -> None:
    def body(given: Any, result: Any) -> None:
        loaded, other = tile(), tile()
        nisa.dma_copy(dst=result, src=given)
        nisa.dma_copy(dst=loaded, src=result)
        nisa.memset(dst=other, value=0.0)
        nisa.dma_copy(dst=result, src=loaded)

    assert in_order_of_need(traced(body)) == [0, 1, 2, 3]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from([0.2, 0.8]))
def test_with_loads_left_out_and_moved_the_same_is_computed(seed: int, length: int, whole: float) -> None:
    program = shared_tiles(seed, length, whole)
    ready = compiled(program, TRN2)
    assert len(ready) <= len(program)
    np.testing.assert_array_equal(execute(ready, [source()])[0], execute(program, [source()])[0])
