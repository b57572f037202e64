"""Queries, keys and values of tokens by one matrix whose columns are theirs, float32."""

import numpy as np

B = 1
S = 256
K = 512
Q = 512
KV = 128

PRESETS = {"small": {"S": 128, "K": 128, "Q": 128}}
TOLERANCE = 1e-4
WORK = {
    "matmul_flops": 2 * B * S * K * (Q + 2 * KV),
    "vector_ops": 0,
    "hbm_bytes": 4 * (B * S * K + (B * S + K) * (Q + 2 * KV)),
}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((B, S, K), (K, Q + 2 * KV))]


def forward(x, weights):
    return tuple(np.split(x @ weights, [Q, Q + KV], -1))


def transform_to_nki_inputs(inputs):
    return [*inputs, Q, KV, KV]
