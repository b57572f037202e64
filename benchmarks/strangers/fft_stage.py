"""A radix-2 stage of Fourier transforms: each group's second half, times its factors, added to and taken off the first.

Factors are given for every group. Real and imaginary parts apart, float32.
"""

import numpy as np

B = 64
N = 256
STAGE = 3
GROUP = 16

PRESETS = {"small": {"B": 8}}
WORK = {"matmul_flops": 0, "vector_ops": 5 * B * N, "hbm_bytes": 4 * 5 * B * N}


def get_inputs():
    shapes = ((B, N), (B, N), (B * N // GROUP, GROUP // 2), (B * N // GROUP, GROUP // 2))
    return [np.random.normal(size=shape).astype(np.float32) for shape in shapes]


def forward(x_real, x_imag, f_real, f_imag):
    half = f_real.shape[1]
    real, imag = (x.reshape(-1, 2, half) for x in (x_real, x_imag))
    p_real, p_imag = f_real * real[:, 1] - f_imag * imag[:, 1], f_real * imag[:, 1] + f_imag * real[:, 1]
    parts = ((real[:, 0], p_real), (imag[:, 0], p_imag))
    return tuple(np.stack([even + odd, even - odd], 1).reshape(x_real.shape) for even, odd in parts)


def transform_to_nki_inputs(inputs):
    return [*inputs, N, STAGE]
