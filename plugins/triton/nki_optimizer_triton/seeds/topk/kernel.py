"""The K largest values of each row, largest first, float32; x is [M, N]: a row per program, maximum after maximum."""

import torch
import triton
import triton.language as tl

K = 8
NUM_WARPS = 4

TUNABLES = {"NUM_WARPS": (1, 2, 4, 8, 16)}


@triton.jit
def topk_rows(x, out, N, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    values = tl.load(x + row * N + columns, mask=columns < N, other=-float("inf"))
    for place in range(K):
        tl.store(out + row * K + place, tl.max(values, axis=0))
        values = tl.where(columns == tl.argmax(values, axis=0), -float("inf"), values)


def run(x):
    M, N = x.shape
    assert N >= K, "a row must have K values"
    out = torch.empty((M, K), device=x.device, dtype=x.dtype)
    topk_rows[(M,)](x, out, N, K=K, BLOCK=triton.next_power_of_2(N), num_warps=NUM_WARPS)
    return out
