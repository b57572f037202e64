"""lhs^T @ rhs + bias, float32."""

import numpy as np

K = 512
M = 512
N = 1536

PRESETS = {"small": {"K": 256, "M": 256, "N": 512}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 2 * K * M * N, "vector_ops": M * N, "hbm_bytes": 4 * (K * M + K * N + N + M * N)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((K, M), (K, N), (1, N))]


def forward(lhs, rhs, bias):
    return lhs.T @ rhs + bias
