"""A gated layer and the one after it, silu(x gate) * (x up), then down; tokens as columns; bfloat16.

The last arguments are the tiles of a block.
"""

import ml_dtypes
import numpy as np

B = 1
K = 2048
M = 256
N = 2048
L = 2048

BLOCK_M = 2
BLOCK_N = 4
BLOCK_K = 16
BLOCK_L = 4

PRESETS = {"small": {"K": 512, "M": 128, "N": 512, "L": 512, "BLOCK_M": 1, "BLOCK_N": 1, "BLOCK_K": 4, "BLOCK_L": 1}}
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


def transform_to_nki_inputs(inputs):
    return [*inputs, BLOCK_M, BLOCK_N, BLOCK_K, BLOCK_L]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).astype(np.float32).reshape(reference.shape)]
