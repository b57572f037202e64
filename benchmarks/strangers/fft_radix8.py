"""Groups of eight complex values times one matrix of eight by eight, real and imaginary parts apart, float32."""

import numpy as np

N = 2048

PRESETS = {"small": {"N": 256}}
WORK = {"matmul_flops": 8 * 64 * N, "vector_ops": 0, "hbm_bytes": 4 * (4 * 8 * N + 2 * 64)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((N, 8), (N, 8), (8, 8), (8, 8))]


def forward(a_real, a_imag, w_real, w_imag):
    return a_real @ w_real - a_imag @ w_imag, a_real @ w_imag + a_imag @ w_real
