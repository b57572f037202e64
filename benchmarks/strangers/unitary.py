"""Rows of a complex state times a complex matrix's transpose; the imaginary part comes out first, float32."""

import numpy as np

D = 128
N = 4096

PRESETS = {"small": {"N": 512}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 8 * D * D * N, "vector_ops": 0, "hbm_bytes": 8 * (D * D + 2 * D * N)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((2, N, D), (2, D, D))]


def forward(state, unitary):
    real, imaginary = state @ unitary[0].T, state @ unitary[1].T
    return np.stack([imaginary[0] + real[1], real[0] - imaginary[1]])
