"""The timing model's loops: one text, the same results as machine code and as plain Python, and when which is used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nki_sim
from benchmarks import calibration_kernels as calibration
from benchmarks import device_mamba, device_matmuls
from nki_sim import machine_code
from nki_sim.dtypes import as_dtype
from nki_sim.encoding.program_file import dumps
from nki_sim.machine import TRN2, Machine
from nki_sim.nki.kernel import jit
from nki_sim.program.program import Edge, Program
from nki_sim.timing.joint import schedule_jointly
from nki_sim.timing.schedule import Timeline, schedule
from nki_sim.tracing.session import TensorSpec
from tests.nki_sim.compiler.random_kernels import TILE_BYTES, rotating_tiles, shared_tiles
from tests.nki_sim.machine.traced_kernels import P, filled, matmul, nisa, nl, tile, traced

ROOT = Path(__file__).resolve().parents[3]


def both(make: Callable[[], tuple[Timeline, ...]]) -> tuple[Timeline, ...]:
    """The timelines, which have to be the same bits on both ways."""
    with machine_code.using(False):
        expected = make()
    with machine_code.using(True):
        found = make()
    for one, other in zip(expected, found, strict=True):
        for name in (field.name for field in fields(Timeline)):
            wanted, got = getattr(one, name), getattr(other, name)
            if isinstance(wanted, Program):
                assert dumps(got) == dumps(wanted), name
            elif isinstance(wanted, np.ndarray):
                assert got.dtype == wanted.dtype and got.tobytes() == wanted.tobytes(), name
            else:
                assert got == wanted, name
    return expected


def alike(program: Program, machine: Machine = TRN2) -> Timeline:
    """Of copies, so that what one way finds of a program is not there for the other."""
    return both(lambda: (schedule(replace(program), machine),))[0]


def on_parts(source: Any, result: Any) -> None:
    """Products on parts of TensorE's array, and on all of it."""
    weights, values = filled(tile(P, nl.bfloat16)), filled(tile(dtype=nl.bfloat16))
    for at in range(20):
        row = (0, 64, 0, 64, 64)[at % 5]
        half = slice(row, row + 64)
        where = {"tile_position": (row, 0), "tile_size": (64, P)}
        nisa.nc_matmul(dst=tile(buffer=nl.psum), stationary=weights[half], moving=values[half], **where)
        if at % 7 == 0:
            nisa.nc_matmul(dst=tile(buffer=nl.psum), stationary=weights, moving=values)
    nisa.dma_copy(dst=result, src=source)


def placed(given: Any, result: Any) -> None:
    for partition, byte, columns in ((0, 0, 128), (0, 0, 64), (0, 256, 64), (0, 512, 64)) * 2:
        values = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.sbuf, address=(partition, byte))
        nisa.memset(dst=values, value=0.0)
        nisa.activation(dst=values, op=nl.square, data=values)
    nisa.dma_copy(dst=result, src=given)


@pytest.mark.parametrize(
    ("make", "machine"),
    [
        (lambda: calibration.matmul_fully_blocked(1024, 512, 1024, 2, 2, 4), TRN2),
        (lambda: calibration.adamw(512, rows=1280), TRN2),
        (lambda: device_matmuls.tiled(512, 256, 1024, "bfloat16", row_resident=True), TRN2),
        (lambda: device_mamba.mamba(128, 512, 4, 256), TRN2),
        (
            lambda: device_matmuls.blocked(512, 1024, 1024, 2, 2, 4),
            replace(TRN2, sbuf_partition_bytes=48 << 10),
        ),
        (
            lambda: replace(rotating_tiles(3), edges=(Edge(2, 9),)),
            replace(TRN2, sbuf_partition_bytes=6 * TILE_BYTES),
        ),
        (lambda: shared_tiles(3, 60, 0.2), replace(TRN2, sbuf_partition_bytes=5 * TILE_BYTES)),
        (lambda: traced(on_parts), TRN2),
        (lambda: traced(placed, 64), TRN2),
    ],
    ids=[
        "blocked", "adamw", "row resident", "an engine's own order", "spills", "rotation, and an edge",
        "slices of tiles that stay outside", "parts of the array", "tiles with addresses",
    ],
)  # fmt: skip
def test_both_ways_come_to_the_same_bits(make: Callable[[], Program], machine: Machine) -> None:
    alike(make(), machine)


def test_two_cores_too() -> None:
    def kernel(source: Any) -> Any:
        me = nl.program_id(0)
        result = nl.ndarray((2 * P, 64), nl.float32, buffer=nl.shared_hbm)
        values, spare = tile(64), tile(64)
        here = slice(me * P, (me + 1) * P)
        nisa.dma_copy(dst=values, src=source[here])
        for at in range(4):
            for _ in range(5 if at % 2 == me else 0):
                nisa.activation(dst=values, op=nl.square, data=values)
            nisa.sendrecv(src=values, dst=spare, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
            values, spare = spare, values
        nisa.dma_copy(dst=result[here], src=values)
        return result

    program = nki_sim.trace(jit(kernel)[2], TensorSpec((2 * P, 64), as_dtype("float32")))
    cores = (replace(program, peers=()), *program.peers)
    assert len(both(lambda: schedule_jointly([replace(each) for each in cores], TRN2))) == 2


def test_every_text_is_known_and_none_calls_another_one() -> None:
    """Numba's cache asks only a function's own file whether what it keeps is still valid."""
    machine_code.compile_all()
    texts = {f"nki_sim.{text}" for text in machine_code.TEXTS}
    names = {each.function.__name__: each.function.__module__ for each in machine_code._FUNCTIONS}
    assert set(names.values()) == texts and len(names) == len(machine_code._FUNCTIONS)
    for each in machine_code._FUNCTIONS:
        for called in each.function.__code__.co_names:
            assert names.get(called, each.function.__module__) == each.function.__module__, (each, called)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As in a process that has timed nothing yet, whose machine code goes to this folder; it is not compiled here."""
    for name, value in (("rows", 0), ("loaded", None), ("use", False)):
        monkeypatch.setattr(machine_code._State, name, value)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(machine_code, "_compile", lambda folder: None)
    return tmp_path


def test_what_is_kept_is_loaded_once_that_costs_less_than_going_on(fresh: Path) -> None:
    machine_code._mark(fresh).touch()
    machine_code.counted(machine_code.LOAD_AFTER_ROWS - 1)
    assert not machine_code._State.use
    machine_code.counted(1)
    assert machine_code._State.use


def test_one_process_compiles_and_the_others_go_on(fresh: Path) -> None:
    with machine_code._only_one(fresh) as mine:
        assert mine
        machine_code.counted(machine_code.COMPILE_AFTER_ROWS)
        assert not machine_code._State.use
    machine_code.counted(1)
    assert machine_code._State.use


WITHOUT = """
import logging, sys
sys.modules["numba"] = None  # as if it were not there
sys.path[:0] = ["tests/nki_sim/machine"]
from nki_sim import machine_code
from nki_sim.machine import TRN2
from nki_sim.timing.schedule import schedule
from traced_kernels import matmul
logging.basicConfig(format="%(message)s")
machine_code.LOAD_AFTER_ROWS = machine_code.COMPILE_AFTER_ROWS = 1
print([repr(schedule(matmul(256, 128, 512), TRN2).latency_us) for _ in range(3)])
"""


def test_without_numba_the_same_text_runs_and_says_so_once() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    us = repr(schedule(matmul(256, 128, 512), TRN2).latency_us)
    assert done.stdout.strip() == str([us] * 3)
    assert done.stderr.count("Numba cannot be used") == 1 and "slower" in done.stderr


BEFORE_OTHERS = """
from nki_sim import machine_code
with machine_code.using(True):
    assert machine_code._FUNCTIONS and all(each.code is not None for each in machine_code._FUNCTIONS)
    known = len(machine_code._FUNCTIONS)
    from nki_sim.timing import schedule
    assert len(machine_code._FUNCTIONS) == known
"""


def test_machine_code_is_of_every_text_whatever_was_imported_before() -> None:
    done = subprocess.run([sys.executable, "-c", BEFORE_OTHERS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
