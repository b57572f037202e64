"""silu(x^T @ gate) * (x^T @ up) in bfloat16, the products summed in float32."""

import ml_dtypes
import numpy as np

K = 1024
M = 512
N = 2048

PRESETS = {"small": {"M": 256, "N": 1024}}
TOLERANCE = 2e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 4 * K * M * N, "vector_ops": 2 * M * N, "hbm_bytes": 2 * (K * M + 2 * K * N + M * N)}


def get_inputs():
    x = np.random.normal(size=(K, M)).astype(ml_dtypes.bfloat16)
    return [x, *(np.random.normal(scale=K**-0.5, size=(K, N)).astype(ml_dtypes.bfloat16) for _ in range(2))]


def forward(x, gate, up):
    gated = x.T @ gate
    return gated / (1 + np.exp(-gated)) * (x.T @ up)


def transform_to_nki_inputs(inputs):
    return [*inputs, 2, 2, 8]
