"""LayerNorm by rows with weight and bias, float32; x is [M, N]: mean, variance and result in three walks over a row."""

import torch
import triton
import triton.language as tl

BLOCK = 1024
NUM_WARPS = 4

TUNABLES = {"BLOCK": (256, 512, 1024, 2048, 4096), "NUM_WARPS": (1, 2, 4, 8, 16)}


@triton.jit
def layernorm_rows(x, weight, bias, out, stride, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * stride + columns, mask=columns < N, other=0.0)
    mean = tl.sum(total, axis=0) / N
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * stride + columns, mask=columns < N, other=0.0)
        centred = tl.where(columns < N, values - mean, 0.0)
        squares += centred * centred
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / N + 1e-5)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < N
        values = tl.load(x + row * stride + columns, mask=inside, other=0.0)
        scaled = (values - mean) * scale * tl.load(weight + columns, mask=inside, other=0.0)
        scaled += tl.load(bias + columns, mask=inside, other=0.0)
        tl.store(out + row * stride + columns, scaled, mask=inside)


def run(x, weight, bias):
    M, N = x.shape
    out = torch.empty_like(x)
    layernorm_rows[(M,)](x, weight, bias, out, x.stride(0), N, BLOCK=BLOCK, num_warps=NUM_WARPS)
    return out
