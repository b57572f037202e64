"""(silu(gate) * up)^T @ down, float32."""

import numpy as np

M = 128
N = 1024
K = 2048

PRESETS = {"small": {"M": 64, "N": 256, "K": 512}}
TOLERANCE = 1e-4
DISTRIBUTIONS_LEFT_OUT = {"peaks": "exp(x) / (exp(x) + 1) is inf / inf for a large x", "heavy-tailed": "the same"}
WORK = {"matmul_flops": 2 * M * N * K, "vector_ops": 2 * M * N, "hbm_bytes": 4 * (2 * M * N + N * K + M * K)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((N, M), (N, M), (N, K))]


def forward(gate, up, down):
    return (gate / (1 + np.exp(-gate)) * up).T @ down
