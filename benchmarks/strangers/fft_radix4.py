"""A radix-4 stage of Fourier transforms: four values times their factors, then transformed; parts apart, float32."""

import numpy as np

N = 4096

PRESETS = {"small": {"N": 256}}
WORK = {"matmul_flops": 0, "vector_ops": 10 * 4 * N, "hbm_bytes": 4 * 6 * 4 * N}


def get_inputs():
    return [np.random.normal(size=(N, 4)).astype(np.float32) for _ in range(4)]


def forward(x_real, x_imag, f_real, f_imag):
    result = np.fft.fft((x_real + 1j * x_imag) * (f_real + 1j * f_imag), axis=1)
    return result.real, result.imag
