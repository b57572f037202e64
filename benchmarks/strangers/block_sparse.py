"""A matrix of which each row of blocks has a few, times the rows that these meet, gathered beforehand, float32."""

import numpy as np

M = 8
K = 4
N = 512

PRESETS = {"small": {"M": 2, "K": 2}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 2 * M * K * 128 * 128 * N, "vector_ops": 0, "hbm_bytes": 4 * M * 128 * (K * 128 + K * N + N)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((M, K, 128, 128), (M, K, 128, N))]


def forward(blocks, rows):
    return np.einsum("mkij,mkjn->min", blocks, rows, optimize=True).reshape(-1, rows.shape[-1])
