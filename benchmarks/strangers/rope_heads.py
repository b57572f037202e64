"""Rotary embedding of row pairs (d, d + D/2) of several heads, with cosines and sines for each step, float32."""

import numpy as np

D = 128
B = 1
H = 4
N = 2048

PRESETS = {"small": {"N": 256}}
WORK = {"matmul_flops": 0, "vector_ops": 3 * D * B * H * N, "hbm_bytes": 8 * D * B * H * N + 4 * D * B * N}


def get_inputs():
    shapes = ((D, B, H, N), (D // 2, B, N), (D // 2, B, N))
    return [np.random.normal(size=shape).astype(np.float32) for shape in shapes]


def forward(x, cos, sin):
    half = x.shape[0] // 2
    low, high, cos, sin = x[:half], x[half:], cos[:, :, None], sin[:, :, None]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin])


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
