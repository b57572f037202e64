"""One query against a long cache, in splits: partial softmaxes, then a second kernel that joins them."""

import math

import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _split(
    q_ptr, k_ptr, v_ptr, acc_ptr, m_ptr, l_ptr, length, scale, per_split,
    D: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    split = tl.program_id(1)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + head * D + d).to(tl.float32) * scale * LOG2E
    m = -float("inf")
    l = 0.0  # noqa: E741
    acc = tl.zeros([D], dtype=tl.float32)
    low = split * per_split
    high = tl.minimum(low + per_split, length)
    for start in range(low, high, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        mask = rows < high
        k = tl.load(k_ptr + (head * length + rows[:, None]) * D + d[None, :], mask=mask[:, None], other=0.0)
        s = tl.sum(k.to(tl.float32) * q[None, :], axis=1)
        s = tl.where(mask, s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, axis=0))
        alpha = tl.exp2(m - m_new)
        p = tl.exp2(s - m_new)
        v = tl.load(v_ptr + (head * length + rows[:, None]) * D + d[None, :], mask=mask[:, None], other=0.0)
        acc = acc * alpha + tl.sum(p[:, None] * v.to(tl.float32), axis=0)
        l = l * alpha + tl.sum(p, axis=0)  # noqa: E741
        m = m_new
    at = head * SPLITS + split
    tl.store(m_ptr + at, m)
    tl.store(l_ptr + at, l)
    tl.store(acc_ptr + at * D + d, acc)


@triton.jit
def _join(acc_ptr, m_ptr, l_ptr, out_ptr, D: tl.constexpr, SPLITS: tl.constexpr):
    head = tl.program_id(0)
    d = tl.arange(0, D)
    splits = tl.arange(0, SPLITS)
    m = tl.load(m_ptr + head * SPLITS + splits)
    l = tl.load(l_ptr + head * SPLITS + splits)  # noqa: E741
    weight = tl.exp2(m - tl.max(m, axis=0))
    acc = tl.load(acc_ptr + (head * SPLITS + splits[:, None]) * D + d[None, :])
    out = tl.sum(acc * weight[:, None], axis=0) / tl.sum(weight * l, axis=0)
    tl.store(out_ptr + head * D + d, out.to(out_ptr.dtype.element_ty))


def run(q, k, v):
    heads, length, D = k.shape
    splits = 4
    per_split = triton.cdiv(triton.cdiv(length, splits), 32) * 32
    acc = q.new_empty((heads, splits, D), dtype=torch.float32)
    m, l = (torch.empty((heads, splits), dtype=torch.float32, device=q.device) for _ in range(2))  # noqa: E741
    out = torch.empty_like(q)
    _split[(heads, splits)](q, k, v, acc, m, l, length, 1 / math.sqrt(D), per_split, D, 32, splits)
    _join[(heads,)](acc, m, l, out, D=D, SPLITS=splits)
    return out
