"""Element-wise instructions against NumPy, over random shapes, dtypes, memories and views."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from on_device import DTYPES, FLOATS, INTS, Tile, along, check, column, free_shapes, rounded, tiles

import nki_sim
from nki_sim.errors import NkiValidationError
from nki_sim.isa.arithmetic.activation_functions import FUNCTIONS
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl

FEW = settings(max_examples=40, deadline=None)
partitions = st.integers(1, 128)

ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum")
COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
BINARY = {name: getattr(np, name) for name in (*ARITHMETIC, *COMPARISONS, *LOGICAL)}
UNARY = {"abs": np.abs, "square": np.square, "relu": lambda x: np.maximum(x, 0)}
BITS = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}


@FEW
@given(data=st.data(), p=partitions, free=free_shapes())
def test_tensor_copy_converts_through_float32(data: st.DataObject, p: int, free: tuple[int, ...]) -> None:
    src = data.draw(tiles(p, free, DTYPES, low=-300, high=300))
    dst = data.draw(tiles(p, free, DTYPES))
    assume(not (dst.psum and dst.dtype in INTS))
    engine = data.draw(st.sampled_from([nisa.engine.unknown, nisa.engine.vector, nisa.engine.scalar]))
    want = src.values() if src.dtype == dst.dtype else rounded(src.values().astype(np.float32), dst.dtype)
    check(lambda d, s: nisa.tensor_copy(dst=d, src=s, engine=engine), [src], [dst], [want], exact=True)


@FEW
@given(data=st.data(), p=partitions, free=free_shapes())
def test_dma_copy_moves_and_converts(data: st.DataObject, p: int, free: tuple[int, ...]) -> None:
    src = data.draw(tiles(p, free, DTYPES, psum=False, low=-300, high=300))
    dst = data.draw(tiles(p, free, DTYPES, psum=False))
    want = src.values() if src.dtype == dst.dtype else rounded(src.values().astype(np.float32), dst.dtype)
    check(lambda d, s: nisa.dma_copy(dst=d, src=s), [src], [dst], [want], exact=True)


@FEW
@given(data=st.data(), p=partitions, free=free_shapes(), value=st.integers(0, 100))
def test_memset_fills_the_view_only(data: st.DataObject, p: int, free: tuple[int, ...], value: int) -> None:
    dst = data.draw(tiles(p, free, DTYPES, psum=False))
    check(lambda d: nisa.memset(dst=d, value=value), [], [dst], [np.full(dst.shape, value)], exact=True)


@FEW
@given(data=st.data(), p=partitions, free=free_shapes(), op=st.sampled_from(sorted(BINARY)))
def test_tensor_tensor_computes_in_float32(data: st.DataObject, p: int, free: tuple[int, ...], op: str) -> None:
    first = data.draw(tiles(p, free, FLOATS))
    second = data.draw(tiles(p, free, FLOATS, psum=False if first.psum else None))
    dst = data.draw(tiles(p, free, FLOATS))
    want = BINARY[op](first.values64(), second.values64()).astype(np.float64)
    check(
        lambda d, a, b: nisa.tensor_tensor(dst=d, data1=a, data2=b, op=getattr(nl, op)), [first, second], [dst], [want]
    )


@FEW
@given(data=st.data(), p=partitions, free=free_shapes(), op=st.sampled_from(["add", "subtract", "multiply", "maximum"]))
def test_tensor_tensor_on_int32_is_exact_and_wraps(data: st.DataObject, p: int, free: tuple[int, ...], op: str) -> None:
    first, second = (data.draw(tiles(p, free, ["int32"], psum=False, low=-(2**31), high=2**31 - 1)) for _ in range(2))
    dst = data.draw(tiles(p, free, ["int32"], psum=False))
    with np.errstate(over="ignore"):
        want = BINARY[op](first.values(), second.values())
    check(lambda d, a, b: nisa.tensor_tensor(d, a, b, getattr(nl, op)), [first, second], [dst], [want], exact=True)


def test_int32_on_vector_rounds_to_24_bits() -> None:
    """Given integers above 2^24, when Vector adds them, then float32 rounding shows."""
    big = Tile(4, (8,), "int32", seed=1, low=2**24 + 1, high=2**26)
    dst = Tile(4, (8,), "int32")
    want = (big.values().astype(np.float32) + big.values().astype(np.float32)).astype(np.int32)
    assert (want != big.values() * 2).any()
    check(lambda d, a: nisa.tensor_tensor(d, a, a, nl.add, engine=nisa.engine.vector), [big], [dst], [want], exact=True)


@FEW
@given(data=st.data(), p=partitions, free=free_shapes(), op=st.sampled_from(sorted(BITS)))
def test_bit_operators_see_bit_patterns(data: st.DataObject, p: int, free: tuple[int, ...], op: str) -> None:
    dtype = data.draw(st.sampled_from(sorted(INTS)))
    info = np.iinfo(INTS[dtype])
    first, second = (data.draw(tiles(p, free, [dtype], psum=False, low=info.min, high=info.max)) for _ in range(2))
    dst = data.draw(tiles(p, free, [dtype], psum=False))
    want = BITS[op](first.values(), second.values())
    check(lambda d, a, b: nisa.tensor_tensor(d, a, b, getattr(nl, op)), [first, second], [dst], [want], exact=True)


@FEW
@given(data=st.data(), p=partitions, dtype=st.sampled_from(["int32", "uint32", "uint8"]), by=st.integers(0, 7))
def test_right_shift_is_logical(data: st.DataObject, p: int, dtype: str, by: int) -> None:
    info = np.iinfo(INTS[dtype])
    src = data.draw(tiles(p, (9,), [dtype], psum=False, low=info.min, high=info.max))
    dst = data.draw(tiles(p, (9,), [dtype], psum=False))
    unsigned = f"u{src.values().itemsize}"
    want = (src.values().view(unsigned) >> by).view(src.values().dtype)
    check(lambda d, a: nisa.tensor_scalar(d, a, nl.right_shift, by), [src], [dst], [want], exact=True)


@FEW
@given(
    data=st.data(),
    p=partitions,
    free=free_shapes(),
    op0=st.sampled_from(sorted(BINARY)),
    op1=st.sampled_from([None, "add", "multiply", "maximum", "subtract", "less"]),
    vectors=st.tuples(st.booleans(), st.booleans()),
    reverses=st.tuples(st.booleans(), st.booleans()),
)
def test_tensor_scalar_applies_two_operators(data, p, free, op0, op1, vectors, reverses) -> None:
    src, dst = data.draw(tiles(p, free, DTYPES)), data.draw(tiles(p, free, FLOATS))
    columns = [column(p, data.draw(st.integers(0, 999))) for _ in range(2)]
    numbers = [0.5, -1.25]
    operands: list[np.ndarray] = [
        along(tile.values(), len(src.shape)) if vector else np.float64(number)
        for tile, vector, number in zip(columns, vectors, numbers)
    ]

    def apply(op: str, value: np.ndarray, operand: np.ndarray, reverse: bool) -> np.ndarray:
        return BINARY[op](*((operand, value) if reverse else (value, operand))).astype(np.float64)

    want = apply(op0, src.values64(), operands[0], reverses[0])
    if op1 is not None:
        want = apply(op1, want.astype(np.float32).astype(np.float64), operands[1], reverses[1])

    def body(d, a, c0, c1):
        arguments = [c if vector else number for c, vector, number in zip((c0, c1), vectors, numbers)]
        second = {} if op1 is None else {"op1": getattr(nl, op1), "operand1": arguments[1], "reverse1": reverses[1]}
        nisa.tensor_scalar(dst=d, data=a, op0=getattr(nl, op0), operand0=arguments[0], reverse0=reverses[0], **second)

    if src.psum and src.dtype in INTS:
        return  # integers reach PSUM only through a copy that is tested elsewhere
    check(body, [src, *columns], [dst], [want], tolerance=None if dst.dtype == "float32" else 2**-6)


@FEW
@given(data=st.data(), p=partitions, free=free_shapes(), op=st.sampled_from(sorted(UNARY)))
def test_unary_operators_need_no_operand(data: st.DataObject, p: int, free: tuple[int, ...], op: str) -> None:
    src, dst = data.draw(tiles(p, free)), data.draw(tiles(p, free))
    check(lambda d, a: nisa.tensor_scalar(d, a, getattr(nl, op), None), [src], [dst], [UNARY[op](src.values64())])


@FEW
@given(
    data=st.data(),
    p=partitions,
    free=free_shapes(),
    op0=st.sampled_from(["add", "multiply", "subtract", "maximum"]),
    op1=st.sampled_from(["add", "multiply", "subtract", "minimum"]),
    vector=st.booleans(),
    scale_dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    reverses=st.tuples(st.booleans(), st.booleans()),
)
def test_scalar_tensor_tensor(data, p, free, op0, op1, vector, scale_dtype, reverses) -> None:
    src = data.draw(tiles(p, free))
    other = data.draw(tiles(p, free, psum=False if src.psum else None))
    dst = data.draw(tiles(p, free))
    scale = column(p, 5, dtype=scale_dtype)
    operand = along(scale.values(), len(src.shape)) if vector else np.float64(1.5)
    value = BINARY[op0](*((operand, src.values64()) if reverses[0] else (src.values64(), operand)))
    want = BINARY[op1](*((other.values64(), value) if reverses[1] else (value, other.values64())))

    def body(d, a, b, c) -> None:
        nisa.scalar_tensor_tensor(
            d,
            data=a,
            op0=getattr(nl, op0),
            operand0=c if vector else 1.5,
            op1=getattr(nl, op1),
            operand1=b,
            reverse0=reverses[0],
            reverse1=reverses[1],
        )

    check(body, [src, other, scale], [dst], [want], tolerance=5e-6 if dst.dtype == "float32" else None)


@FEW
@given(data=st.data(), p=partitions, free=free_shapes())
def test_reciprocal(data: st.DataObject, p: int, free: tuple[int, ...]) -> None:
    src, dst = data.draw(tiles(p, free, low=0.25, high=8)), data.draw(tiles(p, free))
    check(lambda d, a: nisa.reciprocal(dst=d, data=a), [src], [dst], [1 / src.values64()])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_erf = np.vectorize(math.erf)
_cdf = lambda x: 0.5 * (1 + _erf(x / math.sqrt(2)))  # noqa: E731  # a table entry below needs a name
ACTIVATIONS = {
    "copy": lambda x: x,
    "square": np.square,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * _cdf(x),
    "gelu_dx": lambda x: _cdf(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: _sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - _sigmoid(1.702 * x))),
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "tanh": np.tanh,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "erf": _erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "exp": np.exp,
    "sin": np.sin,
    "arctan": np.arctan,
    "sign": np.sign,
    "abs": np.abs,
}


def test_erf_is_one_rounding_off_where_it_nears_one_and_never_beyond() -> None:
    """Of 1 + erf(x) that rounding is all that is left."""
    x = np.linspace(-6, 6, 20001, dtype=np.float32).reshape(1, -1)
    found = np.empty_like(x)
    FUNCTIONS["erf"](x, found)
    assert np.abs(found).max() == 1
    off = np.abs(found - _erf(x.astype(np.float64))) * 2**24
    assert off.max() <= 3 and off[np.abs(x) > 1.5].max() <= 0.7


POSITIVE = {"log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x}


@pytest.mark.parametrize("op", sorted({**ACTIVATIONS, **POSITIVE}))
@settings(max_examples=8, deadline=None)
@given(data=st.data(), p=partitions, free=free_shapes())
def test_activation_functions(op: str, data: st.DataObject, p: int, free: tuple[int, ...]) -> None:
    low, high = (0.2, 6.0) if op in POSITIVE else (-3.0, 3.0)
    src, dst = data.draw(tiles(p, free, low=low, high=high)), data.draw(tiles(p, free))
    want = {**ACTIVATIONS, **POSITIVE}[op](src.values64())
    check(lambda d, a: nisa.activation(dst=d, op=getattr(nl, op), data=a), [src], [dst], [want])


@FEW
@given(
    data=st.data(),
    p=partitions,
    free=free_shapes(),
    scale_is_tile=st.booleans(),
    bias=st.sampled_from(["none", "number", "tile"]),
)
def test_activation_scales_then_adds_then_applies(data, p, free, scale_is_tile, bias) -> None:
    src, dst = data.draw(tiles(p, free)), data.draw(tiles(p, free))
    scale, shift = column(p, 3, 0.1, 0.9), column(p, 4, -1, 1, data.draw(st.sampled_from(sorted(FLOATS))))
    a = along(scale.values(), len(src.shape)) if scale_is_tile else 0.75
    b = {"none": 0.0, "number": -0.5, "tile": along(shift.values(), len(src.shape))}[bias]
    want = np.tanh(src.values64() * a + b)

    def body(d, x, s, t):
        more = {"none": {}, "number": {"bias": -0.5}, "tile": {"bias": t}}[bias]
        nisa.activation(dst=d, op=nl.tanh, data=x, scale=s if scale_is_tile else 0.75, **more)

    check(body, [src, scale, shift], [dst], [want])


def test_sin_extrapolates_outside_its_range() -> None:
    """Given 9.0, when the Scalar engine takes its sine, then the cubic gives about 27.65, as AWS documents."""
    nine = Tile(1, (1,), "float32", low=9, high=9)

    def body(d, a) -> None:
        nisa.activation(d, nl.sin, a)

    check(body, [nine], [Tile(1, (1,), "float32")], [np.full((1, 1), 27.65)], tolerance=1e-3)


def test_float_to_integer_rounds_half_to_even_and_saturates() -> None:
    values = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 3e9, -3e9, 127.5, 300.0]], np.float32)

    def kernel(x):
        tile = nl.load(x)
        outputs = []
        for dtype in (nl.int32, nl.int8, nl.uint8):
            converted = nl.ndarray(x.shape, dtype)
            nisa.tensor_copy(dst=converted, src=tile)
            out = nl.ndarray(x.shape, dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=out, src=converted)
            outputs.append(out)
        return tuple(outputs)

    as_int32, as_int8, as_uint8 = nki_sim.simulate(kernel)(values)
    assert as_int32.tolist() == [[0, 2, 2, 0, -2, 2**31 - 1, -(2**31), 128, 300]]
    assert as_int8.tolist() == [[0, 2, 2, 0, -2, 127, -128, 127, 127]]
    assert as_uint8.tolist() == [[0, 2, 2, 0, 0, 255, 0, 128, 255]]


def test_in_place_and_overlapping_views() -> None:
    """Given a destination that lies before its source, then the source is read before it is overwritten."""
    values = np.arange(2 * 40, dtype=np.float32).reshape(2, 40)

    def kernel(x):
        tile = nl.load(x)
        nisa.tensor_scalar(
            dst=tile[:, 0:32], data=tile[:, 1:33], op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=1.0
        )
        nisa.activation(dst=tile[:, 0:16], op=nl.square, data=tile[:, 8:24], scale=0.5, bias=1.0)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    want = values.copy()
    want[:, 0:32] = want[:, 1:33] * 2 + 1
    want[:, 0:16] = np.square(want[:, 8:24] * 0.5 + 1)
    np.testing.assert_allclose(nki_sim.simulate(kernel)(values), want, rtol=1e-6)


def test_in_place_on_what_was_never_written_is_poisoned() -> None:
    """Given a tile that nothing has written, when it is updated in place, then the result is NaN."""

    def kernel():
        tile = nl.ndarray((4, 8), nl.float32)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert np.isnan(nki_sim.simulate(kernel)()).all()


@pytest.mark.parametrize("constant, fits", [(-3.4028235e38, True), (3.4028235e38, True), (3.4028236e38, False)])
def test_a_constant_is_a_number_that_rounds_to_float32(constant: float, fits: bool) -> None:
    """Kernels write float32's largest in eight digits, which lie a little above it; nothing further is taken."""

    def kernel():
        tile = nl.ndarray((4, 8), nl.float32)
        nisa.memset(dst=tile, value=0.0)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=constant)
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    if fits:
        assert np.abs(nki_sim.simulate(kernel)()).max() == np.finfo(np.float32).max
    else:
        with pytest.raises(NkiValidationError, match="a number that float32 holds"):
            nki_sim.simulate(kernel)()
