"""silu(gate) * up, float32; x is [M, 2 N] with the gate in its first half: one block of one row per program."""

import torch
import triton
import triton.language as tl

BLOCK = 1024
NUM_WARPS = 4

TUNABLES = {"BLOCK": (256, 512, 1024, 2048, 4096), "NUM_WARPS": (1, 2, 4, 8)}


@triton.jit
def silu_and_mul_block(x, out, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < N
    gate = tl.load(x + row * 2 * N + columns, mask=inside, other=0.0)
    up = tl.load(x + row * 2 * N + N + columns, mask=inside, other=0.0)
    tl.store(out + row * N + columns, gate * tl.sigmoid(gate) * up, mask=inside)


def run(x):
    M, width = x.shape
    N = width // 2
    out = torch.empty((M, N), device=x.device, dtype=x.dtype)
    silu_and_mul_block[(M, triton.cdiv(N, BLOCK))](x, out, N, BLOCK=BLOCK, num_warps=NUM_WARPS)
    return out
