"""Rotary embedding of queries and keys, halves rotated, written into tensors that are given, bfloat16."""

import ml_dtypes
import numpy as np

B = 1
H = 8
G = 2
S = 2048
D = 128

PRESETS = {"small": {"S": 256}}
TOLERANCE = 2e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 0, "vector_ops": 3 * B * (H + G) * S * D, "hbm_bytes": 4 * B * (H + G) * S * D + 4 * S * D}


def get_inputs():
    shapes = ((B, H, S, D), (B, G, S, D), (S, D), (S, D))
    return [np.random.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in shapes]


def forward(q, k, cos, sin):
    def turned(x):
        half = x.shape[-1] // 2
        return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin

    return turned(q), turned(k)


def transform_to_nki_inputs(inputs):
    q, k, cos, sin = inputs
    return [q, k, np.zeros_like(q), np.zeros_like(k), cos, sin]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(part).astype(np.float32) for part in kernel_result]
