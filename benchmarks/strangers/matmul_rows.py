"""a @ b, both as they are written, float32."""

import numpy as np

M = 512
K = 512
N = 1024

PRESETS = {"small": {"M": 128, "K": 256, "N": 512}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 2 * M * K * N, "vector_ops": 0, "hbm_bytes": 4 * (M * K + K * N + M * N)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((M, K), (K, N))]


def forward(a, b):
    return a @ b
