"""Rotary embedding of queries and keys, halves rotated, cosines and sines for each step, float32."""

import numpy as np

B = 1
H = 8
G = 2
S = 1024
D = 128

PRESETS = {"small": {"S": 128}}
WORK = {"matmul_flops": 0, "vector_ops": 3 * B * (H + G) * S * D, "hbm_bytes": 8 * B * (H + G) * S * D + 8 * S * D}


def get_inputs():
    shapes = ((B, H, S, D), (B, G, S, D), (S, D), (S, D))
    return [np.random.normal(size=shape).astype(np.float32) for shape in shapes]


def forward(q, k, cos, sin):
    def turned(x):
        half = x.shape[-1] // 2
        return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin

    return turned(q), turned(k)
