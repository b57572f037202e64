"""With what is known of the arguments worked out before the launch."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.heuristics(
    {
        "BLOCK": lambda args: min(1024, triton.next_power_of_2(args["n"])),
        "EVEN": lambda args: args["n"] % args["BLOCK"] == 0,
        "num_warps": lambda args: 4 if args["n"] < 4096 else 8,
    }
)
@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, TANH: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + i)
    else:
        x = tl.load(x_ptr + i, mask=i < n)
    if TANH:
        y = 0.5 * x * (1 + libdevice.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    else:
        y = 0.5 * x * (1 + tl.math.erf(x * 0.7071067811865476))
    if EVEN:
        tl.store(y_ptr + i, y)
    else:
        tl.store(y_ptr + i, y, mask=i < n)


def run(x, approximate="none"):
    y = torch.empty_like(x)
    gelu_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), TANH=approximate == "tanh")
    return y
