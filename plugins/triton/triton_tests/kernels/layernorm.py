"""Two kernels: means and deviations of rows into tensors of their own, then what is made with them."""

import torch
import triton
import triton.language as tl


@triton.jit
def stats_kernel(x_ptr, mean_ptr, rstd_ptr, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
        total += x
        squares += x * x
    mean = tl.sum(total) / n_cols
    var = tl.sum(squares) / n_cols - mean * mean
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, tl.rsqrt(var + eps))


@triton.jit
def apply_kernel(x_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask)
    w = tl.load(w_ptr + cols, mask=mask)
    b = tl.load(b_ptr + cols, mask=mask)
    y = (x - tl.load(mean_ptr + row)) * tl.load(rstd_ptr + row) * w + b
    tl.store(y_ptr + row * n_cols + cols, y, mask=mask)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        rows = x.reshape(-1, x.shape[-1])
        m, n = rows.shape
        mean = torch.empty((m,), dtype=torch.float32, device=x.device)
        rstd = torch.empty((m,), dtype=torch.float32, device=x.device)
        y = torch.empty_like(x)
        stats_kernel[(m,)](rows, mean, rstd, n, eps, BLOCK=128)
        apply_kernel[(m, triton.cdiv(n, 256))](rows, weight, bias, mean, rstd, y, n, BLOCK=256)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return y


@torch.no_grad()
def run(x, weight, bias):
    return LayerNorm.apply(x, weight, bias, 1e-5)
