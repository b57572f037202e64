"""Product of a complex matrix and the transpose of another, real and imaginary parts apart, float32."""

import numpy as np

M = 256
K = 512
N = 512

PRESETS = {"small": {"M": 128, "K": 128, "N": 128}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 8 * M * K * N, "vector_ops": 0, "hbm_bytes": 8 * (M * K + K * N + M * N)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((M, K), (M, K), (N, K), (N, K))]


def forward(x_real, x_imag, w_real, w_imag):
    product = (x_real + 1j * x_imag) @ (w_real + 1j * w_imag).T
    return product.real, product.imag
