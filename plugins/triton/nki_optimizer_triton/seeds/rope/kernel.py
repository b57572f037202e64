"""Rotary embedding, float32; x is [T, H, D], cos and sin are [T, D / 2]: one head of one token per program."""

import torch
import triton
import triton.language as tl

NUM_WARPS = 1

TUNABLES = {"NUM_WARPS": (1, 2, 4)}


@triton.jit
def rotate_head(x, cos, sin, out, H, HALF: tl.constexpr):
    token = tl.program_id(0)
    head = tl.program_id(1)
    lanes = tl.arange(0, HALF)
    start = (token * H + head) * 2 * HALF
    first = tl.load(x + start + lanes)
    second = tl.load(x + start + HALF + lanes)
    c = tl.load(cos + token * HALF + lanes)
    s = tl.load(sin + token * HALF + lanes)
    tl.store(out + start + lanes, first * c - second * s)
    tl.store(out + start + HALF + lanes, second * c + first * s)


def run(x, cos, sin):
    T, H, D = x.shape
    half = D // 2
    assert triton.next_power_of_2(half) == half, "D / 2 must be a power of two"
    out = torch.empty_like(x)
    rotate_head[(T, H)](x, cos, sin, out, H, HALF=half, num_warps=NUM_WARPS)
    return out
