"""v^T @ (u^T @ x) through a narrow middle, in bfloat16, summed in float32."""

import ml_dtypes
import numpy as np

K = 1024
M = 1024
N = 512
D = 1024

PRESETS = {"small": {"K": 256, "M": 512, "D": 256}}
TOLERANCE = 2e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 2 * M * N * (K + D), "vector_ops": 0, "hbm_bytes": 2 * (K * M + K * N + N * D + D * M)}


def get_inputs():
    shapes = ((K, M), (K, N), (N, D))
    return [np.random.normal(scale=rows**-0.5, size=(rows, n)).astype(ml_dtypes.bfloat16) for rows, n in shapes]


def forward(x, u, v):
    return v.T @ (u.T @ x)
