"""x^T @ wq, x^T @ wk and x^T @ wv, float32."""

import numpy as np

M = 128
K = 1024
Q = 2048
V = 512

PRESETS = {"small": {"M": 64, "K": 256, "Q": 512}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 2 * M * K * (Q + 2 * V), "vector_ops": 0, "hbm_bytes": 4 * (K + M) * (Q + 2 * V) + 4 * K * M}


def get_inputs():
    return [np.random.normal(size=(K, columns)).astype(np.float32) for columns in (M, Q, V, V)]


def forward(x, wq, wk, wv):
    return x.T @ wq, x.T @ wk, x.T @ wv
