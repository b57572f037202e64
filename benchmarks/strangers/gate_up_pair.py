"""x^T @ gate and x^T @ up of an x with few columns, in bfloat16, summed in float32."""

import ml_dtypes
import numpy as np

K = 1024
M = 64
N = 2048

PRESETS = {"small": {"K": 256, "M": 16, "N": 512}}
TOLERANCE = 1e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 4 * K * M * N, "vector_ops": 0, "hbm_bytes": 2 * (K * M + 2 * K * N + 2 * M * N)}


def get_inputs():
    return [np.random.normal(size=(K, columns)).astype(ml_dtypes.bfloat16) for columns in (M, N, N)]


def forward(x, gate, up):
    return x.T @ gate, x.T @ up
