"""Columns summed by programs that each add their part."""

import torch
import triton
import triton.language as tl


@triton.jit
def column_sum(x_ptr, out_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    x = tl.load(x_ptr + rows[:, None] * N + cols[None, :], mask=mask, other=0.0)
    tl.atomic_add(out_ptr + cols, tl.sum(x, axis=0), mask=cols < N)


def run(x):
    M, N = x.shape
    out = torch.zeros(N, dtype=torch.float32, device=x.device)
    column_sum[(triton.cdiv(M, 32), triton.cdiv(N, 64))](x, out, M, N, BLOCK_M=32, BLOCK_N=64)
    return out
