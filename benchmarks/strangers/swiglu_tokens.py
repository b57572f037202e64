"""silu of tokens times one matrix, times the tokens times another, float32."""

import numpy as np

M = 200
K = 512
N = 512

PRESETS = {"small": {"M": 100, "K": 256}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 4 * M * K * N, "vector_ops": 2 * M * N, "hbm_bytes": 4 * (M * K + 2 * K * N + M * N)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((M, K), (K, N), (K, N))]


def forward(x, gate, up):
    gate = x @ gate
    return gate / (1 + np.exp(-gate)) * (x @ up)
