"""A program survives the trip through a file; a forged or damaged file is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nki_sim
from nki_sim.dtypes import float32
from nki_sim.encoding import program_file
from nki_sim.errors import ProgramFormatError
from nki_sim.execution.executor import execute
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.program.allocations import Allocations
from nki_sim.program.program import Program
from nki_sim.tracing.session import TensorSpec


def small_kernel(a_t: Any, b: Any) -> Any:
    out = nl.ndarray((64, 32), nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray((64, 32), nl.float32, buffer=nl.psum)
    for k in range(2):
        left = nl.ndarray((16, 64), nl.float32, buffer=nl.sbuf)
        right = nl.ndarray((16, 32), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a_t[k * 16 : (k + 1) * 16, :])
        nisa.dma_copy(dst=right, src=b[k * 16 : (k + 1) * 16, :])
        nisa.nc_matmul(dst=acc, stationary=left, moving=right, accumulate=k > 0)
    result = nl.ndarray((64, 32), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    nisa.dma_copy(dst=out, src=result)
    return out


def traced() -> Program:
    return nki_sim.trace(small_kernel, TensorSpec((32, 64), float32), TensorSpec((32, 32), float32))


def test_a_loaded_program_is_the_dumped_one_and_computes_the_same(tmp_path: Any) -> None:
    program = traced()
    program_file.dump(program, tmp_path / "k.nkiprog")
    loaded = program_file.load(tmp_path / "k.nkiprog")
    assert program_file.dumps(loaded) == program_file.dumps(program)
    assert loaded.templates == program.templates
    assert loaded.allocations == program.allocations
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((32, 64), np.float32), rng.standard_normal((32, 32), np.float32)
    np.testing.assert_array_equal(execute(loaded, [a, b])[0], execute(program, [a, b])[0])
    np.testing.assert_allclose(execute(loaded, [a, b])[0], a.T @ b, rtol=1e-5, atol=1e-5)


def edited(change: Callable[[dict[str, Any]], None]) -> bytes:
    """The dumped program with its header changed."""
    data = program_file.dumps(traced())
    length = int.from_bytes(data[8:16], "little")
    header = json.loads(data[16 : 16 + length])
    change(header)
    text = json.dumps(header).encode()
    return data[:8] + len(text).to_bytes(8, "little") + text + data[16 + length :]


def set_field(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        target: Any = header
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = to

    return change


HOSTILE_HEADERS = {
    "another format version": (set_field("version", to=99), "version 99"),
    "unknown machine": (set_field("machine", to="gpu"), "machine"),
    "header field of the wrong type": (set_field("kernel_name", to=7), "kernel_name"),
    "unknown instruction": (set_field("templates", 0, 0, to="os.system"), "unknown instruction"),
    "unknown engine": (set_field("templates", 0, 1, to="quantum"), "Engine"),
    "unresolved engine": (set_field("templates", 0, 1, to="unknown"), "engine unknown"),
    "attribute of a foreign enum": (set_field("templates", 0, 2, 1, to={"enum": ["Enum", "none"]}), "is not a"),
    "attribute count": (set_field("templates", 0, 2, to=[]), "is not a"),
    "operand missing": (set_field("templates", 0, 3, to=[]), "template"),
    "operand role forged": (set_field("templates", 0, 3, 1, 0, to="nothing"), "dma_copy"),
    "access forged": (set_field("templates", 0, 3, 0, 1, to="x"), "damaged"),
    "region forged": (set_field("templates", 0, 3, 0, 2, to="shared_hbm"), "partition size"),
    "pattern without pairs": (set_field("templates", 0, 3, 0, 4, to=[]), "pattern"),
    "negative size": (set_field("templates", 0, 3, 0, 4, to=[[64, 16], [1, -64]]), "positive"),
    "huge size": (set_field("templates", 0, 3, 0, 4, to=[[64, 1 << 40], [1, 1 << 40]]), "positive"),
    "absurd integer": (set_field("templates", 0, 3, 0, 4, to=[[1 << 60, 16], [1, 64]]), "unexpected value"),
    "rule of the hardware broken": (set_field("templates", 0, 3, 1, 4, to=[[64, 16], [1, 63]]), "dma_copy"),
    "access leaves its buffer": (set_field("templates", 0, 3, 1, 4, to=[[6400, 16], [1, 64]]), "leaves its buffer"),
    "buffer shape": (set_field("allocations", 0, 1, to=[]), "shape"),
    "buffer larger than memory": (set_field("allocations", 0, 1, to=[1 << 40]), "larger than the device"),
    "buffer with too many partitions": (set_field("allocations", 2, 0, to="sbuf"), "not in HBM"),
    "unknown dtype": (set_field("allocations", 0, 2, to="float128"), "dtype"),
    "unknown region": (set_field("allocations", 0, 0, to="disk"), "MemoryRegion"),
    "input outside the buffers": (set_field("inputs", 0, 0, to=1000), "names buffer"),
    "input leaves its buffer": (set_field("inputs", 0, 1, to=5), "leaves"),
    "inputs share a buffer": (lambda h: h["inputs"].append(h["inputs"][0]), "share"),
    "edge outside the stream": (set_field("edges", to=[[0, 10_000]]), "edge"),
    "edge backwards": (set_field("edges", to=[[3, 1]]), "edge"),
    "foreign array": (lambda h: h["arrays"].append(["secret", "|u1", [0]]), "does not belong"),
    "array of objects": (set_field("arrays", 0, 1, to="|O"), "does not belong"),
    "array longer than the file": (set_field("arrays", 0, 2, to=[1 << 40]), "truncated"),
    "array left out": (lambda h: h["arrays"].pop(), "after the last|missing"),
}


@pytest.mark.parametrize("change, message", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS.keys())
def test_a_forged_header_is_refused(change: Callable[[dict[str, Any]], None], message: str) -> None:
    with pytest.raises(ProgramFormatError, match=message):
        program_file.loads(edited(change))


def forged(**fields: Any) -> bytes:
    program = traced()
    for name, value in fields.items():
        object.__setattr__(program, name, value)
    return program_file.dumps(program)


def test_a_stream_row_outside_its_tables_is_refused() -> None:
    program = traced()
    ids = program.template_ids.copy()
    ids[2] = len(program.templates)
    with pytest.raises(ProgramFormatError, match="names a template"):
        program_file.loads(forged(template_ids=ids))
    for value, message in ((len(program.allocations), "names a buffer"), (-1, "names a buffer")):
        data = program.operand_data.copy()
        data[3, 0] = value
        with pytest.raises(ProgramFormatError, match=message):
            program_file.loads(forged(operand_data=data))
    for value in (-1, 1 << 40):
        data = program.operand_data.copy()
        data[1, 1] = value
        with pytest.raises(ProgramFormatError, match="leaves its buffer"):
            program_file.loads(forged(operand_data=data))
    starts = program.operand_starts.copy()
    starts[1] += 1
    with pytest.raises(ProgramFormatError, match="operand counts"):
        program_file.loads(forged(operand_starts=starts))


def test_kinds_of_buffers_are_written_as_dumps_writes_them() -> None:
    """Each once, in the order of their first buffers, and every buffer of one: equal programs have equal bytes."""
    honest = traced().allocations
    kinds, kind_of, at = honest.kinds, honest.kind_of, honest.allocated_at

    def of_kinds(*numbers: int) -> np.ndarray:
        return np.concatenate((np.array(numbers, np.int32), kind_of[len(numbers) :]))

    for forged_ones, message in (
        (Allocations(kinds, of_kinds(len(kinds)), at), "outside"),
        (Allocations(kinds, of_kinds(-1), at), "outside"),
        (Allocations((*kinds, kinds[0]), kind_of, at), "twice"),
        (Allocations((*kinds, kinds[0]._replace(line=999)), kind_of, at), "in the order"),
        (Allocations((kinds[1], kinds[0], *kinds[2:]), of_kinds(1, 0), at), "in the order"),
        (Allocations(kinds, kind_of[:-1], at), "belong together"),
        (Allocations(kinds, kind_of.reshape(1, -1), at.reshape(1, -1)), "belong together"),
        (Allocations(kinds, kind_of, at - 1), "before the program begins"),
        (Allocations(kinds, kind_of, at + (1 << 60)), "or never"),
        (Allocations(kinds, kind_of, at + 1), "not before its first use"),
    ):
        with pytest.raises(ProgramFormatError, match=message):
            program_file.loads(forged(allocations=forged_ones))


def test_a_buffer_swapped_for_one_of_another_memory_is_refused() -> None:
    program = traced()
    data = program.operand_data.copy()
    data[0, 0] = program.inputs[0].allocation
    with pytest.raises(ProgramFormatError, match="another memory"):
        program_file.loads(forged(operand_data=data))


@given(st.data())
def test_no_damage_crashes_the_reader(data: Any) -> None:
    """Whatever bytes are flipped or cut, load gives a program or ProgramFormatError; nothing else."""
    whole = bytearray(_DUMPED)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))]) if data.draw(st.booleans()) else bytes(whole)
    try:
        program_file.loads(cut)
    except ProgramFormatError:
        pass


_DUMPED = program_file.dumps(traced())


def looped_kernel(count: Any) -> Any:
    out = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
    total = nl.zeros((1, 1), nl.float32)
    nl.fori_loop(0, 3, lambda i: nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=1.0) and None)
    nisa.dma_copy(dst=out, src=total)
    return out


HOSTILE_LOOPS = {
    "unknown kind": (0, "until", "kind"),
    "rows backwards": (1, 50, "loop over rows"),
    "rows past the end": (2, 99, "loop over rows"),
    "counter is no buffer": (3, 99, "register"),
    "counter is not a register": (3, 0, "register"),
    "bound is not a register": (5, [0, 0], "register"),
    "bound too large": (5, [1 << 40, None], "loop over rows"),
    "step zero": (6, 0, "loop over rows"),
    "while without a next register": (0, "while", "register"),
}


@pytest.mark.parametrize("field, value, message", HOSTILE_LOOPS.values(), ids=HOSTILE_LOOPS.keys())
def test_a_forged_loop_is_refused(field: int, value: Any, message: str) -> None:
    program = nki_sim.trace(looped_kernel, TensorSpec((1, 1), float32))
    data = program_file.dumps(program)
    assert execute(program_file.loads(data), [np.zeros((1, 1), np.float32)])[0] == 3
    length = int.from_bytes(data[8:16], "little")
    header = json.loads(data[16 : 16 + length])
    header["loops"][0][field] = value
    text = json.dumps(header).encode()
    with pytest.raises(ProgramFormatError, match=message):
        program_file.loads(data[:8] + len(text).to_bytes(8, "little") + text + data[16 + length :])
