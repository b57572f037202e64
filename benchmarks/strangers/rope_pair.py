"""Rotary embedding of the two halves of every head of q and k, float32."""

import numpy as np

B = 1
H = 8
N = 1024
D = 128

PRESETS = {"small": {"H": 2, "N": 256}}
WORK = {"matmul_flops": 0, "vector_ops": 6 * B * H * N * D, "hbm_bytes": 4 * N * D * (4 * B * H + 2)}


def get_inputs():
    q, k = (np.random.normal(size=(B, H, N, D)).astype(np.float32) for _ in range(2))
    angles = np.random.uniform(0, 2 * np.pi, size=(N, D // 2)).astype(np.float32)
    angles = np.concatenate([angles, angles], -1)
    return [q, k, np.cos(angles), np.sin(angles)]


def forward(q, k, cos, sin):
    def rotated(x):
        half = x.shape[-1] // 2
        return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin

    return rotated(q), rotated(k)


def transform_to_nki_inputs(inputs):
    return [*inputs, *(np.zeros((B, H, N, D), np.float32) for _ in range(2)), B, H, N, D]
