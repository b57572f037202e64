"""Causal attention that never writes its scores: an inner function goes through the keys before and on the diagonal."""

import torch
import triton
import triton.language as tl


@triton.jit
def _inner(acc, l_i, m_i, q, K, V, start_m, qk_scale, N_CTX, BLOCK_M: tl.constexpr, D: tl.constexpr,
           BLOCK_N: tl.constexpr, STAGE: tl.constexpr, offs_m: tl.constexpr, offs_n: tl.constexpr):  # fmt: skip
    if STAGE == 1:
        lo, hi = 0, start_m * BLOCK_M
    else:
        lo, hi = start_m * BLOCK_M, (start_m + 1) * BLOCK_M
        lo = tl.multiple_of(lo, BLOCK_M)
    offs_d = tl.arange(0, D)
    for start_n in range(lo, hi, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        cols = start_n + offs_n
        k = tl.load(K + cols[None, :] * D + offs_d[:, None], mask=cols[None, :] < N_CTX, other=0.0)
        qk = tl.dot(q, k) * qk_scale
        if STAGE == 2:
            qk = tl.where(offs_m[:, None] >= cols[None, :], qk, -1.0e6)
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.math.exp2(qk - m_ij[:, None])
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(V + cols[:, None] * D + offs_d[None, :], mask=cols[:, None] < N_CTX, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)
        m_i = m_ij
    return acc, l_i, m_i


@triton.jit
def attention_kernel(Q, K, V, Out, sm_scale, N_CTX, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    start_m = tl.program_id(0)
    base = tl.program_id(1).to(tl.int64) * N_CTX * D
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, D)
    rows = base + offs_m[:, None] * D + offs_d[None, :]
    q = tl.load(Q + rows, mask=offs_m[:, None] < N_CTX, other=0.0)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    qk_scale = sm_scale * 1.44269504
    for STAGE in tl.static_range(1, 3):
        acc, l_i, m_i = _inner(acc, l_i, m_i, q, K + base, V + base, start_m, qk_scale, N_CTX, BLOCK_M, D, BLOCK_N,
                               STAGE, offs_m, offs_n)  # fmt: skip
    tl.store(Out + rows, (acc / l_i[:, None]).to(Out.type.element_ty), mask=offs_m[:, None] < N_CTX)


def run(q, k, v):
    batch, heads, n, d = q.shape
    o = torch.empty_like(q)
    grid = (triton.cdiv(n, 64), batch * heads, 1)
    attention_kernel[grid](q, k, v, o, 1 / d**0.5, n, D=d, BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2)
    return o
