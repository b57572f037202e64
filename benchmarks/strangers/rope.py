"""Rotary embedding of row pairs (d, d + D/2) with given cosines and sines, float32."""

import numpy as np

D = 128
N = 4096

PRESETS = {"small": {"N": 512}}
WORK = {"matmul_flops": 0, "vector_ops": 3 * D * N, "hbm_bytes": 12 * D * N}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((D, N), (D // 2, N), (D // 2, N))]


def forward(x, cos, sin):
    half = x.shape[0] // 2
    low, high = x[:half], x[half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin])


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
