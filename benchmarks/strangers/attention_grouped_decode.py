"""Attention of one token over a cache of keys and values up to its place, several heads of queries for one of keys."""

import ml_dtypes
import numpy as np

H = 32
G = 8
S = 1024
D = 128

PRESETS = {"small": {"H": 8, "G": 2, "S": 512}}
TOLERANCE = 2e-2
PRECISION = "bf16-allowed"
DOMAINS = {"place": (0, S - 1)}
WORK = {"matmul_flops": 4 * H * S * D, "vector_ops": 6 * H * S, "hbm_bytes": 4 * D * (G * S + H)}


def get_inputs():
    arrays = [np.random.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in ((1, H, D), (S, G, D), (S, G, D))]
    return [*arrays, np.random.randint(S // 2, S, (1, 1)).astype(np.int32)]


def forward(q, k, v, place):
    keys, values = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = np.einsum("qhd,shd->hqs", q, keys) / q.shape[2] ** 0.5
    scores = np.where(np.arange(len(k)) <= place[0, 0], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqs,shd->qhd", weights / weights.sum(-1, keepdims=True), values)
