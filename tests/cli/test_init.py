"""`init`: a reference's beginning; what the kernel tells is filled in, what it does not raises when it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orchestrator
from accelopt_core.task import PrecisionPolicy
from infra.tasks.kernel_signature import signature_of
from infra.tasks.reference_reader import read_reference
from tests.e2e.kernels import IN_A_PACKAGE, SLOW

NORM = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, gain, count, out_dtype: str = "float32"):
    rows, n = x.shape
    assert rows % 128 == 0 and n % 512 == 0 and count >= 1
    out = nl.ndarray((rows, n), dtype=x.dtype, buffer=nl.shared_hbm)
    row = nl.ndarray((1, n), dtype=gain.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=gain.reshape((1, n)))
    for t in range(rows // 128):
        tile = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[t * 128 : (t + 1) * 128, 0:n])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=float(count))
        nisa.dma_copy(dst=out[t * 128 : (t + 1) * 128, 0:n], src=tile)
    return out
"""


@pytest.fixture(autouse=True)
def on_a_busy_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.commands.init.LIMIT_S", 900.0)
    monkeypatch.setattr("infra.commands.init._TRACE_S", 600.0)


def init(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = orchestrator.main(["init", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def names_of(path: Path) -> dict[str, Any]:
    text = path.read_text()
    read_reference(text, str(path))
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), names)
    return names


def test_shapes_come_from_a_trace_and_the_formula_is_a_todo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(SLOW)
    status, said, _ = init(capsys, tmp_path / "mine.py")
    written = tmp_path / "mine_reference.py"
    assert status == 0 and "smallest shapes that the kernel was found to trace at" in said and "mine.py" in said
    names = names_of(written)
    assert (names["ROWS"], names["N"]) == (512, 512), "N is a multiple of STEP"
    x, y = names["get_inputs"]()
    assert x.shape == y.shape == (512, 512) and x.dtype == np.float32
    with pytest.raises(NotImplementedError, match="TODO: what mine.py computes of x, y"):
        names["forward"](x, y)
    assert "# the kernel returns float32 [ROWS, N]" in written.read_text()


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(SLOW)
    (tmp_path / "mine_reference.py").write_text("precious\n")
    status, _, errors = init(capsys, tmp_path / "mine.py")
    assert status == 2 and "is there already" in errors
    assert (tmp_path / "mine_reference.py").read_text() == "precious\n"


def test_a_number_nobody_knows_is_a_todo_and_a_default_is_said(tmp_path, capsys) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    assert init(capsys, tmp_path / "norm.py")[0] == 0
    text = (tmp_path / "norm_reference.py").read_text()
    names = names_of(tmp_path / "norm_reference.py")
    assert names["N"] == 512 and "# gain [N]" in text and "out_dtype='float32'" in text
    with pytest.raises(NotImplementedError, match="TODO: count = its value"):
        names["get_inputs"]()
    filled = text.replace(next(line for line in text.splitlines() if "count = " in line), "    count = 3")
    exec(compile(filled, "filled", "exec"), names)
    assert [np.shape(each) for each in names["get_inputs"]()] == [(512, 512), (512,), ()]


def test_shapes_that_are_given_are_taken_and_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(SLOW)
    status, said, _ = init(capsys, tmp_path / "mine.py", "--shape", "256x512", "128x512:bfloat16")
    assert status == 0 and "the shapes are yours" in said
    x, y = names_of(tmp_path / "mine_reference.py")["get_inputs"]()
    assert x.shape == (256, 512) and y.shape == (128, 512) and y.dtype.name == "bfloat16"


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (("256x512",), "1 shapes for 2 arrays"),
        (("256x512", "axb"), "write it as 128x512:float32"),
        (("512by1000",), "write it as 128x512:float32"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(tmp_path, capsys, shapes, said) -> None:
    (tmp_path / "mine.py").write_text(SLOW)
    status, _, errors = init(capsys, tmp_path / "mine.py", "--shape", *shapes)
    assert status == 2 and said in errors and not (tmp_path / "mine_reference.py").exists()


def test_a_kernel_that_traces_nowhere_gets_todos_and_the_reason(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("infra.commands.init.MOST_TRIED", 3)
    (tmp_path / "mine.py").write_text(SLOW.replace("rows, n = x.shape", "rows, n = x.shape\n    assert n == 7, 'odd'"))
    status, said, _ = init(capsys, tmp_path / "mine.py")
    assert status == 0 and "no shape was found" in said and "odd" in said
    with pytest.raises(NotImplementedError, match="the shape of x, the shape of y"):
        names_of(tmp_path / "mine_reference.py")["get_inputs"]()


def test_a_kernel_in_a_package_is_traced_with_its_neighbours(tmp_path, capsys) -> None:
    for name, text in IN_A_PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    status, said, _ = init(capsys, tmp_path / "pack" / "add.py", "--function", "add_rows")
    assert status == 0 and "smallest" in said
    assert "def forward(x, y):" in (tmp_path / "pack" / "add_reference.py").read_text()


@pytest.mark.parametrize(
    ("body", "sizes"),
    [
        ("M, K = x.shape\n    K_w, N = w.shape\n    assert K_w == K", (("M", "K"), ("K", "N"))),
        ("M, K = x.shape[0], x.shape[1]\n    N = w.shape[1]", (("M", "K"), ("W_0", "N"))),
        ("a = x[0:128, 0:4, 1]\n    b = w[...]", (("X_0", "X_1", "X_2"), None)),
        ("_, K = x.shape\n    *rest, N = w.shape", (("X_0", "K"), None)),
    ],
)
def test_sizes_are_called_what_the_kernel_calls_them(body: str, sizes: tuple[object, ...]) -> None:
    found = signature_of(f"def kernel(x, w, eps: float, axis=1, *, kind='a'):\n    {body}\n", ("kernel",))
    assert tuple(each.sizes for each in found.arrays) == sizes
    assert [each.name for each in found.unknown] == ["eps"]
    assert [each.default for each in found.parameters] == [None, None, None, "1", "'a'"]


ROUTER = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def router(x, gain, w_q):
    T, D = x.shape
    E = w_q.shape[1]
    out = nl.ndarray((T, E), dtype=nl.float32, buffer=nl.shared_hbm)
    row = nl.ndarray((1, D), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=gain[0:1, 0:D])
    narrow = nl.ndarray((D, E), dtype=nl.int8, buffer=nl.sbuf)
    nisa.dma_copy(dst=narrow, src=w_q[0:D, 0:E])
    wide = nl.ndarray((D, E), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=narrow)
    turned = nl.ndarray((D, T), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_transpose(dst=turned, src=x[0:T, 0:D])
    product = nl.ndarray((T, E), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=turned, moving=wide)
    tile = nl.ndarray((T, E), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=product)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""


def test_types_are_those_of_tiles_and_sizes_go_with_what_they_grow_with(tmp_path, capsys) -> None:
    """A row is no matrix, int8 weights are no float32, and a weight's rows are the columns of what it multiplies."""
    (tmp_path / "router.py").write_text(ROUTER)
    status, _, errors = init(capsys, tmp_path / "router.py", "--function", "router")
    assert status == 0, errors
    text = (tmp_path / "router_reference.py").read_text()
    names = names_of(tmp_path / "router_reference.py")
    assert "# x [T, D]" in text and "# gain [1, D]" in text and "# w_q [D, E]" in text
    assert "GAIN_0" not in names and [each.dtype for each in names["get_inputs"]()] == ["float32", "float32", "int8"]


UNNAMED = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def scale(x, w):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(x.shape[0] // 128):
        tiles = [nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2)]
        nisa.dma_copy(dst=tiles[0], src=x[i * 128:(i + 1) * 128, :])
        nisa.dma_copy(dst=tiles[1], src=w)
        nisa.tensor_tensor(dst=tiles[0], data1=tiles[0], data2=tiles[1], op=nl.multiply)
        nisa.dma_copy(dst=out[i * 128:(i + 1) * 128, :], src=tiles[0])
    return out
"""


def test_sizes_that_nobody_names_are_those_of_the_first_array_which_is_no_row(tmp_path, capsys) -> None:
    (tmp_path / "scale.py").write_text(UNNAMED)
    init(capsys, tmp_path / "scale.py")
    text = (tmp_path / "scale_reference.py").read_text()
    assert "X_0 = 128" in text and "# x [X_0, X_1]" in text and "# w [X_0, X_1]" in text


ODD = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    rows, n = x.shape
    assert n % 7 == 5, "n is odd"
    out = nl.ndarray((rows, n), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((rows, n), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[0:rows, 0:n])
    nisa.dma_copy(dst=out[0:rows, 0:n], src=tile)
    return out
"""


def test_while_shapes_are_tried_it_says_so_and_what_spares_it(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("infra.commands.init.EVERY_S", 0.0)
    monkeypatch.setattr("infra.commands.init.MOST_TRIED", 3)
    (tmp_path / "odd.py").write_text(ODD)
    status, said, errors = init(capsys, tmp_path / "odd.py")
    assert status == 0 and "remove the file, and name them: --shape 512x512" in said
    first, second, *_ = errors.splitlines()
    assert first == "init: trying shapes until the kernel traces, at most 900 s; --shape 512x512 spares it"
    assert second.startswith("init: 0 tried") and "init: 2 tried: " in errors and "n is odd" in errors
    status, _, errors = init(capsys, tmp_path / "odd.py", "--shape", "64x75")
    assert status == 2 and "is left as it is: to begin anew, remove it first" in errors
    (tmp_path / "odd_reference.py").unlink()
    status, said, errors = init(capsys, tmp_path / "odd.py", "--shape", "64x75")
    assert status == 0 and "the kernel traces at them" in said and "trying shapes" not in errors


def test_a_kernel_of_16_bits_gets_what_lets_it_be_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    assert init(capsys, tmp_path / "odd.py", "--shape", "64x75:bfloat16")[0] == 0
    text = (tmp_path / "odd_reference.py").read_text()
    declared = read_reference(text, "odd_reference.py")
    assert (declared.precision, declared.tolerance) == (PrecisionPolicy.BF16_ALLOWED, 5e-3)
    (tmp_path / "odd_reference.py").unlink()
    assert init(capsys, tmp_path / "odd.py", "--shape", "64x75")[0] == 0
    assert "PRECISION" not in (tmp_path / "odd_reference.py").read_text()
