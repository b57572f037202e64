"""Product of two complex matrices, real and imaginary parts apart, float32."""

import numpy as np

M = 512
K = 512
N = 512

PRESETS = {"small": {"M": 128, "K": 256}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 8 * M * K * N, "vector_ops": 0, "hbm_bytes": 8 * (M * K + K * N + M * N)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((M, K), (M, K), (K, N), (K, N))]


def forward(a_real, a_imag, b_real, b_imag):
    return a_real @ b_real - a_imag @ b_imag, a_real @ b_imag + a_imag @ b_real
