"""silu(gate) * up, element by element, float32."""

import numpy as np

B = 2
M = 512
N = 2048

PRESETS = {"small": {"M": 128, "N": 1024}}
WORK = {"matmul_flops": 0, "vector_ops": 2 * B * M * N, "hbm_bytes": 12 * B * M * N}


def get_inputs():
    return [np.random.normal(size=(B, M, N)).astype(np.float32) for _ in range(2)]


def forward(gate, up):
    return gate / (1 + np.exp(-gate)) * up
