"""What is executed is priced: no load is dropped that could bring something else, and nothing in a loop is free."""

from __future__ import annotations

import pytest

from accelopt_core.evaluation import CompileFailed, explain
from infra.targets.local import LocalTarget
from tests.redteam.test_chance_and_precision import HONEST, ONE, tile, with_lines
from tests.redteam.test_chance_and_precision import judged as judged_for
from tests.redteam.test_simulated_time import TWO_CORES, judged, latency_us

TIMES = 8
SCRATCH = "s = nl.ndarray((128, STEP), dtype=x.dtype, buffer=nl.private_hbm)"
LOADED = "src=x[t * 128 : (t + 1) * 128, j * STEP : (j + 1) * STEP])"


def loads(name: str, source: str) -> tuple[str, ...]:
    return tile(name, "float32"), f"nisa.dma_copy(dst={name}, src={source})", f"nisa.tensor_copy(dst=c, src={name})"


AT_LEAST_US: dict[str, tuple[str, float]] = {
    "scratch that is written before each load": (
        with_lines(
            SCRATCH, f"for k in range({TIMES}):",
            *[f"    {line}" for line in ("nisa.dma_copy(dst=s, src=c)", *loads("l", "s"))],
        ),
        2.0 * TIMES,
    ),
    "loads of one tile in a device loop": (
        with_lines(
            f"nl.fori_loop(0, 100, lambda i: nisa.dma_copy(dst=a, {LOADED})",
            "nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)",
        ),
        60.0,
    ),
    "stores of one tile in a device loop": (
        with_lines(SCRATCH, "nl.fori_loop(0, 100, lambda i: nisa.dma_copy(dst=s, src=c))"),
        100.0,
    ),
    "work that nothing uses": (
        with_lines(tile("w", "float32"), "for k in range(100):", "    nisa.activation(dst=w, op=nl.exp, data=c)"),
        30.0,
    ),
}  # fmt: skip
"""By name: a kernel that computes the sum, and how many µs it takes more than one that does only that."""

AGAIN = TWO_CORES.replace(
    "    return out",
    """    other = slice(64 - nl.program_id(0) * 64, 128 - nl.program_id(0) * 64)
    for k in range(6):
        o = nl.ndarray((64, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=o, src=out[other, :])
        nisa.tensor_tensor(dst=a, data1=a, data2=o, op=nl.bypass)
        nisa.core_barrier(data=out, cores=(0, 1))
    nisa.dma_copy(dst=out[mine, :], src=a)
    nisa.core_barrier(data=out, cores=(0, 1))
    return out""",
)
"""Each core loads six times what the other has written."""


@pytest.mark.parametrize("name", AT_LEAST_US)
def test_it_takes_its_time(target: LocalTarget, name: str) -> None:
    source, more_us = AT_LEAST_US[name]
    assert latency_us(judged(target, source)) > latency_us(judged(target, HONEST)) + more_us


def test_what_the_other_core_has_written_is_loaded_each_time(target: LocalTarget) -> None:
    assert latency_us(judged(target, AGAIN)) > latency_us(judged(target, TWO_CORES)) + 10.0


def turned(dst: str, src: str, pattern: str, offset: int) -> str:
    turning = f"{src}.ap([[512, 128], {pattern}], offset={offset})"
    return f"nisa.tensor_copy(dst={dst}.ap([[512, 128], [256, 2], [1, 256]]), src={turning})"


BACKWARDS = "[-256, 2], [-1, 256]"
"""From the last element to the first."""

IN_PLACE = {
    "a tile reversed": [turned("c", "c", BACKWARDS, 511)] * 2,
    "halves of a tile exchanged": [turned("c", "c", "[-256, 2], [1, 256]", 256)] * 2,
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_an_instruction_overwrites_before_it_reads_it_is_refused(target: LocalTarget, name: str) -> None:
    """Engines stream, and the simulator reads all before it writes: what a device makes of it is not published."""
    result = judged_for(target, with_lines(*IN_PLACE[name]), ONE)
    assert isinstance(result, CompileFailed) and "overlaps src in another order" in result.message, explain(result)
