"""Even columns into one matrix, odd ones into another, float32."""

import numpy as np

M = 128
N = 8192

PRESETS = {"small": {"M": 100, "N": 255}}
WORK = {"matmul_flops": 0, "vector_ops": 0, "hbm_bytes": 8 * M * N}


def get_inputs():
    return [np.random.normal(size=(M, N)).astype(np.float32)]


def forward(x):
    return x[:, ::2].copy(), x[:, 1::2].copy()


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(part).reshape(like.shape) for part, like in zip(kernel_result, reference)]
