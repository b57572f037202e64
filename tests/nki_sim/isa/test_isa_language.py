"""`nl.*` functions on tiles: what they compute, which instructions they become, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki_sim
from nki_sim.errors import NkiError
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl

RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.standard_normal((128, 64)).astype(np.float32) for _ in range(2))
COLUMN = RANDOM.standard_normal((128, 1)).astype(np.float32)
ROW = RANDOM.standard_normal((1, 64)).astype(np.float32)
POSITIVE = np.abs(X) + 0.1
BIG = X * 40
INTS, MORE = (RANDOM.integers(-(2**30), 2**30, (128, 8)).astype(np.int32) for _ in range(2))
COUNTS = RANDOM.integers(0, 1000, (128, 8)).astype(np.int32)
INDEX = RANDOM.integers(0, 64, (128, 9)).astype(np.uint32)
FOUR = RANDOM.standard_normal((16, 3, 5, 4)).astype(np.float32)


def run(body: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """What `body` returns for tiles loaded from the arrays."""

    def kernel(*inputs: Any) -> Any:
        result = body(*[nl.load(x) for x in inputs])
        if nl.is_psum(result.buffer):
            result = nl.copy(result)
        out = nl.ndarray(result.shape, result.dtype, buffer=nl.shared_hbm)
        nl.store(out, result)
        return out

    return nki_sim.simulate(kernel)(*arrays)


ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARISONS])
def test_binary_functions_take_tiles_numbers_and_columns(name: str) -> None:
    ours, numpys = getattr(nl, name), getattr(np, name)
    half = np.float32(0.5)
    np.testing.assert_allclose(run(ours, X, Y), numpys(X, Y), rtol=1e-6)
    np.testing.assert_allclose(run(lambda x: ours(x, 0.5), X), numpys(X, half), rtol=1e-6)
    np.testing.assert_allclose(run(lambda x: ours(0.5, x), X), numpys(half, X), rtol=1e-6)
    np.testing.assert_allclose(run(ours, X, COLUMN), numpys(X, COLUMN), rtol=1e-6)
    np.testing.assert_allclose(run(lambda c, x: ours(c, x), COLUMN, X), numpys(COLUMN, X), rtol=1e-6)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor"])
def test_integer_tiles_are_computed_exactly(name: str) -> None:
    with np.errstate(over="ignore"):
        want = getattr(np, name)(INTS, MORE)
    np.testing.assert_array_equal(run(getattr(nl, name), INTS, MORE), want)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _rms_norm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * w


CASES: list[tuple[str, Callable[[], np.ndarray], np.ndarray, float]] = [
    ("shift left", lambda: run(lambda x: nl.left_shift(x, 3), COUNTS), COUNTS << 3, 0),
    ("shift right", lambda: run(lambda x: nl.right_shift(x, 3), COUNTS), COUNTS >> 3, 0),
    ("invert", lambda: run(nl.invert, INTS), ~INTS, 0),
    ("logical not", lambda: run(lambda x: nl.logical_not(nl.greater(x, 0.0)), X), (X <= 0).astype(np.float32), 0),
    ("power", lambda: run(nl.power, POSITIVE, Y), POSITIVE.astype(np.float64) ** Y, 1e-5),
    ("sine far out", lambda: run(nl.sin, BIG), np.sin(BIG.astype(np.float64)), 2e-5),
    ("cosine far out", lambda: run(nl.cos, BIG), np.cos(BIG.astype(np.float64)), 2e-5),
    ("tangent", lambda: run(nl.tan, X * 0.4), np.tan(X.astype(np.float64) * 0.4), 1e-4),
    ("floor", lambda: run(nl.floor, BIG), np.floor(BIG), 0),
    ("ceil", lambda: run(nl.ceil, BIG), np.ceil(BIG), 0),
    ("trunc", lambda: run(nl.trunc, BIG), np.trunc(BIG), 0),
    ("floor of integers", lambda: run(nl.floor, COUNTS.astype(np.float32)), COUNTS.astype(np.float32), 0),
    ("negative", lambda: run(nl.negative, X), -X, 0),
    ("abs", lambda: run(nl.abs, X), np.abs(X), 0),
    ("exp", lambda: run(nl.exp, X), np.exp(X), 1e-6),
    ("log", lambda: run(nl.log, POSITIVE), np.log(POSITIVE), 1e-6),
    ("rsqrt", lambda: run(nl.rsqrt, POSITIVE), 1 / np.sqrt(POSITIVE), 1e-6),
    ("reciprocal", lambda: run(nl.reciprocal, POSITIVE), 1 / POSITIVE, 1e-6),
    ("sum", lambda: run(lambda x: nl.sum(x, axis=1), X), X.sum(1, dtype=np.float64).reshape(128, 1), 1e-5),
    ("sum of two axes", lambda: run(lambda x: nl.sum(x, axis=[2, 3]), FOUR), FOUR.sum((2, 3)), 1e-5),
    ("max, keepdims", lambda: run(lambda x: nl.max(x, axis=[3], keepdims=True), FOUR), FOUR.max(3, keepdims=True), 0),
    ("min", lambda: run(lambda x: nl.min(x, axis=-1), X), X.min(1, keepdims=True), 0),
    ("prod", lambda: run(lambda x: nl.prod(x, axis=1), X * 0.1 + 1), (X * 0.1 + 1).prod(1, keepdims=True), 1e-5),
    ("mean", lambda: run(lambda x: nl.mean(x, axis=1), X), X.mean(1, keepdims=True), 1e-5),
    ("var", lambda: run(lambda x: nl.var(x, axis=1), X), X.var(1, keepdims=True), 1e-5),
    ("all", lambda: run(lambda x: nl.all(nl.greater(x, -2.5), axis=1), X), (X > -2.5).all(1, keepdims=True), 0),
    ("softmax", lambda: run(lambda x: nl.softmax(x, axis=1), X), _softmax(X), 1e-6),
    ("rms_norm", lambda: run(lambda x, w: nl.rms_norm(x, w, axis=1, n=64), X, Y), _rms_norm(X, Y), 1e-6),
    ("rms_norm by a row", lambda: run(lambda x, w: nl.rms_norm(x, w, axis=1, n=64), X, ROW), _rms_norm(X, ROW), 1e-6),
    ("where", lambda: run(lambda x, y: nl.where(nl.greater(x, 0.0), x, y), X, Y), np.where(X > 0, X, Y), 0),
    ("where number", lambda: run(lambda x: nl.where(nl.greater(x, 0.0), x, -1.0), X), np.where(X > 0, X, -1), 0),
    ("broadcast a row", lambda: run(lambda x: nl.broadcast_to(x, (100, 64)), ROW), np.broadcast_to(ROW, (100, 64)), 0),
    (
        "broadcast a column",
        lambda: run(lambda x: nl.broadcast_to(x, (128, 7)), COLUMN),
        np.broadcast_to(COLUMN, (128, 7)),
        0,
    ),
    ("transpose", lambda: run(nl.transpose, X), X.T, 0),
    ("matmul", lambda: run(lambda x, y: nl.matmul(x, y), X[:64], Y[:64]), X[:64] @ Y[:64], 1e-5),
    ("matmul transposed", lambda: run(lambda x, y: nl.matmul(x, y, transpose_x=True), X, Y), X.T @ Y, 1e-5),
    ("gather", lambda: run(nl.gather_flattened, X, INDEX), np.take_along_axis(X, INDEX.astype(int), 1), 0),
    ("expand_dims", lambda: run(lambda x: nl.expand_dims(x, 1), X), X[:, None], 0),
    ("cast", lambda: run(lambda x: nl.copy(x, dtype=nl.bfloat16), X).astype(np.float32), X, 2**-8),
]


@pytest.mark.parametrize(("what", "compute", "want", "tolerance"), CASES, ids=[case[0] for case in CASES])
def test_functions_agree_with_numpy(what, compute, want, tolerance) -> None:
    got = compute()
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)


def test_random_numbers_lie_in_the_unit_interval_and_follow_the_seed() -> None:
    def body(x: Any) -> Any:
        nl.random_seed(nl.full((1, 1), 42, nl.int32))
        return nl.rand((128, 200), nl.float32)

    first, second = run(body, X), run(body, X)
    np.testing.assert_array_equal(first, second)
    assert first.min() >= 0 and first.max() < 1 and abs(first.mean() - 0.5) < 0.01 and abs(first.std() - 0.2887) < 0.01


LOWERINGS = [
    ("add", lambda x: nl.add(x, x), ["tensor_tensor"]),
    ("add a number", lambda x: nl.add(x, 1.0), ["tensor_scalar"]),
    ("exp", lambda x: nl.exp(x), ["activation"]),
    ("sum", lambda x: nl.sum(x, axis=1), ["tensor_reduce"]),
    ("softmax", lambda x: nl.softmax(x), ["tensor_reduce", "activation", "reciprocal", "tensor_scalar"]),
    ("transpose", lambda x: nl.transpose(x), ["nc_transpose"]),
    ("matmul", lambda x: nl.matmul(x, x, transpose_x=True), ["nc_matmul"]),
    ("broadcast a row", lambda x: nl.broadcast_to(x[0:1], (64, 64)), ["tensor_copy", *["nc_stream_shuffle"] * 2]),
]


@pytest.mark.parametrize(("what", "body", "opcodes"), LOWERINGS, ids=[case[0] for case in LOWERINGS])
def test_functions_become_instructions_that_are_costed(what: str, body: Callable[..., Any], opcodes: list[str]) -> None:
    def kernel(x: Any) -> None:
        body(nl.load(x))

    program = nki_sim.trace(kernel, X)
    names = [program.templates[number].opcode for number in program.template_ids]
    assert names == ["dma_copy", *opcodes]


REFUSED = [
    ("divide", lambda x: nl.divide(x, x), "multiply by nisa.reciprocal"),
    ("mod", lambda x: nl.mod(x, 2.0), "remainders"),
    ("abs_max", lambda x: nl.abs_max(x, x), "trn3"),
    ("sum over partitions", lambda x: nl.sum(x, axis=0), "last free dimension"),
    ("softmax over one of two axes", lambda x: nl.softmax(x.reshape((128, 8, 8)), axis=2), "all free dimensions"),
    ("broadcast of 64", lambda x: nl.broadcast_to(x, (128, 128)), "size 1 or equal"),
    ("different sizes", lambda x: nl.add(x, x[:, 0:8]), "same partitions and elements"),
    ("numbers only", lambda x: nl.add(1.0, 2.0), "needs a tile"),
    ("not a tile", lambda x: nl.exp(1.0), "needs a tile"),
    (
        "load of a tile that is too tall",
        lambda x: nl.load(nl.ndarray((256, 4), nl.float32, buffer=nl.shared_hbm)),
        "128",
    ),
    ("operator that is none", lambda x: nisa.tensor_scalar(x, x, op0=nl.sum, operand0=0.0), "nl.add"),
]


@pytest.mark.parametrize(("what", "body", "message"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_no_engine_can_do_is_refused_by_name(what: str, body: Callable[..., Any], message: str) -> None:
    def kernel(x: Any) -> None:
        body(nl.load(x))

    with pytest.raises(NkiError, match=message):
        nki_sim.trace(kernel, X)


def test_load_transpose2d() -> None:
    source = X.astype(ml_dtypes.bfloat16)

    def kernel(x: Any) -> Any:
        tile = nl.load_transpose2d(x)
        out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    np.testing.assert_array_equal(nki_sim.simulate(kernel)(source), source.T)
