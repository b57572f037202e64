"""Two cores on one clock: what waits for the other core waits, what does not runs beside it, and races are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from traced_kernels import P, nisa, nl, tile

import nki_sim
from nki_sim import dtypes
from nki_sim.errors import NkiValidationError
from nki_sim.execution.executor import execute_counting
from nki_sim.machine import TRN2
from nki_sim.nki.kernel import jit
from nki_sim.profile.profile import measure
from nki_sim.program.program import Program
from nki_sim.timing import joint
from nki_sim.tracing.session import TensorSpec

ROWS = 2 * P
COLUMNS = 512


def on_two_cores(body: Callable[[Any, Any, int], None], columns: int = COLUMNS) -> Program:
    """body(source, result, core): both [256, columns] float32 in shared HBM."""

    def kernel(source: Any) -> Any:
        result = nl.ndarray((ROWS, columns), nl.float32, buffer=nl.shared_hbm)
        body(source, result, nl.program_id(0))
        return result

    return nki_sim.trace(jit(kernel)[2], TensorSpec((ROWS, columns), dtypes.float32))


def half(tensor: Any, core: int) -> Any:
    return tensor[core * P : (core + 1) * P, :]


def worked(values: Any, times: int) -> None:
    for _ in range(times):
        nisa.activation(dst=values, op=nl.square, data=values)


def chain(barriers: bool, steps: int = 1, work: int = 20) -> Program:
    """Core 0 works on the first half and hands it on, core 1 works on that: one after the other."""

    def body(source: Any, result: Any, core: int) -> None:
        values = tile()
        for step in range(steps):
            for turn in (0, 1):
                if core == turn:
                    first = step == 0 and turn == 0
                    nisa.dma_copy(dst=values, src=half(source, 0) if first else half(result, 1 - turn))
                    worked(values, work)
                    nisa.dma_copy(dst=half(result, turn), src=values)
                if barriers:
                    nisa.core_barrier(data=result, cores=(0, 1))

    return on_two_cores(body)


def halves(work: int) -> Program:
    """Each core works on its half."""

    def body(source: Any, result: Any, core: int) -> None:
        values = tile()
        nisa.dma_copy(dst=values, src=half(source, core))
        worked(values, work)
        nisa.dma_copy(dst=half(result, core), src=values)
        nisa.core_barrier(data=result, cores=(0, 1))

    return on_two_cores(body)


def work_us(count: int) -> float:
    """What so many dependent squares take on one core."""
    more, few = (measure(replace(halves(n), peers=())).latency_us for n in (count + 10, 10))
    return more - few


def test_what_one_core_hands_to_the_other_takes_both_times() -> None:
    serial = measure(chain(barriers=True, work=40))
    assert serial.latency_us > 2 * work_us(40)
    assert serial.cores == 2 and measure(replace(halves(10), peers=())).cores == 1


def test_cores_that_work_apart_work_at_the_same_time() -> None:
    both, alone = measure(halves(60)), measure(replace(halves(60), peers=()))
    assert both.latency_us < 1.1 * alone.latency_us


def test_a_chain_without_a_barrier_is_a_race() -> None:
    with pytest.raises(
        NkiValidationError, match=r"race for .*core 0 writes.*line \d+, core 1 reads.*core_barrier"
    ) as raised:
        measure(chain(barriers=False))
    assert raised.value.line is not None and "\n" not in str(raised.value)


def passed_on(region: Callable[[Any, int], Any], barrier: bool = False) -> Program:
    """Core 0 stores to its region, core 1 loads from its own."""

    def body(source: Any, result: Any, core: int) -> None:
        where = region(result, core)
        values = tile(where.shape[1], partitions=where.shape[0])
        nisa.memset(dst=values, value=1.0)
        if barrier and core == 1:
            nisa.core_barrier(data=result, cores=(0, 1))
        nisa.dma_copy(dst=values if core else where, src=where if core else values)
        if barrier and core == 0:
            nisa.core_barrier(data=result, cores=(0, 1))

    return on_two_cores(body)


APART: dict[str, Callable[[Any, int], Any]] = {
    "rows": half,
    "columns": lambda result, core: result[0:P, core * 256 : (core + 1) * 256],
    "every second column": lambda result, core: result[0:P, core::2],
    "every second row": lambda result, core: result[core::2, :],
}
TOGETHER: dict[str, Callable[[Any, int], Any]] = {
    "the same rows": lambda result, core: result[0:P, :],
    "one row in common": lambda result, core: result[core * (P - 1) : core * (P - 1) + P, :],
    "one column in common": lambda result, core: result[0:P, core * 255 : core * 255 + 256],
    "rows and columns that cross": lambda result, core: result[0:P, 0:8] if core else result[5:6, :],
    "every second and every third column": lambda result, core: result[0:P, :: 2 + core],
}


@pytest.mark.parametrize("name", APART)
def test_what_does_not_overlap_is_no_race(name: str) -> None:
    assert measure(passed_on(APART[name])).latency_us > 0


@pytest.mark.parametrize("name", TOGETHER)
def test_one_byte_in_common_is_a_race_unless_a_barrier_stands_between(name: str) -> None:
    with pytest.raises(NkiValidationError, match="race for .*core 0 writes byte.*core 1 reads it"):
        measure(passed_on(TOGETHER[name]))
    assert measure(passed_on(TOGETHER[name], barrier=True)).latency_us > 0


def test_who_reads_may_be_either_core() -> None:
    def body(source: Any, result: Any, core: int) -> None:
        values = tile()
        nisa.dma_copy(dst=values, src=half(source, core))
        nisa.dma_copy(dst=half(result, 0) if core else values, src=values if core else half(result, 0))
        nisa.dma_copy(dst=half(result, 1) if core else half(source, 0), src=values)

    with pytest.raises(NkiValidationError, match="core 0 reads byte .*core 1 writes it"):
        measure(on_two_cores(body))


def both_store(value: Callable[[int], float], by_index: bool = False) -> Program:
    """Both cores write all of the result's first half."""

    def body(source: Any, result: Any, core: int) -> None:
        values, where = tile(), nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=values, value=value(core))
        nisa.memset(dst=where, value=0)
        rows = (
            result.ap([[COLUMNS, P], [1, COLUMNS]], scalar_offset=where, indirect_dim=0)
            if by_index
            else half(result, 0)
        )
        nisa.dma_copy(dst=rows, src=values)
        nisa.dma_copy(dst=half(result, 1), src=values) if core else None

    return on_two_cores(body)


@pytest.mark.parametrize("by_index", [False, True])
def test_that_both_store_one_result_is_no_fault_but_two_results_are(by_index: bool) -> None:
    """Public kernels do the first. The second shows when the cores are executed the other way round."""
    source = [np.zeros((ROWS, COLUMNS), np.float32)]
    for program, same in ((both_store(lambda core: 3.0, by_index), True), (both_store(float, by_index), False)):
        assert measure(program).latency_us > 0
        one, other = (execute_counting(program, source, last_core_first=turned)[0][0] for turned in (False, True))
        assert (one.tobytes() == other.tobytes()) is same


@pytest.mark.parametrize("data", ["a tile", "a part of the tensor"])
def test_a_barrier_holds_back_what_it_does_not_name(data: str) -> None:
    """Given a barrier on something else, then what the cores exchange waits for it: else it would cost nothing."""

    def body(source: Any, result: Any, core: int) -> None:
        values, other = tile(), nl.ndarray((1, 1), nl.float32, buffer=nl.sbuf)
        for turn in (0, 1):
            if core == turn:
                nisa.dma_copy(dst=values, src=half(result, 0) if turn else half(source, 0))
                worked(values, 40)
                nisa.dma_copy(dst=half(result, turn), src=values)
            nisa.core_barrier(data=other if data == "a tile" else result[0:1, 0:1], cores=(0, 1))

    assert measure(on_two_cores(body)).latency_us > 2 * work_us(40)


def test_cores_that_do_not_meet_are_a_deadlock() -> None:
    def once(source: Any, result: Any, core: int) -> None:
        nisa.dma_copy(dst=half(result, core), src=half(source, core))
        if core == 0:
            nisa.core_barrier(data=result, cores=(0, 1))

    def otherwise(source: Any, result: Any, core: int) -> None:
        values = tile()
        nisa.dma_copy(dst=values, src=half(source, core))
        nisa.sendrecv(src=values, dst=tile(), send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=core)
        nisa.dma_copy(dst=half(result, core), src=values)

    with pytest.raises(NkiValidationError, match="deadlock: the cores come to 1 and 0 meetings"):
        measure(on_two_cores(once))
    with pytest.raises(
        NkiValidationError, match="deadlock: at meeting 0, core 0 is at sendrecv on pipe 0 and core 1 at"
    ):
        measure(on_two_cores(otherwise))


def streaming(columns: int) -> Program:
    def body(source: Any, result: Any, core: int) -> None:
        for first in range(0, columns, 4096):
            values = tile(4096)
            here = slice(first, first + 4096)
            nisa.dma_copy(dst=values, src=half(source, core)[:, here])
            nisa.dma_copy(dst=half(result, core)[:, here], src=values, engine=nisa.engine.scalar)

    return on_two_cores(body, columns)


def test_the_cores_share_the_bandwidth_of_their_stack() -> None:
    """435 GB/s each would be more than the 716 that the stack has."""
    program = streaming(1 << 15)
    both, alone = measure(program), measure(replace(program, peers=()))
    moved = both.fields["hbm_read_bytes"] + both.fields["hbm_write_bytes"]
    assert moved / (both.latency_us * 1e3) < TRN2.hbm_bytes_per_ns
    assert moved / (alone.latency_us * 1e3) > TRN2.hbm_bytes_per_ns, "or the test would mean nothing"
    shared = joint.sharing(TRN2, 2)
    assert shared.dma_bytes_per_ns == pytest.approx(TRN2.hbm_bytes_per_ns / 2)
    assert 2 * shared.dma_bytes_per_ns * shared.dma_sustained == pytest.approx(604, rel=1e-3)  # G003
    assert joint.sharing(TRN2, 1) is TRN2
