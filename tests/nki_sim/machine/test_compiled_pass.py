"""What is compiled comes to the same bits as Python: every time and every cause, of programs of every kind.

The functions for Numba are checked twice: as they stand, and compiled where Numba is installed.
"""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traced_kernels import P, filled, instruction, matmul, nisa, nl, stream, tile, traced

import nki_sim
from benchmarks import calibration_kernels as calibration
from benchmarks import device_mamba, device_matmuls
from benchmarks.same_timelines import different, shapes_of, timelines, traced_at
from infra.tasks.seed_index import load_seed, seed_index
from nki_sim import compiled, compiled_spills
from nki_sim.compiler import spills
from nki_sim.compiler.spills import Spill
from nki_sim.dtypes import as_dtype
from nki_sim.joint import schedule_jointly
from nki_sim.machine import TRN1, TRN2, Machine
from nki_sim.nki.kernel import jit
from nki_sim.program import Edge, Program
from nki_sim.program_file import dumps
from nki_sim.schedule import Timeline, schedule
from nki_sim.session import TensorSpec
from tests.house.structure import ROOT
from tests.mutations.bases import Base, bases
from tests.nki_sim.compiler.random_kernels import COLUMNS, TILE_BYTES, rotating_tiles, shared_tiles

NUMBA = importlib.util.find_spec("numba") is not None


def plain_functions() -> SimpleNamespace:
    return SimpleNamespace(**{name: getattr(text, name) for text in compiled.TEXTS for name in text.FUNCTIONS})


@contextmanager
def in_form(form: str) -> Iterator[None]:
    """The functions on arrays as they stand, or compiled."""
    before = compiled._State.core
    if form == "as they stand":
        compiled._State.core = plain_functions()
    try:
        yield
    finally:
        compiled._State.core = before


@pytest.fixture(params=["as they stand", "compiled"])
def core(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled" and not NUMBA:
        pytest.skip("Numba is not installed")
    with in_form(request.param):
        yield


def same(program: Program, machine: Machine = TRN2, exact: bool | None = None) -> Timeline:
    """The timeline that all agree on."""
    return agreed(lambda: (schedule(replace(program), machine, exact),))[0]


def agreed(make: Callable[[], tuple[Timeline, ...]]) -> tuple[Timeline, ...]:
    """What both make. Of copies of programs: what one path has found of one must not be there for the other."""
    made, wrong = different(make)
    assert not wrong
    return made


# --- programs of every kind -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [seed.name for seed in seed_index()])
def test_seeds(core: None, name: str) -> None:
    timeline = same(traced_at(load_seed(name).kernel_source, name, shapes_of(name)[0]))
    assert len(timeline.start_ns) > 10


@pytest.mark.skipif(not NUMBA, reason="Numba is not installed")
@pytest.mark.parametrize("base", bases(), ids=lambda base: base.name)
def test_seeds_after_steps_and_on_two_cores(base: Base) -> None:
    program = traced_at(base.source, base.task, shapes_of(base.task)[0])
    agreed(lambda: timelines(program))


@pytest.mark.slow
@pytest.mark.skipif(not NUMBA, reason="Numba is not installed")
@pytest.mark.parametrize(
    ("base", "shape"), [pytest.param(b, s, id=f"{b.name}, {s}") for b in bases() for s in shapes_of(b.task)[1:]]
)
def test_all_of_them_at_every_shape(base: Base, shape: str) -> None:
    program = traced_at(base.source, base.task, shape)
    agreed(lambda: timelines(program))


@pytest.mark.parametrize(
    ("make", "exact"),
    [
        (lambda: calibration.matmul_loads_inside(512, 256, 1024), True),
        (lambda: calibration.matmul_blocked(1024, 256, 1024, 2, 2), True),
        (lambda: calibration.matmul_fully_blocked(1024, 512, 1024, 2, 2, 4), True),
        (lambda: calibration.matmul_bf16_square(1024, 4, 8), True),
        (lambda: calibration.adamw(512, rows=1280), True),
        (lambda: calibration.adamw(128), False),
        (lambda: device_matmuls.tiled(512, 256, 1024, "bfloat16", row_resident=True), True),
        (lambda: device_matmuls.blocked(1024, 512, 2048, 2, 2, 8), True),
        (lambda: matmul(1024, 512, 1024), True),
        (lambda: device_mamba.mamba(128, 512, 4, 256), True),
        (lambda: device_mamba.mamba_shared(256, 512, 4, 256), True),
        (lambda: stream(128, 3000, hoisted=True), False),
    ],
    ids=[
        "loads inside", "blocked", "fully blocked", "bfloat16 square", "adamw",
        "adamw, extrapolated", "row resident", "device's blocks", "small matmul", "an engine's own order",
        "another's", "stream, extrapolated",
    ],
)  # fmt: skip
def test_calibration_kernels(core: None, make: Callable[[], Program], exact: bool) -> None:
    timeline = same(make(), TRN2, exact)
    assert exact or not timeline.exact, "the shortcut must apply for this case to mean anything"


def test_spills(core: None) -> None:
    timeline = same(device_matmuls.blocked(1024, 2048, 2048, 2, 4, 8), replace(TRN2, sbuf_partition_bytes=96 << 10))
    numbers = set(timeline.program.template_ids.tolist())
    assert any(isinstance(timeline.program.templates[number].attrs, Spill) for number in numbers)


def test_slices_of_tiles_that_stay_outside(core: None) -> None:
    """Fetched, or put back, or both; of two tiles at once; with edges that keep holding between the same rows."""

    def body(given_: Any, result: Any) -> None:
        wide, other = (filled(tile(COLUMNS)) for _ in range(2))
        nisa.dma_copy(dst=wide, src=given_)
        for at in range(8):
            here = slice(8 * at, 8 * at + 8)
            for each in [filled(tile(COLUMNS)) for _ in range(3)]:
                nisa.tensor_tensor(dst=each, data1=each, data2=each, op=nl.add)
                nisa.dma_copy(dst=result, src=each)
            nisa.tensor_tensor(dst=wide[:, here], data1=wide[:, here], data2=other[:, here], op=nl.add)
            nisa.tensor_copy(dst=other[:, here], src=wide[:, here])
        for each in (wide, other):
            nisa.dma_copy(dst=result, src=each)

    program = traced(body, COLUMNS)
    machine = replace(TRN2, sbuf_partition_bytes=3 * TILE_BYTES)
    timeline = same(replace(program, edges=(Edge(2, 30), Edge(11, 40))), machine)
    slices = [a for a in timeline.program.allocations if a.name == "slice"]
    assert slices and len(timeline.program.edges) == 2


def test_where_there_is_no_space_for_all_that_is_added_there_is_more_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    text = compiled_spills.spilled

    def spilled(*given_: Any) -> Any:
        asked.append(given_[-1])
        return text(*given_[:-1], given_[-1] // 64)

    program, machine = shared_tiles(3, 60, 0.2), replace(TRN2, sbuf_partition_bytes=5 * TILE_BYTES)
    with compiled.using(False):
        expected = spills.with_spills(program, machine)
        monkeypatch.setattr(compiled_spills, "spilled", spilled)
        found = spills.with_spills(program, machine)
    assert found is not program and len(asked) > 1 and asked == sorted(asked)
    assert dumps(found) == dumps(expected)


def test_parts_of_the_array(core: None) -> None:
    def body(source: Any, result: Any) -> None:
        weights, values = filled(tile(P, nl.bfloat16)), filled(tile(dtype=nl.bfloat16))
        for at in range(60):
            row = (0, 64, 0, 64, 64)[at % 5]
            half = slice(row, row + 64)
            where = {"tile_position": (row, 0), "tile_size": (64, P)}
            nisa.nc_matmul(dst=tile(buffer=nl.psum), stationary=weights[half], moving=values[half], **where)
            if at % 7 == 0:
                nisa.nc_matmul(dst=tile(buffer=nl.psum), stationary=weights, moving=values)
        nisa.dma_copy(dst=result, src=source)

    timeline = same(traced(body))
    assert any(price.array_tile is not None for price in timeline.costs)


def test_tiles_with_addresses(core: None) -> None:
    def body(given: Any, result: Any) -> None:
        for partition, byte, columns in ((0, 0, 128), (0, 0, 64), (0, 256, 64), (0, 512, 64)) * 4:
            placed = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.sbuf, address=(partition, byte))
            nisa.memset(dst=placed, value=0.0)
            nisa.activation(dst=placed, op=nl.square, data=placed)
        nisa.dma_copy(dst=result, src=given)

    same(traced(body, 64))


def test_two_cores(core: None) -> None:
    def kernel(source: Any) -> Any:
        me = nl.program_id(0)
        result = nl.ndarray((2 * P, COLUMNS), nl.float32, buffer=nl.shared_hbm)
        values, spare = tile(COLUMNS), tile(COLUMNS)
        here = slice(me * P, (me + 1) * P)
        nisa.dma_copy(dst=values, src=source[here])
        for at in range(6):
            for _ in range(5 if at % 2 == me else 0):
                nisa.activation(dst=values, op=nl.square, data=values)
            nisa.sendrecv(src=values, dst=spare, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
            values, spare = spare, values
        nisa.dma_copy(dst=result[here], src=values)
        return result

    program = nki_sim.trace(jit(kernel)[2], TensorSpec((2 * P, COLUMNS), as_dtype("float32")))
    both = (replace(program, peers=()), *program.peers)
    assert len(agreed(lambda: schedule_jointly([replace(each) for each in both], TRN2))) == 2


def test_device_loops(core: None) -> None:
    def body(source: Any, result: Any) -> None:
        values, total = filled(tile(64)), filled(tile(64))

        def one(at: Any) -> None:
            nisa.activation(dst=values, op=nl.exp, data=values)
            nisa.tensor_tensor(dst=total, data1=total, data2=values, op=nl.add)

        for at in nl.dynamic_range(40):
            one(at)
        nisa.dma_copy(dst=result, src=total)

    program = traced(body, 64)
    assert program.loops
    assert len(same(program).start_ns) > 80


def test_an_empty_program(core: None) -> None:
    program = instruction(lambda: None)
    same(program.with_rows(np.zeros(0, np.int64)))
    same(program)


# --- any program ----------------------------------------------------------------------------------


def in_every_form(program: Program, machine: Machine) -> None:
    for form in ("as they stand", *(("compiled",) if NUMBA else ())):
        with in_form(form):
            same(program, machine)


def mixed(seed: int, length: int) -> Program:
    """All engines and queues, tiles of some partitions, sums in PSUM, tables, and descriptors written by software."""
    choose = random.Random(seed)
    queues: tuple[dict[str, Any], ...] = (
        {},
        {"engine": nisa.engine.gpsimd, "dge_mode": nisa.dge_mode.swdge},
        {"engine": nisa.engine.sync, "dge_mode": nisa.dge_mode.hwdge},
        {"engine": nisa.engine.scalar, "dge_mode": nisa.dge_mode.hwdge},
    )

    def body(given_: Any, result: Any) -> None:
        weights = filled(tile(P))
        tiles = [filled(tile(COLUMNS)) for _ in range(4)]
        for _ in range(length):
            kind, some, other = choose.randrange(7), choose.choice(tiles), choose.choice(tiles)
            rows = choose.choice((slice(0, P), slice(0, 32), slice(32, 64), slice(64, 128)))
            engine = choose.choice((nisa.engine.vector, nisa.engine.gpsimd))
            if kind == 0:
                nisa.dma_copy(dst=some[rows], src=given_[rows], **choose.choice(queues))
            elif kind == 1:
                nisa.dma_copy(dst=result[rows], src=some[rows], **choose.choice(queues))
            elif kind == 2:
                nisa.tensor_tensor(dst=some, data1=other, data2=other, op=nl.add, engine=engine)
            elif kind == 3:
                nisa.activation(dst=some, op=choose.choice((nl.exp, nl.square, nl.tanh)), data=other)
            elif kind == 4:
                total = tile(COLUMNS, buffer=nl.psum)
                for _ in range(choose.randrange(1, 5)):
                    nisa.nc_matmul(dst=total, stationary=weights, moving=choose.choice(tiles))
                nisa.tensor_copy(dst=some, src=total)
            elif kind == 5:
                tiles[choose.randrange(len(tiles))] = filled(tile(COLUMNS))
            else:
                nisa.tensor_copy(dst=some[:, :32], src=other[:, 32:])
        nisa.dma_copy(dst=result, src=tiles[0])

    return traced(body, COLUMNS)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([5, 6, 9, 14, 30]))
def test_rotating_tiles(seed: int, space: int) -> None:
    in_every_form(rotating_tiles(seed), replace(TRN2, sbuf_partition_bytes=space * TILE_BYTES))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 5, 7, 12]), st.sampled_from([0.0, 0.2, 0.8]))
def test_tiles_that_live_long(seed: int, space: int, whole: float) -> None:
    in_every_form(shared_tiles(seed, 60, whole), replace(TRN2, sbuf_partition_bytes=space * TILE_BYTES))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([20, 150]), st.sampled_from([TRN1, TRN2]))
def test_all_engines_and_queues(seed: int, length: int, machine: Machine) -> None:
    in_every_form(mixed(seed, length), replace(machine, dma_plain_descriptors="software"))


def test_a_long_program_needs_more_memory_than_a_short_one(core: None) -> None:
    """What grows as it fills: booked time on the DMA engines, gaps that engines remember."""
    same(mixed(7, 2500))


# --- when it is used ------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has timed nothing yet."""
    for name, value in (("rows", 0), ("decorated", None), ("core", None), ("chosen", None)):
        monkeypatch.setattr(compiled._State, name, value)


def test_what_is_kept_is_loaded_once_that_costs_less_than_going_on(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = True
    monkeypatch.setattr(compiled, "_decorated", plain_functions)
    monkeypatch.setattr(compiled, "_is_kept", lambda: kept)
    compiled.counted(compiled.LOAD_AFTER_ROWS - 1)
    compiled.counted(1)
    assert compiled.functions() is None
    kept = False
    compiled.counted(1)
    assert compiled.functions() is None, "nothing is compiled for so little"
    kept = True
    compiled.counted(1)
    assert compiled.functions() is not None


def test_enough_rows_are_worth_compiling_for(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_decorated", plain_functions)
    monkeypatch.setattr(compiled, "_is_kept", lambda: False)
    compiled.counted(compiled.COMPILE_AFTER_ROWS)
    assert compiled.functions() is None
    compiled.counted(1)
    assert compiled.functions() is not None


def test_without_a_folder_to_keep_anything_in_python_goes_on(
    fresh: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def njit(**options: Any) -> Any:
        raise RuntimeError("cannot cache function 'walked': no locator available for file 'compiled_walk.py'")

    numba = SimpleNamespace(njit=njit, config=SimpleNamespace(DISABLE_JIT=0))
    monkeypatch.setitem(sys.modules, "numba", numba)  # type: ignore[arg-type]  # as much of it as is used
    with caplog.at_level("DEBUG", compiled.__name__):
        for _ in range(3):
            compiled.counted(compiled.COMPILE_AFTER_ROWS)
    assert compiled.functions() is None
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "no locator available" in caplog.text
    with pytest.raises(RuntimeError, match=r"install Numba \(pip install '.\[fast\]'\)"), compiled.using(True):
        pass


WITHOUT = """
import sys
sys.modules["numba"] = None  # as if it were not there
sys.path.insert(0, "tests/nki_sim/machine")
from nki_sim import compiled, compiled_spills
from nki_sim.compiler import spills
from nki_sim.machine import TRN2
from nki_sim.schedule import schedule
from traced_kernels import matmul
compiled.LOAD_AFTER_ROWS = compiled.COMPILE_AFTER_ROWS = 1
print([repr(schedule(matmul(256, 128, 512), TRN2).latency_us) for _ in range(3)], compiled.functions())
"""


def test_without_numba_python_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with compiled.using(False):
        us = repr(schedule(matmul(256, 128, 512), TRN2).latency_us)
    assert done.stdout.strip() == f"{[us] * 3} None"
