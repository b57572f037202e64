"""Rows of tokens, block by block, through a gated layer of the block's expert: silu(x gate) * (x up), bfloat16."""

import ml_dtypes
import numpy as np

T = 256
H = 1024
F = 192
E = 4
N = 4
B = 128

PRESETS = {"small": {"H": 256, "N": 2}}
DOMAINS = {"experts": (0, E - 1), "tokens": (0, T)}
TOLERANCE = 2e-2
PRECISION = "bf16-allowed"
WORK = {
    "matmul_flops": 4 * N * B * H * F,
    "vector_ops": 2 * N * B * F,
    "hbm_bytes": 2 * (T * H + 2 * N * H * F + N * B * F) + 4 * N * (B + 1),
}


def get_inputs():
    x = np.random.normal(size=(T + 1, H)).astype(ml_dtypes.bfloat16)
    weights = np.random.normal(scale=H**-0.5, size=(E, H, 2 * F)).astype(ml_dtypes.bfloat16)
    experts, tokens = np.random.permutation(E)[:N, None], np.random.randint(0, T + 1, (N, B))
    return [x, weights, experts.astype(np.int32), tokens.astype(np.int32)]


def forward(x, weights, experts, tokens):
    gate, up = np.split(np.einsum("nbh,nho->nbo", x[tokens], weights[experts[:, 0]], optimize=True), 2, -1)
    return gate / (1 + np.exp(-gate)) * up


def transform_to_nki_inputs(inputs):
    return [*inputs, N, B]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).astype(np.float32)]
