"""Blocks of tokens, each times the matrix of its expert and factors of its own, added to the rows of an output.

A block's rows are all different; bfloat16.
"""

import ml_dtypes
import numpy as np

N = 2
B = 512
E = 4
F = 192
H = 2048
T = 640

PRESETS = {"small": {"N": 2, "B": 128, "H": 512, "T": 256}}
DOMAINS = {"rows": "fixed", "experts": (0, E - 1)}
TOLERANCE = 2e-2
PRECISION = "bf16-allowed"
WORK = {
    "matmul_flops": 2 * N * B * F * H,
    "vector_ops": 2 * N * B * H,
    "hbm_bytes": 2 * (N * B * F + N * F * H + N * B + T * H) + 4 * N * (B + 1),
}


def get_inputs():
    tokens = np.random.normal(size=(N, B, F)).astype(ml_dtypes.bfloat16)
    weights = np.random.normal(scale=F**-0.5, size=(E, F, H)).astype(ml_dtypes.bfloat16)
    rows = np.stack([np.random.permutation(T)[:B] for _ in range(N)]).astype(np.int32)
    factors = np.random.random((N, B)).astype(ml_dtypes.bfloat16)
    return [tokens, weights, factors, rows, np.random.randint(0, E, (N, 1)).astype(np.int32)]


def forward(tokens, weights, factors, rows, experts):
    out = np.zeros((T, weights.shape[2]))
    for block, expert in enumerate(experts[:, 0]):
        out[rows[block]] += tokens[block] @ weights[expert] * factors[block][:, None]
    return out


def transform_to_nki_inputs(inputs):
    return [*inputs, T, N, B]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).astype(np.float32)]
