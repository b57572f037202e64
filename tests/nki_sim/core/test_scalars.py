"""Scalars of NKI 0.7 compute what NumPy computes at their width, steer addresses and loops, and are no Python ints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nki_sim
from nki_sim import dtypes
from nki_sim.dtypes import DType
from nki_sim.encoding import program_file
from nki_sim.errors import DeviceValueMisused, NkiError, NkiValidationError, OutOfBounds
from nki_sim.execution.executor import execute
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.nki import simulate
from nki_sim.nki.run import simulate as simulated
from nki_sim.proofs.algebra import Algebra
from nki_sim.proofs.execution import FieldRun, Input
from nki_sim.tracing.session import TensorSpec

ROWS, WIDTH = 12, 5
TABLE = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
WIDTHS = st.sampled_from([np.int32, np.int64])


def both_ways(kernel: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """What the kernel's Python gives with numbers, which its program gives too, also after a file."""
    (result,) = [simulated(kernel)(*arrays)]
    program = program_file.loads(program_file.dumps(nki_sim.trace(kernel, *arrays)))
    (executed,) = execute(program, list(arrays))
    np.testing.assert_array_equal(result, executed)
    return executed


Expression = Callable[[list[Any]], Any]
"""From leaves (scalars, or NumPy integers of their width) to a value."""
Expressions = st.SearchStrategy[Expression]
Width = type[np.signedinteger[Any]]


def _constants(width: Width) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(-9, 9), st.integers(int(np.iinfo(width).min), int(np.iinfo(width).max)))


def _combined(width: Width, inner: Expressions) -> Expressions:
    def of_two(op: str, left: Expression, right: Expression) -> Expression:
        return lambda leaves: {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}[op](
            left(leaves), right(leaves)
        )

    def with_constant(op: str, left: Expression, constant: int, swap: bool) -> Expression:
        def constant_of(leaves: list[Any]) -> Any:
            return width(constant) if isinstance(leaves[0], np.integer) else constant

        return of_two(op, constant_of, left) if swap else of_two(op, left, constant_of)

    operators = st.sampled_from("+-*")
    return st.one_of(
        st.builds(of_two, operators, inner, inner),
        st.builds(with_constant, operators, inner, _constants(width), st.booleans()),
        st.builds(lambda e: lambda leaves: -e(leaves), inner),
    )


def expressions(width: Width) -> Expressions:
    leaves: list[Expression] = [lambda leaves: leaves[0], lambda leaves: leaves[1]]
    return st.recursive(st.sampled_from(leaves), lambda inner: _combined(width, inner), max_leaves=6)


@given(st.data(), WIDTHS)
def test_arithmetic_is_that_of_integers_of_its_width(data: st.DataObject, width: Width) -> None:
    expression = data.draw(expressions(width))
    numbers = np.array([[data.draw(_constants(width))], [data.draw(_constants(width))]], width)

    def kernel(numbers: Any) -> Any:
        out = nl.ndarray((1, 1), numbers.dtype, buffer=nl.shared_hbm)
        nisa.scalar_store(out, expression([nisa.scalar_load(numbers[at : at + 1, :]) for at in range(2)]))
        return out

    with np.errstate(over="ignore"):
        wanted = expression([numbers[0, 0], numbers[1, 0]])
    assert both_ways(kernel, numbers)[0, 0] == wanted


@given(st.integers(-3000, 3000), st.integers(-3000, 3000))
def test_proofs_compute_with_them(first: int, second: int) -> None:
    def kernel(numbers: Any) -> Any:
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        a, b = nisa.scalar_load(numbers[0:1, :]), nisa.scalar_load(numbers[1:2, :])
        nisa.scalar_store(out, 5 - a * b + (-a))
        return out

    algebra = Algebra(3)
    program = nki_sim.trace(kernel, TensorSpec((2, 1), dtypes.int32))
    found = FieldRun(program, [Input(np.array([[first], [second]]))]).execute(algebra).outputs

    assert algebra.small_integers(found[0]).item() == 5 - first * second - first


def row(tensor: Any, i: Any) -> Any:
    return tensor.ap([[WIDTH, 1], [1, WIDTH]], scalar_offset=i, indirect_dim=0)


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3), WIDTHS)
def test_a_loop_with_scalar_bounds_visits_what_range_visits(low: int, count: int, step: int, width: Width) -> None:
    """Rows 2 i + 1 for i in range(low, low + count, step); the offset may have either width."""

    def kernel(table: Any, bounds: Any, shift: Any) -> Any:
        out = nl.zeros((ROWS, WIDTH), nl.float32, buffer=nl.shared_hbm)
        lower, size = nisa.scalar_load(bounds[0:1, :]), nisa.scalar_load(bounds[1:2, :])
        one = nisa.scalar_load(shift)

        def body(i: Any) -> None:
            assert isinstance(i, nisa.NkiScalar) and i.dtype == nl.int32
            tile = nl.ndarray((1, WIDTH), nl.float32)
            nisa.dma_copy(dst=tile, src=row(table, 2 * i + 1))
            nisa.dma_copy(dst=row(out, i * 2 + 1), src=tile)
            if one.dtype == nl.int32:
                nisa.dma_copy(dst=out.select(0, i - i), src=tile)
                nisa.dma_copy(dst=tile, src=row(table, one))
            else:
                nisa.dma_copy(dst=tile, src=row(table, one * 1))

        nl.fori_loop(lower, lower + size, body, step)
        return out

    bounds, shift = np.array([[low], [count]], np.int32), np.array([[1]], width)
    visited = [2 * i + 1 for i in range(low, low + count, step)]
    wanted = np.zeros_like(TABLE)
    wanted[visited] = TABLE[visited]
    if visited and width is np.int32:
        wanted[0] = TABLE[visited[-1]]
    np.testing.assert_array_equal(both_ways(kernel, TABLE, bounds, shift), wanted)


@pytest.mark.parametrize("place", [ROWS, 1 << 31, 1 << 61, 1 << 62, (1 << 63) - 1, -1, -(1 << 63)])
def test_a_64_bit_offset_outside_is_found_however_far(place: int) -> None:
    """The product with the stride would wrap back into the tensor."""

    def kernel(table: Any, number: Any) -> Any:
        out = nl.ndarray((1, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=table.ap([[4, 1], [1, 4]], scalar_offset=nisa.scalar_load(number)))
        return out

    table, number = np.zeros((ROWS, 4), np.float32), np.array([[place]], np.int64)
    program = nki_sim.trace(kernel, table, number)
    with pytest.raises(OutOfBounds, match=f"index {place} read on the device"):
        execute(program, [table, number])


MISUSES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "if": (lambda s: 1 if s else 2, "in if"),
    "while": (lambda s: bool(s), "fori_loop or nl.while_loop"),
    "not": (lambda s: not s, "in if"),
    "a comparison in if": (lambda s: 1 if s > 2 else 2, "in if"),
    "int()": (lambda s: int(s), "as an int"),
    "float()": (lambda s: float(s), "as a float"),
    "range()": (lambda s: range(s), r"range\(\)"),
    "an index of a list": (lambda s: [1, 2][s], "as an index"),
    "//": (lambda s: s // 2, "unary - only"),
    "%": (lambda s: 7 % s, "unary - only"),
    "<<": (lambda s: s << 1, "unary - only"),
    "a float operand": (lambda s: s + 1.5, "not float"),
    "a register operand": (lambda s: s + nisa.register_alloc(1), "not VirtualRegister"),
}


def of_one_number(use: Callable[[Any], Any], dtype: DType = dtypes.int32, numbers: bool = False) -> None:
    def kernel(number: Any) -> Any:
        use(nisa.scalar_load(number))
        return nl.zeros((1, 1), nl.int32, buffer=nl.shared_hbm)

    if numbers:
        simulate(kernel)(np.array([[3]], dtype.numpy))
    else:
        nki_sim.trace(kernel, TensorSpec((1, 1), dtype))


@pytest.mark.parametrize("numbers", [False, True], ids=["traced", "with numbers"])
@pytest.mark.parametrize("use, says", MISUSES.values(), ids=MISUSES)
def test_python_cannot_have_its_value(use: Callable[[Any], Any], says: str, numbers: bool) -> None:
    with pytest.raises(TypeError, match=says) as caught:
        of_one_number(use, numbers=numbers)
    assert isinstance(caught.value, DeviceValueMisused) and caught.value.file == __file__


def tile(dtype: Any = nl.int32, shape: tuple[int, ...] = (1, 1), buffer: Any = nl.sbuf) -> Any:
    return nl.ndarray(shape, dtype, buffer=buffer)


REFUSED: dict[str, tuple[Callable[[Any], Any], DType, str]] = {
    "a constant is no scalar": (lambda s: nisa.scalar_store(tile(), 5), dtypes.int32, "nisa.memset"),
    "another width": (lambda s: nisa.scalar_store(tile(nl.int64), s), dtypes.int32, "keeps its width"),
    "a float tile": (lambda s: nisa.scalar_store(tile(nl.float32), s), dtypes.int32, "float32"),
    "not one element": (lambda s: nisa.scalar_store(tile(shape=(1, 2)), s), dtypes.int32, "must be a 1x1 tensor"),
    "PSUM": (lambda s: nisa.scalar_store(tile(buffer=nl.psum), s), dtypes.int32, "psum"),
    "unsigned": (lambda s: nisa.scalar_load(tile(nl.uint32)), dtypes.int32, "uint32"),
    "two widths": (lambda s: s + nisa.scalar_load(tile(nl.int64)), dtypes.int32, "nothing is widened"),
    "a constant too wide": (lambda s: s + (1 << 31), dtypes.int32, "does not fit in int32"),
    "int64 compared": (lambda s: s < 3, dtypes.int64, "cannot be compared"),
    "a comparison stored": (lambda s: nisa.scalar_store(tile(), s < 3), dtypes.int32, "cannot be used"),
    "a comparison added": (lambda s: (s == 3) + 1, dtypes.int32, "cannot be used"),
    "a comparison as an offset": (lambda s: tile(shape=(1, 4)).select(1, s < 3), dtypes.int32, "cannot be used"),
    "an int64 bound": (lambda s: nl.fori_loop(0, s, lambda i: None), dtypes.int64, "int32 tile"),
    "a bound of 33 bits": (lambda s: nl.fori_loop(0, 1 << 32, lambda i: None), dtypes.int64, "32 bits"),
    "a step on the device": (lambda s: nl.fori_loop(0, 3, lambda i: None, s), dtypes.int32, "positive constant"),
    "int64 into SBUF": (
        lambda s: nisa.memset(tile(shape=(1, 4)).select(1, s).reshape((1, 1)), value=0), dtypes.int64,
        "an offset is an int32 scalar",
    ),
    "a condition": (lambda s: nl.while_loop(s, lambda r: r), dtypes.int32, "needs a register"),
    "a static slice": (lambda s: tile(shape=(1, 4))[:, s : s + 1], dtypes.int32, "not a static integer"),
    "an operand": (lambda s: nisa.tensor_copy(dst=tile(), src=s), dtypes.int32, "src must be a tensor"),
    "arithmetic of 64-bit tiles": (
        lambda s: nisa.tensor_tensor(dst=tile(nl.int64), data1=tile(nl.int64), data2=tile(nl.int64), op=nl.add),
        dtypes.int32, "cannot be int64",
    ),
    "a cast of 64-bit integers": (
        lambda s: nisa.dma_copy(dst=tile(nl.int32), src=tile(nl.int64)), dtypes.int32, "cannot cast int64 to int32",
    ),
    "returned": (lambda s: nisa.scalar_load(s), dtypes.int32, "src must be a tensor"),
}  # fmt: skip


@pytest.mark.parametrize("use, dtype, says", REFUSED.values(), ids=REFUSED)
def test_what_the_pages_refuse_is_refused_in_one_line(use: Callable[[Any], Any], dtype: DType, says: str) -> None:
    with pytest.raises(NkiError, match=says) as caught:
        of_one_number(use, dtype)
    assert isinstance(caught.value, NkiValidationError) and "\n" not in str(caught.value)


def test_an_index_still_goes_where_a_register_went() -> None:
    """Up to NKI 0.6 it was one."""

    def kernel(counts: Any) -> Any:
        out = nl.zeros((1, 1), nl.int32, buffer=nl.shared_hbm)
        register, tile = nisa.register_alloc(0), nl.ndarray((1, 1), nl.int32)

        def body(i: Any) -> None:
            nisa.register_move(register, i)
            nisa.register_store(tile, i)

        nl.fori_loop(3, 7, body)
        nisa.scalar_store(tile, nisa.scalar_load(tile) * 10)
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert both_ways(kernel, np.zeros((1, 1), np.int32))[0, 0] == 60
