"""Of every head of q and k: root mean square divided out, a weight, and a rotary embedding of its first 64 columns."""

import numpy as np

B = 1
S = 1024
Q = 4
K = 1
D = 256

ROTATED = 64
EPSILON = 1e-6

PRESETS = {"small": {"S": 192, "Q": 2}}
TOLERANCE = 1e-4
WORK = {
    "matmul_flops": 0,
    "vector_ops": 6 * B * S * D * (Q + K),
    "hbm_bytes": 8 * B * S * D * (Q + K) + 4 * (2 * D + 128 * B * S),
}


def get_inputs():
    shapes = ((B, S, Q * D), (B, S, K * D), (D,), (D,))
    angles = np.random.uniform(0, 2 * np.pi, size=(B, S, ROTATED // 2)).astype(np.float32)
    angles = np.concatenate([angles, angles], -1)
    return [*(np.random.normal(size=shape).astype(np.float32) for shape in shapes), np.cos(angles), np.sin(angles)]


def forward(q, k, q_weight, k_weight, cos, sin):
    return _heads(q, q_weight, cos, sin), _heads(k, k_weight, cos, sin)


def _heads(x, weight, cos, sin):
    x = x.reshape(*x.shape[:2], -1, weight.size).swapaxes(1, 2)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight
    low, high = x[..., : ROTATED // 2], x[..., ROTATED // 2 : ROTATED]
    turned = np.concatenate([-high, low], -1)
    rotated = x[..., :ROTATED] * cos[:, None] + turned * sin[:, None]
    return np.concatenate([rotated, x[..., ROTATED:]], -1)


def transform_to_nki_inputs(inputs):
    return [*inputs, EPSILON]
