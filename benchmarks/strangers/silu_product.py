"""silu of one matrix times another, element by element, float32."""

import numpy as np

M = 1024
N = 2048

PRESETS = {"small": {"M": 256, "N": 512}}
WORK = {"matmul_flops": 0, "vector_ops": 2 * M * N, "hbm_bytes": 12 * M * N}


def get_inputs():
    return [np.random.normal(size=(M, N)).astype(np.float32) for _ in range(2)]


def forward(gate, up):
    return gate / (1 + np.exp(-gate)) * up
