"""Rotary embedding of every head's even and odd columns as pairs, angles for each token, float32."""

import numpy as np

S = 256
H = 4
D = 64

PRESETS = {"small": {"S": 64, "H": 2}}
WORK = {"matmul_flops": 0, "vector_ops": 3 * S * H * D, "hbm_bytes": 4 * (2 * S * H * D + 2 * S * D)}


def get_inputs():
    angles = np.random.uniform(0, 2 * np.pi, size=(S, D)).astype(np.float32)
    return [np.random.normal(size=(S, H * D)).astype(np.float32), np.cos(angles), np.sin(angles)]


def forward(x, cos, sin):
    pairs = x.reshape(S, H, D // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    cos, sin = (part[:, None, : D // 2] for part in (cos, sin))
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(S, H * D)


def transform_to_nki_inputs(inputs):
    return [*inputs, H, D]
