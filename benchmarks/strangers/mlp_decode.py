"""(silu(x @ gate) * (x @ up)) @ down for one token, float32."""

import numpy as np

K = 1024
N = 1024

PRESETS = {"small": {"K": 256, "N": 512}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 6 * K * N, "vector_ops": 2 * N, "hbm_bytes": 4 * (3 * K * N + 2 * K)}


def get_inputs():
    x = np.random.normal(size=(1, 1, K)).astype(np.float32)
    return [x, *(np.random.normal(scale=K**-0.5, size=shape).astype(np.float32) for shape in ((K, N), (K, N), (N, K)))]


def forward(x, up, gate, down):
    gated = x @ gate
    return gated / (1 + np.exp(-gated)) * (x @ up) @ down
