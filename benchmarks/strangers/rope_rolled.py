"""Rotary embedding of queries and keys by positions, the second half of a head turned into the first, float32."""

import numpy as np

B = 1
S = 512
Q = 8
K = 2
D = 128

PRESETS = {"small": {"S": 256, "Q": 2}}
WORK = {
    "matmul_flops": 0,
    "vector_ops": 3 * B * S * (Q + K) * D,
    "hbm_bytes": 4 * (2 * B * S * (Q + K) * D + 2 * S * D),
}


def get_inputs():
    angles = np.random.uniform(0, 2 * np.pi, size=(S, D)).astype(np.float32)
    return [*(np.random.normal(size=(B, S, n, D)).astype(np.float32) for n in (Q, K)), np.cos(angles), np.sin(angles)]


def forward(q, k, cos, sin):
    return _turned(q, cos, sin), _turned(k, cos, sin)


def _turned(x, cos, sin):
    low, high = np.split(x, 2, -1)
    return x * cos[:, None] + np.concatenate([-high, low], -1) * sin[:, None]
