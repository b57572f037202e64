"""Kernels run as Python with numbers, and as a Program without Python; both give the same."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import nki_sim
from nki_sim.dtypes import as_dtype
from nki_sim.encoding import program_file
from nki_sim.errors import NkiError, NkiValidationError, NotSupported, OutOfBounds
from nki_sim.execution.executor import execute
from nki_sim.nki import isa as nisa
from nki_sim.nki import jit, simulate
from nki_sim.nki import language as nl
from nki_sim.nki.simulator import simulate_kernel
from nki_sim.program.program import Edge, Program
from nki_sim.tracing.session import TensorSpec


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, as_dtype(dtype))


def ramp(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def through_a_file(program: Program) -> Program:
    return program_file.loads(program_file.dumps(program))


def copy_through_sbuf(dst: Any, src: Any) -> None:
    tile = nl.ndarray(src.shape, src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src)
    nisa.dma_copy(dst=dst, src=tile)


@jit
def copy(a: Any) -> Any:
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    copy_through_sbuf(out, a)
    return out


def test_arrays_are_found_wherever_they_are_in_the_arguments() -> None:
    @dataclass
    class Config(nl.NKIObject):
        weight: Any
        scale: float = 2.0

    @jit
    def kernel(tensors: Any, named: Any, config: Any, missing: Any = None, flag: bool = True) -> Any:
        assert missing is None and flag
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        total = nl.zeros((4, 8), nl.float32)
        for source in (tensors[0], tensors[1][0], named["x"], config.weight):
            tile = nl.ndarray((4, 8), nl.float32)
            nisa.dma_copy(dst=tile, src=source)
            nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
        nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=config.scale)
        nisa.dma_copy(dst=out, src=total)
        return out

    a = [ramp(4, 8) * k for k in range(1, 5)]
    config = Config(a[3])
    result = simulate(kernel)((a[0], [a[1]]), {"x": a[2]}, config=config)
    np.testing.assert_array_equal(result, 20 * ramp(4, 8))
    assert config.weight is a[3], "the caller's object is not changed"


def test_inputs_that_a_kernel_writes_are_updated_in_place_and_others_are_not_copied_or_touched() -> None:
    @jit
    def kernel(a: Any, b: Any) -> Any:
        copy_through_sbuf(a[0:2, :], b[2:4, :])
        return a

    a, b = ramp(4, 8), -ramp(4, 8)
    b.flags.writeable = False
    result = simulate(kernel)(a, b)
    np.testing.assert_array_equal(a[:2], b[2:])
    np.testing.assert_array_equal(result, a)
    fresh = ramp(4, 8)
    (replayed,) = execute(nki_sim.trace(kernel, spec(4, 8), spec(4, 8)), [fresh, b])
    np.testing.assert_array_equal(replayed, a)
    np.testing.assert_array_equal(fresh, ramp(4, 8), "execute leaves its inputs alone")


def test_results_keep_the_kernels_form() -> None:
    @jit
    def pair(a: Any) -> Any:
        return copy(a), copy(a)

    @jit
    def nothing(a: Any) -> None:
        copy(a)

    assert isinstance(simulate(pair)(ramp(4, 8)), tuple)
    assert isinstance(simulate(copy)(ramp(4, 8)), np.ndarray)
    assert simulate(nothing)(ramp(4, 8)) is None
    np.testing.assert_array_equal(copy(ramp(4, 8)), ramp(4, 8))
    np.testing.assert_array_equal(simulate_kernel(copy, (ramp(4, 8),), {}, _lnc=1), ramp(4, 8))


def test_what_was_never_written_is_nan_or_four() -> None:
    @jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        numbers = nl.ndarray((4, 8), nl.int32, buffer=nl.shared_hbm)
        copy_through_sbuf(out[0:1, :], a[0:1, :])
        copy_through_sbuf(numbers, nl.ndarray((4, 8), nl.int32, buffer=nl.sbuf))
        return out, numbers

    out, numbers = simulate(kernel)(ramp(4, 8))
    assert np.isnan(out[1:]).all() and not np.isnan(out[0]).any()
    assert (numbers == 4).all()


def test_errors_carry_the_kernels_own_line() -> None:
    def kernel(a: Any) -> Any:
        tile = nl.ndarray((4, 9), nl.float32)
        nisa.dma_copy(dst=tile, src=a)  # this line
        return tile

    with pytest.raises(NkiValidationError) as caught:
        nki_sim.trace(kernel, spec(4, 8))
    assert caught.value.line == kernel.__code__.co_firstlineno + 2
    assert caught.value.file == __file__


WRONG_KERNELS = {
    "returns SBUF": (lambda a: nl.zeros((4, 8), nl.float32), NkiValidationError, "shared_hbm"),
    "returns private HBM": (lambda a: nl.zeros((4, 8), nl.float32, nl.hbm), NkiValidationError, "shared_hbm"),
    "returns a number": (lambda a: 3, NkiValidationError, "not int"),
    "returns what it never wrote": (
        lambda a: nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm),
        NkiValidationError,
        "NCC_IGCA090",
    ),
    "more than 128 partitions": (lambda a: nl.ndarray((129, 8), nl.float32), NkiValidationError, "128"),
    "1-d tile": (lambda a: nl.ndarray((128,), nl.float32), NkiValidationError, r"\(128, 1\)"),
    "buffer as a string": (lambda a: nl.ndarray((4, 8), nl.float32, buffer="sbuf"), NkiValidationError, "nl.sbuf"),
    "dtype the device lacks": (lambda a: nl.ndarray((4, 8), np.float64), NkiValidationError, "float64"),
    "dtype of trn3": (lambda a: nl.ndarray((4, 8), nl.float8_e4m3fn_x4), NotSupported, "trn3"),
    "shape of a register": (lambda a: nl.ndarray((nisa.register_alloc(2), 8), nl.float32), NkiValidationError, "known"),
    "range over a register": (lambda a: nl.affine_range(nisa.register_alloc(2)), NkiValidationError, "fori_loop"),
    "axis of the grid": (lambda a: nl.program_id(1), NkiValidationError, "axis 1"),
    "removed name": (lambda a: nl.arange(128), NotSupported, "slices"),
    "unknown name": (lambda a: nisa.nc_matmull(), NotSupported, "nc_matmul"),
    "instruction of trn3": (lambda a: nisa.quantize_mx(a, a, a), NotSupported, "trn3|NeuronCore-v4"),
    "token called on tiles": (lambda a: nl.prelu(a), NotSupported, "op=nl.prelu"),
}


@pytest.mark.parametrize("kernel, error, message", WRONG_KERNELS.values(), ids=WRONG_KERNELS.keys())
def test_a_wrong_kernel_is_refused_by_name(kernel: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        nki_sim.trace(kernel, spec(4, 8))


def test_the_target_generation_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "inf2")
    assert nki_sim.trace(copy, spec(4, 8)).machine == "trn1"
    assert nl.tile_size.sbuf_fmax_bytes == 180_224
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "gpu")
    with pytest.raises(NkiError, match="one of"):
        nki_sim.trace(copy, spec(4, 8))


def test_scheduling_edges_come_from_handles_names_and_blocks() -> None:
    @jit
    def kernel(a: Any) -> Any:
        first = nl.zeros((4, 8), nl.float32)
        x = nisa.memset(dst=first, value=1.0, name="x")
        y = nisa.memset(dst=nl.ndarray((4, 8), nl.float32), value=2.0, name="y")
        y.depends_on(x)
        with nl.no_reorder():
            for _ in range(3):
                nisa.memset(dst=nl.ndarray((4, 8), nl.float32), value=2.0)
        return copy(a)

    assert nki_sim.trace(kernel, spec(4, 8)).edges == (Edge(1, 2), Edge(3, 4), Edge(4, 5))
    assert Edge(1, 2) in nki_sim.trace(kernel.with_schedule([("y", ["x"])]), spec(4, 8)).edges[3:]
    with pytest.raises(NkiValidationError, match="'z'"):
        nki_sim.trace(kernel.with_schedule([("z", "x")]), spec(4, 8))
    with pytest.raises(NkiValidationError, match="issued after"):
        nki_sim.trace(kernel.with_schedule([("x", "y")]), spec(4, 8))


@jit
def gather_rows(data: Any, rows: Any) -> Any:
    out = nl.ndarray((8, data.shape[1]), data.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((8, 1), nl.int32)
    nisa.dma_copy(dst=index, src=rows)
    tile = nl.zeros((8, data.shape[1]), data.dtype)
    width = data.shape[1]
    source = data.ap([[width, 8], [1, width]], vector_offset=index, indirect_dim=0)
    nisa.dma_copy(dst=tile, src=source, oob_mode=nisa.oob_mode.skip)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_rows_are_gathered_by_indices_read_on_the_device_and_bad_ones_skipped() -> None:
    data, rows = ramp(16, 4), np.array([[3], [15], [-1], [0], [99], [7], [7], [2]], np.int32)
    expected = np.where((rows >= 0) & (rows < 16), data[np.clip(rows[:, 0], 0, 15)], 0)
    np.testing.assert_array_equal(simulate(gather_rows)(data, rows), expected)
    program = through_a_file(nki_sim.trace(gather_rows, spec(16, 4), spec(8, 1, dtype=np.int32)))
    np.testing.assert_array_equal(execute(program, [data, rows])[0], expected)


def test_a_scalar_index_selects_on_the_device_and_is_checked_there() -> None:
    @jit
    def kernel(data: Any, index: Any) -> Any:
        out = nl.ndarray((4, 8), data.dtype, buffer=nl.shared_hbm)
        at = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(dst=at, src=index)
        copy_through_sbuf(out, data.select(0, at))
        return out

    data = ramp(3, 4, 8)
    for i in range(3):
        np.testing.assert_array_equal(simulate(kernel)(data, np.array([[i]], np.int32)), data[i])
    for bad in (3, -1):
        with pytest.raises(OutOfBounds, match=str(bad)):
            simulate(kernel)(data, np.array([[bad]], np.int32))


@jit
def reverse_some_rows(data: Any, count: Any) -> Any:
    """out[i] = data[i] for i < count, by a device loop whose bound is read from memory."""
    out = nl.zeros(data.shape, data.dtype, buffer=nl.shared_hbm)
    bound = nl.ndarray((1, 1), nl.int32)
    nisa.dma_copy(dst=bound, src=count)
    upper = nisa.register_alloc()
    nisa.register_load(upper, bound)
    width = data.shape[1]

    def body(i: Any) -> None:
        tile = nl.ndarray((1, width), data.dtype)
        nisa.dma_copy(dst=tile, src=data.ap([[width, 1], [1, width]], scalar_offset=i, indirect_dim=0))
        nisa.dma_copy(dst=out.ap([[width, 1], [1, width]], scalar_offset=i, indirect_dim=0), src=tile)

    nl.fori_loop(0, upper, body)
    return out


@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_a_device_loop_runs_as_often_as_a_register_says(count: int) -> None:
    data, counts = ramp(8, 4) + 1, np.array([[count]], np.int32)
    expected = np.where(np.arange(8)[:, None] < count, data, 0)
    np.testing.assert_array_equal(simulate(reverse_some_rows)(data, counts), expected)
    program = through_a_file(nki_sim.trace(reverse_some_rows, spec(8, 4), spec(1, 1, dtype=np.int32)))
    assert len(program.loops) == 1 and program.loops[0].trips is None
    np.testing.assert_array_equal(execute(program, [data, counts])[0], expected)


def test_loops_nest_and_carry_state_through_sbuf() -> None:
    @jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
        total = nl.zeros((1, 1), nl.float32)

        def inner(j: Any) -> None:
            nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=1.0)

        def outer(i: Any) -> None:
            nl.fori_loop(0, 5, inner, step=2)
            for _ in nl.dynamic_range(1, 3):
                nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=100.0)

        nl.fori_loop(0, 4, outer)
        nisa.dma_copy(dst=out, src=total)
        return out

    assert simulate(kernel)(ramp(1, 1)) == 4 * (3 + 200)
    program = through_a_file(nki_sim.trace(kernel, spec(1, 1)))
    assert [loop.trips for loop in program.loops] == [4, 3, 2]
    assert execute(program, [ramp(1, 1)])[0] == 4 * (3 + 200)


def test_a_while_loop_ends_when_its_register_is_zero() -> None:
    @jit
    def kernel(count: Any) -> Any:
        out = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
        left = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(dst=left, src=count)
        total = nl.zeros((1, 1), nl.float32)
        register = nisa.register_alloc()
        nisa.register_load(register, left)

        def body(r: Any) -> Any:
            nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=2.0)
            nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1)
            nisa.register_load(r, left)
            return r

        nl.while_loop(register, body)
        nisa.dma_copy(dst=out, src=total)
        return out

    program = through_a_file(nki_sim.trace(kernel, spec(1, 1, dtype=np.int32)))
    for count in (0, 1, 6):
        counts = np.array([[count]], np.int32)
        assert simulate(kernel)(counts) == 2.0 * count
        assert execute(program, [counts])[0] == 2.0 * count


@jit
def swap_halves(a: Any) -> Any:
    """Each core loads its half, sends it to the other, and stores what it receives."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    me, half = nl.program_id(0), a.shape[0] // nl.num_programs(0)
    mine, other = nl.ndarray((half, a.shape[1]), a.dtype), nl.ndarray((half, a.shape[1]), a.dtype)
    nisa.dma_copy(dst=mine, src=a[nl.ds(me * half, half), :])
    nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    nisa.dma_copy(dst=out[nl.ds(me * half, half), :], src=other)
    nisa.core_barrier(data=out, cores=(0, 1))
    return out


def test_two_cores_share_hbm_and_exchange_tiles() -> None:
    a = ramp(8, 4)
    expected = np.concatenate([a[4:], a[:4]])
    for _ in range(3):
        np.testing.assert_array_equal(simulate(swap_halves[2])(a), expected)
        np.testing.assert_array_equal(simulate(swap_halves)[2](a), expected)
    program = through_a_file(nki_sim.trace(swap_halves[2], spec(8, 4)))
    assert len(program.peers) == 1
    np.testing.assert_array_equal(execute(program, [a])[0], expected)


def test_a_core_that_waits_for_nobody_is_a_named_deadlock() -> None:
    @jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        copy_through_sbuf(out, a)
        if nl.program_id(0) == 0:
            nisa.core_barrier(data=out, cores=(0, 1))
        return out

    with pytest.raises(NkiValidationError, match="deadlock.*core 0 at core_barrier.*core 1 has finished"):
        simulate(kernel[2])(ramp(4, 8))
    with pytest.raises(NkiValidationError, match="deadlock"):
        execute(nki_sim.trace(kernel[2], spec(4, 8)), [ramp(4, 8)])


def test_install_makes_nki_the_simulator_under_all_its_names() -> None:
    code = """
import nki_sim; nki_sim.install()
import nki, nki.isa as nisa, nki.language as nl, nki.typing as nt, nki.dtype, nki.collectives as ncc
from nki.isa.constants import oob_mode
import nki_cpu_simulator.nki.isa.constants as constants
from nki_cpu_simulator import nki as other
assert other is nki and constants.oob_mode is oob_mode is nisa.oob_mode
assert nl.float32 == nki.dtype.float32 == "float32" and nl.hbm is nl.private_hbm
group = ncc.ReplicaGroup
try:
    ncc.all_reduce(None)
except nki_sim.errors.NotSupported as error:
    assert "all_reduce" in str(error)
else:
    raise SystemExit("a collective did not raise")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
