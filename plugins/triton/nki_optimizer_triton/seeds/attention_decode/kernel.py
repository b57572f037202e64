"""Attention of one new token per sequence; q is [B, H, D], k and v are [B, S, H, D], bfloat16: one head per program."""

import torch
import triton
import triton.language as tl

BLOCK = 64
NUM_WARPS = 4

TUNABLES = {"BLOCK": (32, 64, 128, 256), "NUM_WARPS": (1, 2, 4, 8)}


@triton.jit
def decode_head(q, k, v, out, H, S, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    batch = tl.program_id(0)
    head = tl.program_id(1)
    lanes = tl.arange(0, D)
    query = tl.load(q + (batch * H + head) * D + lanes).to(tl.float32) * scale
    largest = -float("inf")
    total = 0.0
    result = tl.zeros((D,), dtype=tl.float32)
    for start in range(0, S, BLOCK):
        positions = start + tl.arange(0, BLOCK)
        inside = positions < S
        places = ((batch * S + positions) * H + head) * D
        keys = tl.load(k + places[:, None] + lanes[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        scores = tl.where(inside, tl.sum(keys * query[None, :], axis=1), -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=0))
        fading = tl.exp(largest - larger)
        powers = tl.exp(scores - larger)
        values = tl.load(v + places[:, None] + lanes[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        result = result * fading + tl.sum(values * powers[:, None], axis=0)
        total = total * fading + tl.sum(powers, axis=0)
        largest = larger
    tl.store(out + (batch * H + head) * D + lanes, (result / total).to(tl.bfloat16))


def run(q, k, v):
    B, H, D = q.shape
    S = k.shape[1]
    out = torch.empty_like(q)
    decode_head[(B, H)](q, k, v, out, H, S, D**-0.5, D=D, BLOCK=BLOCK, num_warps=NUM_WARPS)
    return out
