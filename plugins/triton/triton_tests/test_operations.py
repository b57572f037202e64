"""Every operation of the executor against NumPy: expressions in one kernel, a row of the output for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from accelopt_core.toolchain import TensorArgument
from nki_optimizer_triton.ir.contract import KNOWN, LIBDEVICE
from nki_optimizer_triton.ir.numbers import decoded, encoded, rounded, rounded_to_zero, to_tf32
from nki_optimizer_triton.ir.operations.elementwise import _LIBDEVICE, INTEGERS
from nki_optimizer_triton.toolchain import TritonToolchain

N = 64

FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": lambda x, y: x + y,
    "x - y * 2": lambda x, y: x - y * 2,
    "x / y": lambda x, y: x / y,
    "-x": lambda x, y: -x,
    "x % y": np.fmod,
    "tl.maximum(x, y)": np.maximum,
    "tl.minimum(x, y)": np.minimum,
    "tl.clamp(x, -0.5, 0.5)": lambda x, y: np.clip(x, -0.5, 0.5),
    "tl.where(x < y, x, y + 1)": lambda x, y: np.where(x < y, x, y + 1),
    "tl.abs(x)": lambda x, y: np.abs(x),
    "tl.exp(x)": lambda x, y: np.exp(x),
    "tl.exp2(x)": lambda x, y: np.exp2(x),
    "tl.log(tl.abs(x))": lambda x, y: np.log(np.abs(x)),
    "tl.log2(tl.abs(x))": lambda x, y: np.log2(np.abs(x)),
    "tl.sqrt(tl.abs(x))": lambda x, y: np.sqrt(np.abs(x)),
    "tl.sqrt_rn(tl.abs(x))": lambda x, y: np.sqrt(np.abs(x)),
    "tl.rsqrt(tl.abs(x))": lambda x, y: 1 / np.sqrt(np.abs(x)),
    "tl.div_rn(x, y)": lambda x, y: x / y,
    "tl.sin(x)": lambda x, y: np.sin(x),
    "tl.cos(x)": lambda x, y: np.cos(x),
    "tl.floor(x * 3)": lambda x, y: np.floor(x * 3),
    "tl.ceil(x * 3)": lambda x, y: np.ceil(x * 3),
    "tl.erf(x)": lambda x, y: np.vectorize(math.erf)(x),
    "tl.fma(x, y, x)": lambda x, y: x * y + x,
    "tl.sigmoid(x)": lambda x, y: 1 / (1 + np.exp(-x)),
    "tl.softmax(x)": lambda x, y: np.exp(x - x.max()) / np.exp(x - x.max()).sum(),
    "tl.cumsum(x, 0)": lambda x, y: np.cumsum(x),
    "tl.cumsum(x, 0, reverse=True)": lambda x, y: np.cumsum(x[::-1])[::-1],
    "tl.cumprod(tl.abs(x) + 0.5, 0)": lambda x, y: np.cumprod(np.abs(x) + 0.5),
    "tl.sum(x, 0) + y": lambda x, y: x.sum() + y,
    "tl.max(x, 0) + y": lambda x, y: x.max() + y,
    "tl.min(x, 0) + y": lambda x, y: x.min() + y,
    "tl.argmax(x, 0) + y": lambda x, y: x.argmax() + y,
    "tl.argmin(x, 0) + y": lambda x, y: x.argmin() + y,
    "tl.associative_scan(x, 0, biggest)": lambda x, y: np.maximum.accumulate(x),
    "tl.reduce(x, 0, biggest) + y": lambda x, y: x.max() + y,
    "tl.sort(x)": lambda x, y: np.sort(x),
    "tl.flip(x, 0)": lambda x, y: x[::-1],
    "tl.interleave(x, y).reshape(2, N).sum(0)": lambda x, y: np.stack([x, y], -1).reshape(2, -1).sum(0),
    "tl.join(x, y).trans(1, 0).reshape(2 * N).reshape(2, N).max(0)": np.maximum,
    "tl.gather(x, (i * 7) % N, 0)": lambda x, y: x[np.arange(N) * 7 % N],
    "tl.cat(x, y, can_reorder=True).reshape(2, N).sum(0)": lambda x, y: x + y,
    "x.reshape(8, N // 8).trans().reshape(N)": lambda x, y: x.reshape(8, -1).T.reshape(-1),
    "tl.sum(x[:, None] * y[None, :], 1)": lambda x, y: x * y.sum(),
    "tl.broadcast_to(tl.sum(x.reshape(4, N // 4), 1)[:, None], (4, N // 4)).reshape(N)":
        lambda x, y: np.repeat(x.reshape(4, -1).sum(1), N // 4),
    "x.to(tl.float16).to(tl.float32)": lambda x, y: x.astype(np.float16),
    "x.to(tl.bfloat16).to(tl.float32)": lambda x, y: x.astype(np.float32).astype(ml_dtypes.bfloat16),
    "x.to(tl.float8e5).to(tl.float32)": lambda x, y: x.astype(np.float32).astype(ml_dtypes.float8_e5m2),
    "(x * 1000).to(tl.float8e4nv).to(tl.float32)":
        lambda x, y: np.clip(x * 1000, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn),
    "(x.to(tl.bfloat16) * y.to(tl.bfloat16)).to(tl.float32)": lambda x, y: _bf16(_bf16(x) * _bf16(y)),
    "(x.to(tl.float16) + y.to(tl.float16)).to(tl.float32)": lambda x, y: x.astype(np.float16) + y.astype(np.float16),
    "x.to(tl.float64).to(tl.float32)": lambda x, y: x,
    "x.to(tl.int32, bitcast=True).to(tl.float32)": lambda x, y: x.astype(np.float32).view(np.int32),
    "(x * 100).to(tl.int32).to(tl.float32)": lambda x, y: np.trunc(x * 100),
    "libdevice.tanh(x)": lambda x, y: np.tanh(x),
    "libdevice.pow(tl.abs(x), y)": lambda x, y: np.abs(x) ** y,
    "libdevice.rint(x * 4)": lambda x, y: np.rint(x * 4),
    "libdevice.log1p(tl.abs(x))": lambda x, y: np.log1p(np.abs(x)),
    "tl.histogram(i % 4, N).to(tl.float32)": lambda x, y: np.bincount(np.arange(N) % 4, minlength=N),
    "helper(x, 3.0)": lambda x, y: np.where(x > 0, x * 3, x),
    "x + not_inlined(tl.sum(x, 0), tl.sum(y, 0))": lambda x, y: x + x.sum() * y.sum() + 1,
}  # fmt: skip


def _bf16(a: Any) -> Any:
    return a.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


INTEGER: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a // b": lambda a, b: (np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b),
    "a % b": np.fmod,
    "a & b": lambda a, b: a & b,
    "a | b": lambda a, b: a | b,
    "a ^ b": lambda a, b: a ^ b,
    "~a": lambda a, b: ~a,
    "a << 3": lambda a, b: a << 3,
    "a >> 2": lambda a, b: a >> 2,
    "(UNSIGNED_A >> 2).to(tl.int32, bitcast=True)": lambda a, b: (a.view(np.uint32) >> 2).view(np.int32),
    "(UNSIGNED_A // 7).to(tl.int32, bitcast=True)": lambda a, b: (a.view(np.uint32) // 7).view(np.int32),
    "(UNSIGNED_A % 7).to(tl.int32, bitcast=True)": lambda a, b: (a.view(np.uint32) % 7).view(np.int32),
    "tl.minimum(a, b)": np.minimum,
    "tl.maximum(UNSIGNED_A, UNSIGNED_B).to(tl.int32, bitcast=True)":
        lambda a, b: np.maximum(a.view(np.uint32), b.view(np.uint32)).view(np.int32),
    "tl.abs(a)": lambda a, b: np.abs(a),
    "tl.umulhi(a, b)":
        lambda a, b: (a.view(np.uint32).astype(np.uint64) * b.view(np.uint32) >> 32).astype(np.uint32).view(np.int32),
    "(a < b).to(tl.int32)": lambda a, b: a < b,
    "((a < b) & (a != 3) | (b == a)).to(tl.int32)": lambda a, b: (a < b) & (a != 3) | (a == b),
    "(UNSIGNED_A < UNSIGNED_B).to(tl.int32)": lambda a, b: a.view(np.uint32) < b.view(np.uint32),
    "a.to(tl.int8).to(tl.int32)": lambda a, b: a.astype(np.int8),
    "a.to(tl.uint8).to(tl.int32)": lambda a, b: a.astype(np.uint8),
    "a.to(tl.int64).to(tl.int32)": lambda a, b: a,
    "(a.to(tl.int64) * b >> 16).to(tl.int32)": lambda a, b: (a.astype(np.int64) * b >> 16).astype(np.int32),
    "tl.sum(a, 0) + b": lambda a, b: a.sum(dtype=np.int32) + b,
    "tl.xor_sum(a, 0) + b": lambda a, b: np.bitwise_xor.reduce(a) + b,
    "tl.cumsum(a, 0)": lambda a, b: np.cumsum(a, dtype=np.int32),
    "tl.sort(a, descending=True)": lambda a, b: -np.sort(-a),
    "tl.cdiv(a, 16)": lambda a, b: np.trunc((a.astype(np.int64) + 15) / 16),
    "tl.randint(7, a)": lambda a, b: philox(a),
}  # fmt: skip


def philox(offsets: np.ndarray) -> np.ndarray:
    low = np.uint64(0xFFFFFFFF)
    c = [offsets.view(np.uint32).astype(np.uint64), *(np.zeros(offsets.size, np.uint64) for _ in range(3))]
    k = [7, 0]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]),
            b & low,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]),
            a & low,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0].astype(np.uint32).view(np.int32)


def kernel(expressions: list[str], kind: str, names: str) -> str:
    stores = "\n".join(f"    tl.store(out + {n} * N + i, {each})" for n, each in enumerate(expressions))
    for name in "ab":
        stores = stores.replace(f"UNSIGNED_{name.upper()}", f"{name}.to(tl.uint32, bitcast=True)")
    one, two = names
    return f"""import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def biggest(u, v):
    return tl.maximum(u, v)


@triton.jit
def helper(u, factor):
    return tl.where(u > 0, u * factor, u)


@triton.jit(noinline=True)
def not_inlined(u, v):
    return u * v + 1


@triton.jit
def k(p, q, out, N: tl.constexpr):
    i = tl.arange(0, N)
    {one} = tl.load(p + i)
    {two} = tl.load(q + i)
{stores}


def run(p, q):
    out = torch.empty(({len(expressions)}, {N}), dtype=torch.{kind}, device=p.device)
    k[(1,)](p, q, out, {N})
    return out
"""


def test_operations_on_floats(on_cpu: TritonToolchain) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(-2, 2, N).astype(np.float32) for _ in "xy")
    expressions = list(FLOATS)
    artifact = on_cpu.compile(kernel(expressions, "float32", "xy"), (TensorArgument((N,), "float32"),) * 2, 250)
    (out,) = on_cpu.run(artifact, [x, y], 60)
    for row, expression in zip(out, expressions):
        expected = np.broadcast_to(
            np.asarray(FLOATS[expression](x.astype(np.float64), y.astype(np.float64)), np.float64), N
        )
        if "bitcast" in expression:
            expected = expected.astype(np.float32)
        assert np.allclose(row, expected, rtol=2e-5, atol=1e-5), expression


def test_operations_on_integers(on_cpu: TritonToolchain) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-(2**31), 2**31 - 1, N, dtype=np.int32) for _ in "ab")
    a[:40], b[:40] = rng.integers(-9, 9, 40), rng.choice([-5, -2, -1, 1, 3, 8], 40)
    expressions = list(INTEGER)
    artifact = on_cpu.compile(kernel(expressions, "int32", "ab"), (TensorArgument((N,), "int32"),) * 2, 250)
    (out,) = on_cpu.run(artifact, [a, b], 60)
    with np.errstate(over="ignore"):
        for row, expression in zip(out, expressions):
            expected = np.broadcast_to(np.asarray(INTEGER[expression](a, b)), N).astype(np.int32)
            assert np.array_equal(row, expected), expression


PRODUCTS = {
    "x, y, input_precision='ieee'": lambda x, y: x @ y,
    "x, y, input_precision='tf32'": lambda x, y: to_tf32(x).astype(np.float64) @ to_tf32(y).astype(np.float64),
    "x.to(tl.float16), y.to(tl.float16), out_dtype=tl.float32":
        lambda x, y: x.astype(np.float16).astype(np.float64) @ y.astype(np.float16).astype(np.float64),
    "(x * 50).to(tl.int8), (y * 50).to(tl.int8), out_dtype=tl.int32":
        lambda x, y: np.trunc(x * 50).astype(np.int64) @ np.trunc(y * 50).astype(np.int64),
}  # fmt: skip


def test_products(on_cpu: TritonToolchain) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.uniform(-2, 2, (16, 32)).astype(np.float32), rng.uniform(-2, 2, (32, 16)).astype(np.float32)
    stores = "\n".join(
        f"    tl.store(out + {n} * 256 + i[:, None] * 16 + i[None, :], tl.dot({each}).to(tl.float32))"
        for n, each in enumerate(PRODUCTS)
    )
    source = (
        kernel([], "float32", "xy").split("@triton.jit\ndef k")[0]
        + f"""@triton.jit
def k(p, q, out):
    i = tl.arange(0, 16)
    j = tl.arange(0, 32)
    x = tl.load(p + i[:, None] * 32 + j[None, :])
    y = tl.load(q + j[:, None] * 16 + i[None, :])
{stores}


def run(p, q):
    out = torch.empty(({len(PRODUCTS)}, 16, 16), dtype=torch.float32, device=p.device)
    k[(1,)](p, q, out)
    return out
"""
    )
    specs = (TensorArgument((16, 32), "float32"), TensorArgument((32, 16), "float32"))
    (out,) = on_cpu.run(on_cpu.compile(source, specs, 120), [x, y], 60)
    for got, (name, compute) in zip(out, PRODUCTS.items()):
        assert np.allclose(got, compute(x, y), rtol=1e-5, atol=1e-4), name
    assert not np.allclose(out[0], out[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("element", ["bf16", "f16", "f8E5M2", "f8E4M3FN"])
def test_narrow_floats_are_stored_and_read_bit_by_bit(element: str) -> None:
    bits = np.arange(1 << (8 if element.startswith("f8") else 16)).astype(
        np.uint8 if element.startswith("f8") else np.uint16
    )
    stored = bits.view(np.float16) if element == "f16" else bits
    values = decoded(stored, element)
    number = np.isfinite(values) if element.startswith("f8") else ~np.isnan(values)  # 8 bits saturate
    back = encoded(rounded(values, element), element)
    assert np.array_equal(back.view(bits.dtype)[number], bits[number])
    kind = {
        "bf16": ml_dtypes.bfloat16,
        "f16": np.float16,
        "f8E5M2": ml_dtypes.float8_e5m2,
        "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    }
    assert np.array_equal(values[number], bits.view(kind[element]).astype(np.float32)[number])


def test_rounding_is_to_nearest_even_toward_zero_and_to_ten_bits() -> None:
    values = np.array([1.00390625, 1.01171875, -1.00390625, 3.4e38, np.inf, -np.inf, 1e-40], np.float32)
    assert np.array_equal(rounded(values, "bf16"), values.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert np.isnan(rounded(np.array([np.nan], np.float32), "bf16")).all()
    toward = rounded_to_zero(values[:3], "bf16")
    assert np.array_equal(toward, np.array([1.0, 1.0078125, -1.0], np.float32))
    assert (np.abs(rounded_to_zero(np.array([1.0009, -1.0009], np.float32), "f16")) <= 1.0009).all()
    assert to_tf32(np.array([1 + 2**-10 + 2**-11], np.float32))[0] == np.float32(1 + 2**-10)
    assert np.array_equal(rounded(np.array([1e9, -1e9], np.float32), "f8E4M3FN"), np.array([448, -448], np.float32))


def test_what_overflows_an_integer_is_the_nearest_one_and_nan_is_zero() -> None:
    from nki_optimizer_triton.ir.operations.elementwise import _to_integer

    values = np.array([1e20, -1e20, np.nan, 1.9, -1.9, np.inf], np.float32)
    assert _to_integer(values, np.dtype(np.int32), True).tolist() == [2**31 - 1, -(2**31), 0, 1, -1, 2**31 - 1]
    assert _to_integer(values, np.dtype(np.int32), False).view(np.uint32).tolist() == [2**32 - 1, 0, 0, 1, 0, 2**32 - 1]


def test_what_is_executed_is_on_the_list_and_what_of_libdevice_is_not_is_known() -> None:
    from nki_optimizer_triton.ir.executing import _HANDLERS

    assert set(INTEGERS) | set(_HANDLERS) <= KNOWN
    assert set(_LIBDEVICE) <= LIBDEVICE
