"""A copy with a factor by tensor descriptors that the host makes."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def scale_kernel(x_desc, y_desc, factor, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    y_desc.store([m, n], (x_desc.load([m, n]).to(tl.float32) * factor).to(tl.float16))


def run(x):
    y = torch.empty_like(x)
    x_desc = TensorDescriptor.from_tensor(x, [32, 64])
    y_desc = TensorDescriptor(y, shape=y.shape, strides=y.stride(), block_shape=[32, 64])
    scale_kernel[(triton.cdiv(x.shape[0], 32), triton.cdiv(x.shape[1], 64))](x_desc, y_desc, 2.5, BM=32, BN=64)
    return y
