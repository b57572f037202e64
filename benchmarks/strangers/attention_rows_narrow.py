"""Attention of one head, softmax(q k^T / sqrt(d)) v, with q, k and v as [n, d], products of bfloat16."""

import numpy as np

N = 1024
D = 64

PRESETS = {"small": {"N": 256}}
TOLERANCE = 2e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 4 * N * N * D, "vector_ops": 5 * N * N, "hbm_bytes": 16 * N * D}


def get_inputs():
    return [np.random.normal(size=(N, D)).astype(np.float32) for _ in range(3)]


def forward(q, k, v):
    scores = q @ k.T / q.shape[-1] ** 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v
