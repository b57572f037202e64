"""Rotary embedding, in place: the function returns what it updated."""

import triton
import triton.language as tl


@triton.jit
def _rope(q_ptr, cos_ptr, sin_ptr, seq_len, n_heads: tl.constexpr, half: tl.constexpr, BLOCK_H: tl.constexpr):
    token = tl.program_id(0)
    position = token % seq_len
    d = tl.arange(0, half)
    cos = tl.load(cos_ptr + position * half + d)[None, :]
    sin = tl.load(sin_ptr + position * half + d)[None, :]
    heads = tl.arange(0, BLOCK_H)[:, None]
    first = token * n_heads * 2 * half + heads * 2 * half + d[None, :]
    second = first + half
    mask = heads < n_heads
    a = tl.load(q_ptr + first, mask=mask, other=0)
    b = tl.load(q_ptr + second, mask=mask, other=0)
    tl.store(q_ptr + first, a * cos - b * sin, mask=mask)
    tl.store(q_ptr + second, b * cos + a * sin, mask=mask)


def run(q, k, cos, sin):
    for x in (q, k):
        batch, seq, heads, dim = x.shape
        _rope[(batch * seq,)](x, cos, sin, seq, heads, dim // 2, BLOCK_H=triton.next_power_of_2(heads))
    return q, k
