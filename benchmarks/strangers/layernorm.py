"""Every row to mean 0 and variance 1, then a weight and an offset for each column, float32."""

import numpy as np

M = 2048
N = 2048

EPSILON = 1e-5

PRESETS = {"small": {"M": 256, "N": 512}}
WORK = {"matmul_flops": 0, "vector_ops": 5 * M * N, "hbm_bytes": 8 * M * N + 8 * N}  # both moments in one pass
DISTRIBUTIONS_LEFT_OUT = {"mixed": "E[x^2] - E[x]^2, as the kernels have it, can be negative where x is large"}


def get_inputs():
    x = np.random.normal(size=(M, N)).astype(np.float32)
    weight = np.random.normal(size=N).astype(np.float32)
    offset = np.random.normal(size=N).astype(np.float32)
    return [x, weight, offset]


def forward(x, weight, offset):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + EPSILON) * weight + offset


def transform_to_nki_inputs(inputs):
    x, weight, offset = inputs
    return [x, EPSILON, weight, offset]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
