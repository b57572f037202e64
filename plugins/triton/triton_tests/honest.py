"""Kernels as public Triton code has them (`kernels/`), each with inputs and what it must compute of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from accelopt_core.toolchain import ArgumentSpec, ConstantArgument, TensorArgument

KERNELS = Path(__file__).with_name("kernels")


@dataclass(frozen=True)
class Case:
    file: str
    arguments: Callable[[np.random.Generator], list[Any]]
    """Arrays and constants."""
    expected: Callable[..., Sequence[np.ndarray]]
    """In float64, or exactly."""
    tolerance: float = 1e-5
    """Of the largest value."""
    triton: tuple[tuple[int, int], tuple[int, int]] = ((3, 4), (9, 9))
    """Versions that have what it uses, both included."""

    @property
    def source(self) -> str:
        return (KERNELS / f"{self.file}.py").read_text(encoding="utf-8")


def specs(arguments: Sequence[Any]) -> tuple[ArgumentSpec, ...]:
    return tuple(
        TensorArgument(tuple(a.shape), a.dtype.name) if isinstance(a, np.ndarray) else ConstantArgument(a)
        for a in arguments
    )


def tensors(arguments: Sequence[Any]) -> list[np.ndarray]:
    return [a for a in arguments if isinstance(a, np.ndarray)]


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


BF16 = ml_dtypes.bfloat16


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(wide(x) - wide(x).max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _rmsnorm(x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    return [wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-6) * wide(w)]


def _layernorm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    x = wide(x)
    return [(x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b]


def _matmul(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    c = wide(a) @ wide(b)
    return [np.where(c >= 0, c, 0.01 * c)]


def _silu(x: np.ndarray) -> list[np.ndarray]:
    gate, up = np.split(wide(x), 2, -1)
    return [gate / (1 + np.exp(-gate)) * up]


def _rope(q: np.ndarray, k: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> list[np.ndarray]:
    def turned(x: np.ndarray) -> np.ndarray:
        a, b = np.split(wide(x), 2, -1)
        c, s = cos[None, :, None, :], sin[None, :, None, :]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    return [turned(q), turned(k)]


def _decode(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
    weights = _softmax(np.einsum("hd,hnd->hn", wide(q), wide(k)) / np.sqrt(q.shape[-1]))
    return [np.einsum("hn,hnd->hd", weights, wide(v))]


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
    scores = np.einsum("bhmd,bhnd->bhmn", wide(q), wide(k)) / np.sqrt(q.shape[-1])
    n = q.shape[2]
    return [_softmax(np.where(np.tril(np.ones((n, n), bool)), scores, -1e30)) @ wide(v)]


def _topk(x: np.ndarray, k: int) -> list[np.ndarray]:
    order = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    return [np.take_along_axis(x, order, -1), order]


def _gelu(x: np.ndarray, approximate: str) -> list[np.ndarray]:
    import math

    x = wide(x)
    if approximate == "tanh":
        return [0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))]
    return [0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))]


def _quantize(x: np.ndarray) -> list[np.ndarray]:
    scale = np.maximum(np.abs(x.astype(np.float32)).max(-1), np.float32(1e-10)) / np.float32(448)
    q = (x.astype(np.float32) / scale[:, None]).astype(ml_dtypes.float8_e4m3fn)
    return [q.astype(np.float64), scale]


def philox_keep(seed: int, n: int, p: float) -> np.ndarray:
    """Which of n numbers tl.rand(seed, 0 ... n - 1) are above p: Philox4x32-10 (Salmon et al., 2011), first word."""
    c = [np.arange(n, dtype=np.uint64), *(np.zeros(n, np.uint64) for _ in range(3))]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]),
            b & low,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]),
            a & low,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    whole = c[0].astype(np.uint32).view(np.int32)
    return np.asarray(np.where(whole < 0, -whole - 1, whole) * 4.6566127342e-10 > p)


def _dropout(x: np.ndarray, seed: int) -> list[np.ndarray]:
    counts = np.maximum(0, np.ceil(np.log2(np.maximum(x, 1e-9))))
    return [np.where(philox_keep(seed, x.size, 0.25), wide(x) / 0.75, 0), counts]


CASES = (
    Case("vector_add", lambda r: [normal(r, 3000), normal(r, 3000)], lambda x, y: [wide(x) + y]),
    Case("softmax", lambda r: [normal(r, 300, 781)], lambda x: [_softmax(x)]),
    Case("rmsnorm", lambda r: [normal(r, 33, 500, dtype=BF16), normal(r, 500, dtype=BF16)], _rmsnorm, 4e-3),
    Case("layernorm", lambda r: [normal(r, 2, 20, 300), normal(r, 300), normal(r, 300)], _layernorm),
    Case(
        "matmul",
        lambda r: [normal(r, 200, 144, dtype=np.float16), normal(r, 144, 136, dtype=np.float16)],
        _matmul,
        1e-3,
    ),
    Case("silu_and_mul", lambda r: [normal(r, 17, 600, dtype=BF16)], _silu, 4e-3),
    Case("rope", lambda r: [normal(r, 2, 9, 5, 32), normal(r, 2, 9, 3, 32), normal(r, 9, 16), normal(r, 9, 16)], _rope),
    Case(
        "decode_attention",
        lambda r: [normal(r, 6, 64, dtype=np.float16), *(normal(r, 6, 300, 64, dtype=np.float16) for _ in "kv")],
        _decode,
        1e-3,
    ),
    Case("topk", lambda r: [normal(r, 20, 100), 5], _topk, 0),
    Case("sorted_rows", lambda r: [normal(r, 9, 64)], lambda x: [-np.sort(-x), np.cumsum(wide(x), -1)]),
    Case("atomic_sum", lambda r: [normal(r, 100, 130)], lambda x: [wide(x).sum(0)]),
    Case("gelu", lambda r: [normal(r, 3000), "tanh"], _gelu),
    Case("gelu", lambda r: [normal(r, 2048), "none"], _gelu),
    Case("flash_attention", lambda r: [normal(r, 1, 2, 150, 32, dtype=BF16) for _ in "qkv"], _attention, 8e-3),
    Case("quantize", lambda r: [normal(r, 12, 200, dtype=BF16)], _quantize, 0),
    Case(
        "descriptors",
        lambda r: [normal(r, 100, 96, dtype=BF16), normal(r, 72, 96, dtype=BF16)],
        lambda a, b: [wide(a) @ wide(b).T],
        8e-3,
    ),
    Case("host_descriptors", lambda r: [normal(r, 70, 136, dtype=np.float16)], lambda x: [wide(x) * 2.5], 1e-3),
    Case("block_pointers", lambda r: [normal(r, 70, 40)], lambda x: [x.T], 0, ((3, 4), (3, 8))),
    Case("dropout", lambda r: [np.abs(normal(r, 500)) * 20, 1234], _dropout),
)


def agrees(case: Case, got: np.ndarray, want: np.ndarray) -> str:
    """Empty, or in which way it does not."""
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    error = np.abs(wide(got) - want).max()
    limit = case.tolerance * np.abs(want).max()
    return "" if error <= limit else f"off by {error}, more than {limit}"
