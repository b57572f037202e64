"""Loops that a search could pass off as cheap: repetitions that stop repeating, lengths that a register decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from traced_kernels import P, filled, matmul, nisa, nl, tile, traced, vector_ns

import nki_sim
from nki_sim.dtypes import int32
from nki_sim.errors import NotSupported
from nki_sim.executor import execute_counting
from nki_sim.machine import TRN2
from nki_sim.passes import Passes, must_be_counted
from nki_sim.profile import measure
from nki_sim.program import Program
from nki_sim.schedule import schedule
from nki_sim.session import TensorSpec
from nki_sim.structure import dependence_structure
from nki_sim.unroll import unrolled

# --- loops that stop repeating themselves -------------------------------------------------------------

FREE, BOUND = 6000, 9000
"""Iterations that wait for nobody, and then as many that wait for the one before: the same templates throughout."""


def phases(iteration: Callable[[Any, int], None], prepare: Callable[[], Any]) -> Program:
    def body(source: Any, result: Any) -> None:
        prepared = prepare()
        for at in range(FREE + BOUND):
            iteration(prepared, at)
        nisa.dma_copy(dst=result, src=source)

    return traced(body, 512)


def fresh_tiles_then_one(one: Any, at: int) -> None:
    here = tile() if at < FREE else one
    nisa.tensor_tensor(dst=here, data1=one, data2=one, op=nl.add)
    nisa.activation(dst=here, op=nl.square, data=here)


def eight_tiles_then_one(tiles: Any, at: int) -> None:
    here = tiles[at % 8 if at < FREE else 0]
    nisa.tensor_tensor(dst=here, data1=here, data2=here, op=nl.add)
    nisa.activation(dst=here, op=nl.square, data=here)


def slices_in_turn_then_one(wide: Any, at: int) -> None:
    first = 512 * (at % 16 if at < FREE else 0)
    here = wide[:, first : first + 512]
    nisa.tensor_tensor(dst=here, data1=here, data2=here, op=nl.add)
    nisa.activation(dst=here, op=nl.square, data=here)


def rows_of_hbm_in_turn_then_one(scratch: Any, at: int) -> None:
    here = scratch[at % 16 if at < FREE else 0]
    nisa.dma_copy(dst=here, src=scratch[16 + at % 16 if at < FREE else 0])


PHASES: dict[str, tuple[Callable[[Any, int], None], Callable[[], Any]]] = {
    "fresh tiles, then one": (fresh_tiles_then_one, lambda: filled(tile())),
    "eight tiles in turn, then one": (eight_tiles_then_one, lambda: [filled(tile()) for _ in range(8)]),
    "slices in turn, then one": (slices_in_turn_then_one, lambda: filled(tile(512 * 16))),
    "rows of HBM in turn, then one": (
        rows_of_hbm_in_turn_then_one, lambda: nl.ndarray((32, P, 512), nl.float32, buffer=nl.private_hbm)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PHASES)
def test_a_loop_that_begins_to_wait_for_itself_is_no_repetition(name: str) -> None:
    program = phases(*PHASES[name])
    exact, quick = schedule(program, TRN2, exact=True), schedule(program, TRN2, exact=False)
    assert quick.latency_us == pytest.approx(exact.latency_us, rel=0.01)


def test_buffers_of_another_kind_are_no_repetition() -> None:
    """A quarter of the partitions at a time leaves room for four; the template says nothing of what is not touched."""

    def iteration(_: Any, at: int) -> None:
        here = tile(8192, partitions=32 if at < FREE else P)[0:32, 0:64]
        nisa.memset(dst=here, value=0.0)
        nisa.activation(dst=here, op=nl.square, data=here)

    program = phases(iteration, lambda: None)
    structure = dependence_structure(program)
    assert structure[2 * FREE - 8] == structure[2 * FREE - 6]
    assert structure[2 * FREE + 8] not in structure[: 2 * FREE]


def test_what_repeats_has_the_same_structure_in_every_iteration() -> None:
    """Given an honest tiled product, when its loops are looked at, then all passes but the first are alike."""
    program = matmul(1024, 1024, 2048)
    period = 4 * (8 * 3 + 2)
    structure = dependence_structure(program)
    np.testing.assert_array_equal(structure[period : 6 * period], structure[2 * period : 7 * period])


# --- loops as long as a register says ------------------------------------------------------------------


def worker(loop: str) -> Callable[[Any], Any]:
    """As many additions as the first number of the input says, by a device loop; or 5, by other loops."""

    def kernel(count: Any) -> Any:
        out = nl.ndarray((P, 512), nl.float32, buffer=nl.shared_hbm)
        values, left = filled(tile()), nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=count[0:1, 0:1])
        register = nisa.register_alloc()
        nisa.register_load(register, left)

        def once(_: Any) -> None:
            nisa.tensor_tensor(dst=values, data1=values, data2=values, op=nl.add)

        def down(r: Any) -> Any:
            once(r)
            nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1)
            nisa.register_load(r, left)
            return r

        def nested(_: Any) -> None:
            nl.fori_loop(0, register, once)
            nisa.tensor_scalar(dst=left, data=left, op0=nl.add, operand0=2)
            nisa.register_load(register, left)

        if loop == "for":
            nl.fori_loop(0, register, once)
        elif loop == "while":
            nl.while_loop(register, down)
        elif loop == "nested":
            nl.fori_loop(0, 3, nested)
        else:
            nl.fori_loop(0, 5, once)
        nisa.dma_copy(dst=out, src=values)
        return out

    return kernel


def counted(loop: str) -> Program:
    return nki_sim.trace(worker(loop), TensorSpec((1, 1), int32))


def passes_of(program: Program, count: int) -> Passes:
    return execute_counting(program, [np.array([[count]], np.int32)])[1]


@pytest.mark.parametrize("loop", ["for", "while", "nested"])
def test_a_loop_of_unknown_length_is_not_timed_as_one_pass(loop: str) -> None:
    program = counted(loop)
    assert must_be_counted(program)
    for timed in (measure, lambda p: schedule(p, TRN2)):
        with pytest.raises(NotSupported, match="device loop at line.*register.*execution counted"):
            timed(program)


def test_a_counted_loop_takes_as_long_as_the_one_with_constant_bounds() -> None:
    program = counted("for")
    times = [measure(program, passes=passes_of(program, n)).latency_us for n in (0, 5, 6, 100)]
    constant = measure(counted("5")).latency_us
    assert constant < times[1] < constant + 2  # it waits for the register, and nothing else
    each = (vector_ns(512) + TRN2.vector_latency_ns) / 1e3
    assert times[2] - times[1] == pytest.approx(each)
    assert times[3] - times[2] == pytest.approx(94 * each)
    assert passes_of(counted("5"), 100).cores == (((),),) and not must_be_counted(counted("5"))


def test_nothing_after_a_decision_of_the_device_begins_before_it() -> None:
    """The engines cannot know whether there is another pass before the register of the condition is loaded."""

    def kernel(count: Any) -> Any:
        out = nl.ndarray((P, 64), nl.float32, buffer=nl.shared_hbm)
        left = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=count)
        register = nisa.register_alloc()
        nisa.register_load(register, left)

        def body(r: Any) -> Any:
            nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1)
            nisa.register_load(r, left)
            nisa.activation(dst=filled(tile(8)), op=nl.exp, data=filled(tile(8)))  # has nothing to do with the count
            return r

        nl.while_loop(register, body)
        nisa.dma_copy(dst=out, src=filled(tile(64)))
        return out

    program = nki_sim.trace(kernel, TensorSpec((1, 1), int32))
    timeline = schedule(unrolled(program, passes_of(program, 20).cores[0]), TRN2)
    names = [timeline.program.templates[n].opcode for n in timeline.program.template_ids]
    loads = [row for row, name in enumerate(names) if name == "register_load"]
    assert len(loads) == 21
    for row in range(loads[0] + 1, len(names)):
        passes = names[: row + 1].count("tensor_scalar")
        if passes:
            assert timeline.start_ns[row] >= timeline.end_ns[loads[passes - 1]] - 1e-6
    assert timeline.start_ns[-1] >= timeline.end_ns[loads[-1]] - 1e-6


def test_every_entry_of_an_inner_loop_counts_for_itself() -> None:
    program = counted("nested")
    passes = passes_of(program, 1)
    assert passes.cores == (((), (1, 3, 5)),)
    additions = unrolled(program, passes.cores[0]).template_ids
    names = [program.templates[number].opcode for number in additions]
    assert names.count("tensor_tensor") == 9
    assert measure(program, passes=passes).fields["vector_engine_instruction_count"] == 1 + 9 + 3


def test_a_while_loop_is_timed_with_the_passes_it_made() -> None:
    program = counted("while")
    assert passes_of(program, 7).cores == (((7,),),)
    few, many = (measure(program, passes=passes_of(program, n)) for n in (7, 8))
    assert many.latency_us > few.latency_us
    assert many.fields["vector_engine_instruction_count"] - few.fields["vector_engine_instruction_count"] == 2


def test_of_several_executions_the_most_passes_count() -> None:
    program = counted("nested")
    one, other = passes_of(program, 1), passes_of(program, 4)
    assert one.most(other) == other.most(one) == Passes((((), (4, 6, 8)),))
    uneven = Passes((((), (2, 9)),)).most(Passes((((), (5, 1, 1)),)))
    assert uneven == Passes((((), (5, 9, 1)),))
    assert len(unrolled(program, uneven.cores[0])) > len(unrolled(program, other.cores[0])) - 5


def test_a_loop_too_long_to_write_out_says_so() -> None:
    with pytest.raises(NotSupported, match="too long to time"):
        measure(counted("for"), passes=Passes((((30_000_000,),),)))
