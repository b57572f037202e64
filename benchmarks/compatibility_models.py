"""Cases of aws-neuron/nki-library: attention, projections, mixtures of experts and what they are built from."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks.compatibility_cases import BF16, Result, f32, normal, softmax
from benchmarks.compatibility_library import library
from nki_sim.nki import language as nl
from nki_sim.nki import simulate


def integers(high: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(0, high, shape).astype(np.int32)


for _batch, _kv, _n, _d, _causal, _window, _dtype, _cores in (
    (2, 2, 256, 64, True, None, np.float32, None),
    (1, 1, 640, 128, False, None, BF16, None),
    (4, 2, 1024, 128, True, None, BF16, 2),
    (2, 2, 1024, 64, True, 200, BF16, 2),
):

    @library(
        "core/attention/attention_cte.py",
        "attention_cte",
        f"{_batch} queries to {_kv} keys, n {_n}, d {_d}, {np.dtype(_dtype).name}"
        + (", causal" if _causal else "")
        + (f", window {_window}" if _window else "")
        + (f", {_cores} cores" if _cores else ""),
        tolerance=3e-2 if _dtype is BF16 else 1e-2,
    )
    def _(
        kernel: Any,
        batch: int = _batch,
        kv: int = _kv,
        n: int = _n,
        d: int = _d,
        causal: bool = _causal,
        window: int | None = _window,
        dtype: Any = _dtype,
        cores: int | None = _cores,
    ) -> Result:
        q = (normal(batch, n, d) * d**-0.5).astype(dtype)
        k, v = normal(kv, d, n).astype(dtype), normal(kv, n, d, seed=1).astype(dtype)
        launched = kernel if cores is None else kernel[cores]
        out = simulate(launched)(q, k, v, causal_mask=causal, sliding_window=window)
        rows, columns = np.arange(n)[:, None], np.arange(n)
        seen = (columns <= rows) if causal else np.ones((n, n), bool)
        if window:
            seen = seen & (columns > rows - window)
        repeated = [np.repeat(f32(x), batch // kv, 0) for x in (k, v)]
        return f32(out), softmax(np.where(seen, f32(q) @ repeated[0], -np.inf)) @ repeated[1]


for _n, _d, _causal, _heads, _kv in ((512, 64, True, 1, 1), (512, 128, False, 2, 1)):

    @library(
        "core/attention/attention_bwd.py",
        "attention_bwd",
        f"{_heads} heads to {_kv}, n {_n}, d {_d}, float32" + (", causal" if _causal else ""),
        tolerance=1e-2,
    )
    def _(kernel: Any, n: int = _n, d: int = _d, causal: bool = _causal, heads: int = _heads, kv: int = _kv) -> Result:
        q, dy = normal(1, heads, d, n), normal(1, heads, d, n, seed=1)
        k, v = normal(1, kv, d, n, seed=2), normal(1, kv, d, n, seed=3)
        wide_k, wide_v = (np.repeat(x, heads // kv, 1) for x in (k, v))
        scores = np.einsum("bhdq,bhdk->bhqk", q, wide_k) * d**-0.5
        if causal:
            scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
        p = softmax(scores)
        o = np.einsum("bhqk,bhdk->bhdq", p, wide_v)
        lse = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)) + scores.max(-1)
        tiled = np.ascontiguousarray(lse.reshape(1, heads, n // 128, 128).swapaxes(2, 3)).astype(np.float32)
        got = simulate(kernel)(q, k, v, f32(o), dy, tiled, use_causal_mask=causal, mixed_precision=True)
        dp = np.einsum("bhdq,bhdk->bhqk", dy, wide_v)
        ds = p * (dp - (dy * o).sum(2)[..., None]) * d**-0.5
        dq = np.einsum("bhqk,bhdk->bhdq", ds, wide_k)
        dk = np.einsum("bhqk,bhdq->bhdk", ds, q).reshape(1, kv, -1, d, n).sum(2)
        dv = np.einsum("bhqk,bhdq->bhdk", p, dy).reshape(1, kv, -1, d, n).sum(2)
        return np.concatenate([x.ravel() for x in got[:3]]), np.concatenate([x.ravel() for x in (dq, dk, dv)])


for _batch, _n, _hidden, _heads, _norm, _cores in (
    (1, 256, 512, 4, "NO_NORM", None),
    (1, 512, 1024, 4, "RMS_NORM", 2),
    (2, 4, 1024, 4, "NO_NORM", 2),
    (1, 8, 1024, 6, "RMS_NORM", 2),
):

    @library(
        "core/qkv/qkv.py",
        "qkv",
        f"{_batch}x{_n}x{_hidden} to {_heads} heads, bfloat16, {_norm.lower()}, {_cores or 1} cores",
        tolerance=2e-2,
    )
    def _(
        kernel: Any,
        batch: int = _batch,
        n: int = _n,
        hidden: int = _hidden,
        heads: int = _heads,
        norm: str = _norm,
        cores: int | None = _cores,
    ) -> Result:
        kinds = sys.modules["nkilib.core.utils.common_types"]
        x, w = normal(batch, n, hidden).astype(BF16), (normal(hidden, heads * 128) * 0.05).astype(BF16)
        gamma = normal(1, hidden).astype(BF16)
        launched = kernel if cores is None else kernel[cores]
        options = {} if norm == "NO_NORM" else {"gamma_norm_weights": gamma}
        out = simulate(launched)(x, w, fused_norm_type=kinds.NormType[norm], **options)
        wide = f32(x)
        if norm != "NO_NORM":
            wide = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * f32(gamma)
        return f32(out), wide @ f32(w)


for _shape, _dtype, _cores in (((128, 4, 8, 1, 1024), BF16, 2), ((64, 2, 4, 3, 512), np.float32, None)):

    @library(
        "core/output_projection/output_projection_tkg.py",
        "output_projection_tkg",
        "x".join(map(str, _shape)) + f" {np.dtype(_dtype).name}, {_cores or 1} cores",
        tolerance=1e-2,
    )
    def _(kernel: Any, shape: tuple[int, ...] = _shape, dtype: Any = _dtype, cores: int | None = _cores) -> Result:
        d, batch, heads, steps, hidden = shape
        a, w = normal(d, batch, heads, steps).astype(dtype), (normal(heads * d, hidden) * 0.1).astype(dtype)
        bias = normal(1, hidden).astype(dtype)
        launched = kernel if cores is None else kernel[cores]
        rows = f32(a).transpose(1, 3, 2, 0).reshape(batch * steps, heads * d)
        return f32(simulate(launched)(a, w, bias)), rows @ f32(w) + f32(bias)


@library(
    "core/output_projection/output_projection_tkg.py",
    "output_projection_tkg",
    "128x4x8x1x1024 bfloat16, transposed: eight sums of eight products in one PSUM bank",
    tolerance=1e-2,
)
def _(kernel: Any) -> Result:
    d, batch, heads, steps, hidden = 128, 4, 8, 1, 1024
    a, w = normal(d, batch, heads, steps).astype(BF16), (normal(heads * d, hidden) * 0.1).astype(BF16)
    rows = f32(a).transpose(1, 3, 2, 0).reshape(batch * steps, heads * d) @ f32(w)
    result = f32(simulate(kernel)(a, w, None, TRANSPOSE_OUT=True))
    return result, rows.T.reshape(128, hidden // 128, batch * steps).reshape(result.shape)


for _tokens, _columns, _chunk in ((512, 16, None), (1024, 32, 256)):

    @library("core/subkernels/find_nonzero_indices.py", "find_nonzero_indices", f"{_tokens}x{_columns}, 2 cores")
    def _(kernel: Any, tokens: int = _tokens, columns: int = _columns, chunk: int | None = _chunk) -> Result:
        x = (normal(tokens, columns) * (integers(4, tokens, columns) == 0)).astype(np.float32)
        indices, counts = simulate(kernel[2])(x, chunk_size=chunk)
        expected = np.full((columns, tokens), -1)
        for column in range(columns):
            found = np.flatnonzero(x[:, column])
            expected[column, : len(found)] = found
        return (
            np.concatenate([f32(indices).ravel(), f32(counts).ravel()]),
            np.concatenate([expected.ravel(), (x != 0).sum(0)]),
        )


@library(
    "experimental/benchmark/find_nonzero_indices_with_count.py", "find_nonzero_indices_with_count", "1x300 float32"
)
def _(kernel: Any) -> Result:
    x = (normal(1, 300) * (integers(3, 1, 300) == 0)).astype(np.float32)
    found = np.flatnonzero(x[0])
    expected = np.full((1, 301), -1)
    expected[0, : len(found)], expected[0, -1] = found, len(found)
    return f32(simulate(kernel)(x)), expected


for _experts, _tokens, _length in ((8, 1024, 4096), (4, 2048, 6144)):

    @library("core/subkernels/indexed_flatten.py", "indexed_flatten", f"{_experts}x{_tokens} into {_length}, 2 cores")
    def _(kernel: Any, experts: int = _experts, tokens: int = _tokens, length: int = _length) -> Result:
        width = 64
        blocks = tokens // width
        x = integers(1000, experts, tokens)
        used = min(blocks, length // width // experts)
        x[:, used * width :] = -1
        offsets = (np.arange(experts) * used).astype(np.int32)
        expected = np.full((length // width, width), -1)
        for e in range(experts):
            for block in range(blocks):
                if offsets[e] + block < len(expected):
                    at = offsets[e] + block
                    expected[at] = np.maximum(expected[at], x[e, block * width : (block + 1) * width])
        got = simulate(kernel[2])(x, width, length, offsets)
        return f32(got).ravel(), expected.ravel()


@library("experimental/collectives/topk_reduce.py", "topk_reduce", "16 tokens, top 4, 512 columns, 2 cores", 2e-2)
def _(kernel: Any) -> Result:
    tokens, k, hidden = 16, 4, 512
    padded = 4 * tokens + 64
    rows = normal(padded, hidden).astype(BF16)
    owner = np.full(padded, -1, np.int32)
    slots = np.random.default_rng(0).permutation(padded)[: tokens * k]
    owner[slots] = np.repeat(np.arange(tokens), k)
    packed = np.concatenate([rows, owner[:, None].view(BF16)], 1)
    expected = np.stack([f32(rows)[owner == t].sum(0) for t in range(tokens)])
    return f32(simulate(kernel[2])(packed, tokens, k)), expected


for _rows, _columns, _count in ((512, 1024, 4), (256, 512, 2)):

    @library(
        "experimental/dynamic_shapes/dynamic_elementwise_add.py",
        "dynamic_elementwise_add",
        f"{_rows}x{_columns} bfloat16",
        tolerance=1e-2,
    )
    def _(kernel: Any, rows: int = _rows, columns: int = _columns, count: int = _count) -> Result:
        a, b = normal(rows, columns).astype(BF16), normal(rows, columns, seed=1).astype(BF16)
        return f32(simulate(kernel)(a, b, np.full((1, 1), count, np.int32))), f32(a) + f32(b)


for _positions, _vocabulary, _dtype in ((128, 2048, np.float32), (256, 3000, BF16)):

    @library(
        "experimental/loss/cross_entropy.py",
        "cross_entropy_backward",
        f"{_positions} positions, vocabulary {_vocabulary}, {np.dtype(_dtype).name}",
        tolerance=1e-4 if _dtype is np.float32 else 2e-2,
    )
    def _(kernel: Any, positions: int = _positions, vocabulary: int = _vocabulary, dtype: Any = _dtype) -> Result:
        x, targets = normal(positions, vocabulary).astype(dtype), integers(vocabulary, positions)
        wide = f32(x)
        lse = np.log(np.exp(wide).sum(-1)).astype(dtype)
        kind = nl.float32 if dtype is np.float32 else nl.bfloat16
        got = simulate(kernel[2])(x, targets, lse, "mean", 32, vocabulary, kind, False)
        expected = np.exp(wide - f32(lse)[:, None])
        expected[np.arange(positions), targets] -= 1
        return f32(got), expected / positions
