"""Causal attention of one head before its division, with each query's logarithm of sums and largest score, float32."""

import numpy as np

N = 2048
D = 128

MASKED = -9984.0

TOLERANCE = 1e-4
WORK = {"matmul_flops": 2 * N * N * D, "vector_ops": 5 * N * N // 2, "hbm_bytes": 16 * N * D + 8 * N}


def get_inputs():
    q, k, v = (np.random.normal(size=shape).astype(np.float32) for shape in ((N, D), (D, N), (N, D)))
    return [q / np.float32(8), k, v]


def forward(q, k, v):
    rows = np.arange(q.shape[0])
    scores = np.where(rows[None, :] <= rows[:, None], q @ k, MASKED)
    highest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - highest)
    return weights @ v, highest + np.log(weights.sum(-1, keepdims=True)), highest


def transform_to_nki_inputs(inputs):
    return [*inputs, np.float32, np.float32, *inputs[0].shape]
