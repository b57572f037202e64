"""Fourier transform of 128 rows of 256 complex numbers, real and imaginary parts apart, float32."""

import numpy as np

M = 128
N = 256

TOLERANCE = 1e-4
WORK = {
    "matmul_flops": 8 * M * N * (N // 2),
    "vector_ops": 10 * M * (N // 2),
    "hbm_bytes": 4 * (4 * M * N + N * N // 2 + M * N),
}


def get_inputs():
    return [np.random.normal(size=(M, N)).astype(np.float32) for _ in range(2)]


def forward(real, imaginary):
    turned = np.fft.fft(real + 1j * imaginary, axis=-1)
    return turned.real, turned.imag


def transform_to_nki_inputs(inputs):
    half = inputs[0].shape[1] // 2
    steps = np.arange(half)
    matrix = np.exp(-2j * np.pi * np.outer(steps, steps) / half)
    twiddle = np.broadcast_to(np.exp(-1j * np.pi * steps / half), (len(inputs[0]), half))
    return [*inputs, *(part(each).astype(np.float32) for each in (matrix, twiddle) for part in (np.real, np.imag))]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(part).reshape(like.shape) for part, like in zip(kernel_result, reference)]
