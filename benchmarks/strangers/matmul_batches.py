"""Products of the matrices of two batches, float32."""

import numpy as np

B = 4
M = 256
K = 256
N = 512

PRESETS = {"small": {"B": 1}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 2 * B * M * K * N, "vector_ops": 0, "hbm_bytes": 4 * B * (M * K + K * N + M * N)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((B, M, K), (B, K, N))]


def forward(a, b):
    return a @ b
