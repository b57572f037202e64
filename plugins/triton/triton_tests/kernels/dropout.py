"""Random numbers by counter: the same for the same seed; and a loop that only the device ends."""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["seed"])
def dropout_kernel(x_ptr, y_ptr, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.rand(seed, offsets) > p
    tl.store(y_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


@triton.jit
def halvings_kernel(x_ptr, count_ptr, n):
    i = tl.program_id(0)
    if i >= n:
        return
    x = tl.load(x_ptr + i)
    count = 0
    while x > 1.0:
        x = x * 0.5
        count += 1
    tl.store(count_ptr + i, count)


def run(x, seed):
    y = torch.empty_like(x)
    counts = torch.empty(x.shape, dtype=torch.int32, device=x.device)
    n = x.numel()
    dropout_kernel[(triton.cdiv(n, 256),)](x, y, n, 0.25, seed, BLOCK=256)
    halvings_kernel[(n + 3,)](x, counts, n)
    return y, counts
