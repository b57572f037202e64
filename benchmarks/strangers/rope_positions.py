"""Rotary embedding of queries and keys by rows of tables, the second half of a head turned into the first, float32."""

import numpy as np

B = 1
S = 32
Q = 4
K = 2
D = 64
LENGTH = 256

PRESETS = {"small": {"S": 8, "Q": 2, "K": 1}}
DOMAINS = {"positions": (0, LENGTH - 1)}
WORK = {
    "matmul_flops": 0,
    "vector_ops": 3 * B * S * (Q + K) * D,
    "hbm_bytes": 4 * (2 * B * S * (Q + K) * D + 2 * B * S * D + B * S),
}


def get_inputs():
    angles = np.random.uniform(0, 2 * np.pi, size=(LENGTH, D)).astype(np.float32)
    q, k = (np.random.normal(size=(B, S, heads, D)).astype(np.float32) for heads in (Q, K))
    return [q, k, np.cos(angles), np.sin(angles), np.random.randint(0, LENGTH, (B, S)).astype(np.int32)]


def forward(q, k, cos, sin, positions):
    return tuple(_turned(part, cos[positions][:, :, None], sin[positions][:, :, None]) for part in (q, k))


def _turned(x, cos, sin):
    low, high = np.split(x, 2, -1)
    return x * cos + np.concatenate([-high, low], -1) * sin
