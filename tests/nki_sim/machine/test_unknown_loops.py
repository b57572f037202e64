"""Device loops, of lengths that a register decides as well: a search could pass them off as cheap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from traced_kernels import P, filled, nisa, nl, tile, vector_ns

import nki_sim
from nki_sim.dtypes import int32
from nki_sim.errors import NotSupported
from nki_sim.execution.executor import execute_counting
from nki_sim.machine import TRN2
from nki_sim.profile.profile import measure
from nki_sim.program.passes import Passes, must_be_counted, unrolled
from nki_sim.program.program import Program
from nki_sim.timing.schedule import schedule
from nki_sim.tracing.session import TensorSpec


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
