"""Product of complex numbers, element by element, real and imaginary parts apart, float32."""

import numpy as np

M = 1024
N = 512

PRESETS = {"small": {"M": 128, "N": 256}}
WORK = {"matmul_flops": 0, "vector_ops": 6 * M * N, "hbm_bytes": 24 * M * N}


def get_inputs():
    return [np.random.normal(size=(M, N)).astype(np.float32) for _ in range(4)]


def forward(a_real, a_imag, b_real, b_imag):
    product = (a_real + 1j * a_imag) * (b_real + 1j * b_imag)
    return product.real, product.imag
