"""A gated layer and the one after it, silu(x gate) * (x up), then down; tokens as columns; bfloat16."""

import ml_dtypes
import numpy as np

B = 1
K = 2048
M = 256
N = 2048
L = 2048

PRESETS = {"small": {"B": 1}}
TOLERANCE = 2e-2
PRECISION = "bf16-allowed"
WORK = {
    "matmul_flops": 2 * B * M * N * (2 * K + L),
    "vector_ops": 2 * B * M * N,
    "hbm_bytes": 2 * (B * M * (K + L) + N * (2 * K + L)),
}


def get_inputs():
    x = np.random.normal(size=(B, K, M))
    weights = [np.random.normal(scale=rows**-0.5, size=(rows, columns)) for rows, columns in ((K, N), (K, N), (N, L))]
    return [part.astype(ml_dtypes.bfloat16) for part in (x, *weights)]


def forward(x, gate, up, down):
    x = x.swapaxes(1, 2)
    gated = x @ gate
    return gated / (1 + np.exp(-gated)) * (x @ up) @ down


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).astype(np.float32).reshape(reference.shape)]
