"""The largest of each row by repeated maximum, with their places."""

import torch
import triton
import triton.language as tl


@triton.jit
def topk_kernel(x_ptr, values_ptr, indices_ptr, n, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
    for i in tl.static_range(K):
        value, index = tl.max(x, axis=0, return_indices=True)
        tl.store(values_ptr + row * K + i, value)
        tl.store(indices_ptr + row * K + i, index)
        x = tl.where(cols == index, -float("inf"), x)


def run(x, k):
    rows, n = x.shape
    values = torch.empty((rows, k), dtype=x.dtype, device=x.device)
    indices = torch.empty((rows, k), dtype=torch.int32, device=x.device)
    topk_kernel[(rows,)](x, values, indices, n, K=k, BLOCK=triton.next_power_of_2(n))
    return values, indices
