"""y = x / sqrt(mean(x^2) + 1e-6) * weight by rows, float32; x is [M, N]: one row per program."""

import torch
import triton
import triton.language as tl

NUM_WARPS = 4

TUNABLES = {"NUM_WARPS": (1, 2, 4, 8, 16)}


@triton.jit
def rmsnorm_rows(x, weight, out, stride, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < N
    values = tl.load(x + row * stride + columns, mask=inside, other=0.0)
    mean = tl.sum(values * values, axis=0) / N
    scaled = values * (1.0 / tl.sqrt(mean + 1e-6))
    scaled *= tl.load(weight + columns, mask=inside, other=0.0)
    tl.store(out + row * stride + columns, scaled, mask=inside)


def run(x, weight):
    M, N = x.shape
    out = torch.empty_like(x)
    rmsnorm_rows[(M,)](x, weight, out, x.stride(0), N, BLOCK=triton.next_power_of_2(N), num_warps=NUM_WARPS)
    return out
